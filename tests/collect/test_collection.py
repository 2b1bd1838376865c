import pytest
from toy_kernel import DEVICE, FakeRunner, Toy, config

from foretune.collect import collect_runs, plan_configurations
from foretune.datasets import RunLog, read_runs

KERNEL = Toy()
PROBLEMS = KERNEL.training_problems(4)


def test_the_plan_is_repeatable_legal_and_starts_with_the_default():
    plan = plan_configurations(KERNEL, PROBLEMS, 8, seed=3)
    assert plan == plan_configurations(KERNEL, PROBLEMS, 8, seed=3)
    assert plan != plan_configurations(KERNEL, PROBLEMS, 8, seed=4)
    for problem, configs in plan.items():
        assert configs[0] == KERNEL.default(problem)
        assert len(set(configs)) == 8
        assert all(c in KERNEL.space(problem) for c in configs)


def test_problems_share_configurations():
    plan = plan_configurations(KERNEL, PROBLEMS, 8)
    distinct = {c for configs in plan.values() for c in configs}
    assert len(distinct) < 8 * len(PROBLEMS)


def test_a_small_space_is_planned_whole():
    plan = plan_configurations(KERNEL, PROBLEMS[:1], 1000)
    assert len(plan[PROBLEMS[0]]) == len(KERNEL.space(PROBLEMS[0]))


def test_interrupted_and_started_again(tmp_path):
    plan = plan_configurations(KERNEL, PROBLEMS, 6)
    path = tmp_path / "runs.parquet"
    with pytest.raises(KeyboardInterrupt), RunLog(path, DEVICE) as log:
        collect_runs(KERNEL, plan, log, FakeRunner(interrupt_after=10))
    assert len(read_runs(path)) == 10
    runner = FakeRunner()
    with RunLog(path, DEVICE) as log:
        done = collect_runs(KERNEL, plan, log, runner)
    assert (done.rows, done.reused) == (14, 10)
    assert len(runner.measured) == 14
    assert len(read_runs(path)) == 24


def test_failures_are_rows(tmp_path):
    plan = {PROBLEMS[0]: [config(), config("no run"), config("wrong")]}
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        done = collect_runs(KERNEL, plan, log, FakeRunner())
    assert (done.rows, done.ok, done.failed) == (3, 1, 2)
    runs = read_runs(tmp_path / "runs.parquet")
    assert list(runs["status"]) == ["ok", "runtime_error", "runtime_error"]
    assert (runs["device.memory_gbps"] == 10).all()
