"""One record: collect, tune and campaigns find each other's measurements in the store."""

import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy, config, time_ms

from foretune.collect import collect_runs
from foretune.datasets import RunLog, read_runs
from foretune.errors import ForetuneWarning, UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import ConstrainedObjective, Limit, Objective
from foretune.space import SearchSpace
from foretune.tune import job, tune_pareto, tune_problem
from foretune.tune.store import Choice, Store
from foretune.tune.store.cache import MeasurementCache

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
OTHER = KERNEL.problem(n=200)
SIZE = len(KERNEL.space(PROBLEM))
TIME = ConstrainedObjective(Objective.TIME, ())


class Said:
    """Keeps what progress is told."""

    def __init__(self):
        self.lines = []

    def start(self, stage, total):
        self.total = total

    def advance(self, note=""):
        pass

    def say(self, text):
        self.lines.append(text)


@pytest.fixture
def metered(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())


def tune(runner, budget=8, problem=PROBLEM, **how):
    return tune_problem(KERNEL, problem, runner, **{"searcher": "random", "budget": budget} | how)


class OtherCode(Toy):
    """The kernel after a change of its code."""

    source_hash = "0123456789abcdef"


def test_tune_problem_second_run_measures_and_verifies_nothing():
    first = tune(FakeRunner())
    again = FakeRunner()
    said = Said()
    second = tune(again, progress=said)
    assert again.measured == []
    assert (first.measured, second.measured) == (8, 0)
    assert second.winner == first.winner
    assert said.lines == [
        "n=100,dtype=fp32: 8 measurements reused from the store, nothing new is measured",
        "n=100,dtype=fp32: verified before, with the same measurements",
    ]
    assert (second.summary()["measurements"], second.summary()["known"]) == (0, 8)


def test_tune_problem_does_not_mention_known_default():
    default = KERNEL.default(PROBLEM)
    said = Said()
    MeasurementCache.for_kernel(KERNEL, DEVICE).append(
        Measurement("toy", PROBLEM, default, DEVICE.name, Status.OK, time_ms(PROBLEM, default))
    )
    tune(FakeRunner(), progress=said)
    assert said.lines == []


def test_tune_problem_larger_budget_continues_search():
    first = FakeRunner()
    more = FakeRunner()
    tune(first)
    result = tune(more, budget=12)
    assert result.measured == len(more.measured) == 12
    assert not set(first.measured) & set(more.measured)
    again = FakeRunner()
    tune(again, budget=20)
    assert again.measured == [], "the choice rests on 20"


def test_tune_problem_resumes_interrupted_search():
    killed = FakeRunner(interrupt_after=3)
    after = FakeRunner()
    with pytest.raises(KeyboardInterrupt, match="after 3 measurements of this search: kept; run"):
        tune(killed)
    with pytest.raises(KeyboardInterrupt, match="after 5 measurements of this search: kept; run"):
        tune(FakeRunner(interrupt_after=2))
    result = tune(after)
    assert [s.known for s in result.trace] == [True] * 5 + [False] * 3, "within one budget"
    assert not set(killed.measured) & set(after.measured)
    assert tune(FakeRunner()).measured == 0


def test_tune_problem_resumes_interrupted_larger_search():
    tune(FakeRunner())
    with pytest.raises(KeyboardInterrupt, match="after 5 measurements of this search: kept"):
        tune(FakeRunner(interrupt_after=5), budget=20)
    with pytest.raises(KeyboardInterrupt, match="after 9 measurements of this search: kept"):
        tune(FakeRunner(interrupt_after=4), budget=20)

    rest = FakeRunner()
    tune(rest, budget=20)

    assert len(rest.measured) == 20 - 9


def test_tune_problem_finished_search_ends_count_of_interrupted_one():
    with pytest.raises(KeyboardInterrupt):
        tune(FakeRunner(interrupt_after=3))
    tune(FakeRunner())

    larger = FakeRunner()
    tune(larger, budget=20)

    assert len(larger.measured) == 20, "the three are part of the search that ended"


def test_tune_problem_interrupted_without_store_keeps_nothing():
    with pytest.raises(KeyboardInterrupt, match="after 3 measurements of this search: not kept"):
        tune(FakeRunner(interrupt_after=3), store=False)


def test_tune_problem_resumes_interrupted_search_from_log(tmp_path):
    killed = FakeRunner(interrupt_after=3)
    after = FakeRunner()
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        with pytest.raises(KeyboardInterrupt):
            tune(killed, log=log)
        result = tune(after, log=log)
    steps = [(PROBLEM, s.config) for s in result.trace]
    assert steps == [*killed.measured, *after.measured]
    assert len(steps) == 8


def test_tune_problem_reuses_collected_measurements(tmp_path):
    plan = {PROBLEM: list(KERNEL.space(PROBLEM))[::2], OTHER: [config()]}
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        collect_runs(
            KERNEL, plan, MeasurementCache.for_kernel(KERNEL, DEVICE, log=log), FakeRunner()
        )
    runner = FakeRunner()
    result = tune(runner, budget=SIZE)
    known = [s for s in result.trace if s.known]
    assert {s.config for s in known} == set(plan[PROBLEM])
    assert len(result.trace) == SIZE
    assert result.winner.config == config()


def test_collect_runs_reuses_tuned_measurements(tmp_path):
    tune(FakeRunner())
    measured = [s.config for s in tune(FakeRunner()).trace]
    runner = FakeRunner()
    new = next(c for c in KERNEL.space(PROBLEM) if c not in measured)
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        record = MeasurementCache.for_kernel(KERNEL, DEVICE, log=log)
        done = collect_runs(KERNEL, {PROBLEM: [*measured, new]}, record, runner)
    assert (done.rows, done.reused) == (1, 8)
    assert runner.measured == [(PROBLEM, new)]
    assert len(read_runs(tmp_path / "runs.parquet")) == 9, "the table asked for is whole"


def test_tune_problem_second_run_with_log_has_same_winner(tmp_path):
    for measured in (25, 0):
        runner = FakeRunner()
        with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
            result = tune(runner, budget=25, searcher="surrogate", seed=1, log=log)
        assert len(runner.measured) == measured
        assert result.winner.config == config()


def test_tune_problem_other_code_reuses_nothing():
    tune(FakeRunner())
    runner = FakeRunner()
    tune_problem(OtherCode(), PROBLEM, runner, budget=8, searcher="random")
    assert len(runner.measured) == 8
    assert len(Store().subjects()) == 2


class FewerConfigurations(Toy):
    """The same code, of which only a part is searched."""

    source_hash = KERNEL.source_hash
    space_id = "few"

    def space(self, problem):
        return SearchSpace.from_configs(c for c in super().space(problem) if c["work"] <= 2)

    def default(self, problem):
        return config(work=2)


def test_tune_problem_reuses_only_configurations_of_its_space():
    first = FakeRunner()
    runner = FakeRunner()
    tune(first, budget=SIZE, searcher="exhaustive")
    few = FewerConfigurations()
    result = tune_problem(few, PROBLEM, runner, budget=5)
    assert runner.measured == []
    assert {s.config for s in result.trace} == set(few.space(PROBLEM))
    assert result.winner.config == config()


def test_searcher_gets_measurements_of_other_problems():
    tune(FakeRunner(), problem=OTHER)
    told = []

    def searcher(*arguments):
        told.extend(arguments[-1])
        from foretune.search.searcher import RandomSearcher

        return RandomSearcher(*arguments)

    tune(FakeRunner(), searcher=searcher)
    assert {m.problem for m in told} == {OTHER}
    assert len(told) == 8


def test_tune_problem_without_store_stores_nothing():
    first = FakeRunner()
    second = FakeRunner()
    for runner in (first, second):
        tune(runner, store=False)
    assert first.measured == second.measured
    assert Store().subjects() == []


def test_tune_problem_unwritable_store_causes_one_warning(tmp_path):
    (tmp_path / "file").touch()
    runner = FakeRunner()
    with pytest.warns(ForetuneWarning, match="tuned results are not stored: cannot") as caught:
        result = tune(runner, store=tmp_path / "file" / "tuned.db")
    assert len(caught) == 1
    assert result.measured == len(runner.measured) == 8


def test_tune_problem_searches_again_if_measurements_are_damaged(tmp_path):
    tune(FakeRunner(), store=tmp_path / "tuned.db")
    with closing(sqlite3.connect(tmp_path / "tuned.db")) as database, database:
        database.execute("UPDATE foretune_measurements SET record = 'damaged'")
    with pytest.warns(ForetuneWarning, match="8 damaged rows skipped"):
        assert tune(FakeRunner(), store=tmp_path / "tuned.db").measured == 8


def test_tune_problem_concurrent_runs_agree_on_one_choice():
    def one(seed):
        return tune(FakeRunner(), seed=seed)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    (subject,) = Store().subjects()
    chosen = Store().choices(subject)
    assert list(chosen) == [PROBLEM]
    assert chosen[PROBLEM].config in [r.winner.config for r in results]
    found = {m.config for m in Store().measurements(subject)}
    assert found == {s.config for r in results for s in r.trace}


@pytest.mark.usefixtures("metered")
def test_choices_of_different_objectives_are_separate():
    tune(MeteredRunner(), budget=SIZE)
    tune(MeteredRunner(), budget=SIZE, limits=[Limit("power_w", 50.0)])
    tune(MeteredRunner(), budget=SIZE, objective=Objective.ENERGY)
    (subject,) = Store().subjects()
    works = {
        str(p.get("tuned_for", "")): c.config["work"] for p, c in Store().choices(subject).items()
    }
    assert works == {"": 1, "time power_w<=50": 2, "energy": 16}


@pytest.mark.usefixtures("metered")
def test_tune_problem_measures_again_without_power():
    tune(FakeRunner(), budget=SIZE)
    runner = MeteredRunner()
    result = tune(runner, budget=SIZE, objective=Objective.ENERGY)
    assert {c["behaviour"] for _, c in runner.measured} == {"ok"}, "failures say enough"
    assert all(s.known == (s.status != "ok") for s in result.trace)


@pytest.mark.usefixtures("metered")
def test_tune_pareto_reuses_measurements():
    tune_pareto(KERNEL, PROBLEM, MeteredRunner(), budget=10)
    runner = MeteredRunner()
    summary = tune_pareto(KERNEL, PROBLEM, runner, budget=5).summary()
    assert (summary["known"], summary["measurements"]) == (10, 5)
    assert len(summary["trace"]) == 15


def test_store_keeps_quantiles_of_many_repeats():
    times = tuple(float(t) for t in range(1, 1002))
    whole = Measurement(
        "toy", PROBLEM, config(), DEVICE.name, Status.OK, 501.0, time_ms_samples=times
    )
    record = MeasurementCache.for_kernel(KERNEL, DEVICE)
    record.append(whole)
    (kept,) = MeasurementCache.for_kernel(KERNEL, DEVICE).known(PROBLEM)
    assert len(kept.time_ms_samples) == 25
    assert (kept.time_ms_samples[0], kept.time_ms_samples[12], kept.time_ms_samples[-1]) == (
        1.0,
        501.0,
        1001.0,
    )


class TestStopping:
    def test_until_the_regret_is_small(self):
        tune(FakeRunner(), budget=SIZE, problem=OTHER, searcher="exhaustive")
        runner = FakeRunner()
        result = tune(runner, budget="auto", searcher="surrogate")
        assert 0 < result.measured < SIZE
        assert result.winner.config == config()
        (subject,) = Store().subjects()
        choice = Store().choice(subject, PROBLEM)
        assert choice.how == "verified"
        assert not math.isnan(choice.regret)
        again = FakeRunner()
        tune(again, budget="auto", searcher="surrogate")
        assert again.measured == []

    def test_a_budget_and_a_regret(self):
        runner = FakeRunner()
        result = tune(runner, budget=5, regret=0.001, searcher="surrogate")
        assert result.measured <= 5

    def test_who_cannot_tell_its_regret(self):
        with pytest.raises(UsageError, match=r"'random' cannot estimate its regret.*surrogate"):
            tune(FakeRunner(), budget="auto")

    @pytest.mark.parametrize("budget", ["some", 1.5, True])
    def test_a_budget_that_is_none(self, budget):
        with pytest.raises(UsageError, match="give a number or 'auto'"):
            tune(FakeRunner(), budget=budget)


def test_tune_problem_verifies_merged_choice_first():
    """A choice from another store is a finalist, although its measurement here is slow."""
    record = MeasurementCache.for_kernel(KERNEL, DEVICE)
    faster = [config(work=4, skew=skew) for skew in (1, 2, 3)]
    for c, ms in [(config(work=2), 99.0), *((c, time_ms(PROBLEM, c)) for c in faster)]:
        record.append(Measurement("toy", PROBLEM, c, DEVICE.name, Status.OK, ms))
    record.choose(PROBLEM, TIME, Choice(config(work=2), 9, 0.0, "verified"), None)
    result = tune(FakeRunner())
    assert result.measured == 0
    assert result.winner.config == config(work=2)
