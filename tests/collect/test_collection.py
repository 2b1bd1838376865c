"""Tests planning and collecting runs: `collect/collection.py`."""

import pytest
from toy_kernel import DEVICE, FakeRunner, Toy, config

from foretune.collect import collect_runs, plan_configurations, plan_rows
from foretune.collect.collection import FEWEST_PROBLEMS
from foretune.datasets import RunLog, read_runs
from foretune.datasets.importers.files import read_table
from foretune.errors import UsageError
from foretune.space import SearchSpace

KERNEL = Toy()
PROBLEMS = KERNEL.training_problems(4)


class Fitting(Toy):
    """A larger problem has more configurations."""

    def space(self, problem):
        most = problem["n"] // 10
        return SearchSpace.from_configs(c for c in super().space(problem) if c["work"] <= most)


@pytest.mark.parametrize("kernel", [KERNEL, Fitting()])
def test_plan_configurations_is_repeatable_and_starts_with_default(kernel):
    problems = [kernel.problem(n=n) for n in (160, 40, 50)]
    plan = plan_configurations(kernel, problems, 12, seed=3)
    assert plan == plan_configurations(kernel, problems, 12, seed=3)
    assert plan != plan_configurations(kernel, problems, 12, seed=4)
    for problem, configs in plan.items():
        assert configs[0] == kernel.default(problem)
        assert len(set(configs)) == 12
        assert all(c in kernel.space(problem) for c in configs)


def test_plan_configurations_problems_share_half():
    plan = plan_configurations(KERNEL, PROBLEMS, 9)
    distinct = {c for configs in plan.values() for c in configs}
    assert len(distinct) <= 9 + 4 * (len(PROBLEMS) - 1)


def test_collect_runs_measures_rows_of_other_code_again(tmp_path):
    class Changed(Toy):
        source_hash = "0123456789abcdef"

    plan = {PROBLEMS[0]: [config(), config(work=2)]}
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        done = [collect_runs(k, plan, log, FakeRunner()) for k in (KERNEL, Changed(), Changed())]
    assert [(d.rows, d.reused) for d in done] == [(2, 0), (2, 0), (0, 2)]


def test_plan_configurations_takes_all_of_small_space():
    plan = plan_configurations(KERNEL, PROBLEMS[:1], 1000)
    assert len(plan[PROBLEMS[0]]) == len(KERNEL.space(PROBLEMS[0]))


def test_plan_rows_returns_problems_and_configurations(tmp_path):
    plan = plan_configurations(KERNEL, PROBLEMS, 3)
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        collect_runs(KERNEL, plan, log, FakeRunner())
    rows = read_runs(tmp_path / "runs.parquet")
    assert plan_rows(KERNEL, rows) == plan
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert plan_rows(KERNEL, read_table(tmp_path / "rows.csv")) == plan


def test_plan_rows_of_other_kernel_is_refused(tmp_path):
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        collect_runs(KERNEL, {PROBLEMS[0]: [config()]}, log, FakeRunner())
    rows = read_runs(tmp_path / "runs.parquet")
    with pytest.raises(UsageError, match="the rows are of other, not toy"):
        plan_rows(KERNEL, rows.assign(kernel="other"))
    with pytest.raises(UsageError, match="no rows to measure"):
        plan_rows(KERNEL, rows.head(0))
    parameter = next(c for c in rows if c.startswith("config."))
    with pytest.raises(UsageError, match="has no configuration"):
        plan_rows(KERNEL, rows.assign(**{parameter: "strange"}))


def test_collect_runs_begins_no_problem_when_time_is_over(tmp_path):
    plan = plan_configurations(KERNEL, KERNEL.training_problems(8), 3)
    runner = FakeRunner()
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        done = collect_runs(KERNEL, plan, log, runner, max_seconds=0.0)
    first_five = list(plan)[:FEWEST_PROBLEMS]
    assert runner.measured == [(p, c) for p in first_five for c in plan[p]]
    assert (done.rows, done.skipped) == (15, 9)


def test_collect_runs_known_problems_count_when_time_is_over(tmp_path):
    plan = plan_configurations(KERNEL, KERNEL.training_problems(8), 3)
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        collect_runs(KERNEL, plan, log, FakeRunner(), max_seconds=0.0)
        resumed = collect_runs(KERNEL, plan, log, FakeRunner(), max_seconds=0.0)
    assert (resumed.rows, resumed.reused, resumed.skipped) == (0, 3 * FEWEST_PROBLEMS, 9)


def test_collect_runs_resumes_after_interruption(tmp_path):
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


def test_collect_runs_writes_failures_as_rows(tmp_path):
    plan = {PROBLEMS[0]: [config(), config("no run"), config("wrong")]}
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        done = collect_runs(KERNEL, plan, log, FakeRunner())
    assert (done.rows, done.ok, done.failed) == (3, 1, 2)
    runs = read_runs(tmp_path / "runs.parquet")
    assert list(runs["status"]) == ["ok", "runtime_error", "runtime_error"]
    assert (runs["device.memory_gbps"] == 10).all()
