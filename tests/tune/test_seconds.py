"""Budgets of seconds, with a clock that the tests set."""

import pytest
from commands import fails, run_json
from toy_kernel import FakeRunner, MeteredRunner, Toy

from foretune.datasets import RunLog
from foretune.errors import UsageError
from foretune.tune import Calls, job, tune_pareto, tune_problem, tune_workload

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)


class Clock:
    """Goes on only when something is measured."""

    def __init__(self):
        self.now = 1000.0

    def timed(self, kind, seconds):
        """Return a kind of runner whose measurements take ``seconds(config)``."""

        class Timed(kind):
            def run(timed, kernel, problem, configs, incumbent_ms=float("inf")):  # noqa: N805
                for measured in super().run(kernel, problem, configs, incumbent_ms):
                    self.now += seconds(measured.config)
                    yield measured

        return Timed()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("foretune.tune.job.monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize("searcher", ["surrogate", "random", "tpe"])
def test_search_starts_no_measurement_after_its_seconds(clock, searcher):
    runner = clock.timed(FakeRunner, lambda config: 2.0)
    result = tune_problem(KERNEL, PROBLEM, runner, seconds=15, searcher=searcher, store=False)
    assert len(result.trace) == 8  # the last began after 14 seconds and was finished
    assert result.contenders


def test_search_counts_seconds_of_failures(clock):
    runner = clock.timed(FakeRunner, lambda config: 1.0 if config["behaviour"] == "ok" else 30.0)
    result = tune_problem(KERNEL, PROBLEM, runner, seconds=60, searcher="exhaustive", store=False)
    failed = sum(step.config["behaviour"] != "ok" for step in result.trace)
    assert 30 * (failed - 1) + len(result.trace) - failed < 60
    assert failed > 0


def test_search_ends_at_first_of_budget_and_seconds(clock):
    runner = clock.timed(FakeRunner, lambda config: 1.0)
    result = tune_problem(KERNEL, PROBLEM, runner, budget=3, seconds=100, store=False)
    assert len(result.trace) == 3


def test_search_keeps_measurement_that_ends_late(clock, tmp_path):
    runner = clock.timed(FakeRunner, lambda config: 2.0)
    with RunLog(tmp_path / "runs.parquet", runner.device) as log:
        result = tune_problem(KERNEL, PROBLEM, runner, seconds=9, store=False, log=log)
        assert len(result.trace) == len(log.runs()) == 5


def test_pareto_and_workload_end_after_seconds(clock, monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    runner = clock.timed(MeteredRunner, lambda config: 1.0)
    front = tune_pareto(KERNEL, PROBLEM, runner, seconds=7, store=False)
    assert len(front.trace) == 7
    runner = clock.timed(FakeRunner, lambda config: 1.0)
    begun = clock.now
    calls = [Calls(KERNEL, KERNEL.problem(n=n), 1.0) for n in (100, 200)]
    result = tune_workload(calls, runner, seconds=12, store=False)
    measured = sum(r.measured for r in result.results)
    assert 12 <= measured <= 14 < clock.now - begun + 3


def test_search_cut_short_goes_on_with_more_seconds(clock):
    """Of eight configurations, one second allows one; the next run has 20 seconds."""
    measured = []
    for seconds in (1, 20, 20, 15):
        runner = clock.timed(FakeRunner, lambda config: 1.0)
        result = tune_problem(KERNEL, PROBLEM, runner, budget=8, seconds=seconds, searcher="random")
        measured.append(result.measured)
    assert measured == [1, 8, 0, 0]


def test_search_zero_seconds_is_refused():
    with pytest.raises(UsageError, match="0 seconds for a search: give more than 0"):
        tune_problem(KERNEL, PROBLEM, FakeRunner(), seconds=0, store=False)


@pytest.mark.usefixtures("toy_place")
def test_command_budget_in_seconds(clock, capsys, monkeypatch):
    runner = clock.timed(FakeRunner, lambda config: 2.0)
    monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda *_: runner)
    words = ("tune", "toy", "--problem", "n=100", "--store", "none", "--predictor", "none")
    out = run_json(capsys, *words, "--budget", "15s")
    assert len(out["trace"]) == 8
    assert "give more than 0" in fails(capsys, 2, *words, "--budget", "0s")
