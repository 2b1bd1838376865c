import dataclasses
import json
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, FlatRunner, MeteredRunner, Toy, config, time_ms

from foretune.collect import machine_load, plan_configurations
from foretune.collect.machine_load import MachineLoad
from foretune.datasets import RunLog, from_measurements
from foretune.device import Device
from foretune.errors import ForetuneWarning, MeterUnavailable, PredictorError
from foretune.models import Predictor
from foretune.models.guides.guide import TrainedGuide
from foretune.objective import Objective
from foretune.tune import job, tune_problem, tuner, verifier
from foretune.tune.job import TuningJob
from foretune.tune.results import TuneResult
from foretune.tune.store import Store
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.tuner import tune_one
from foretune.tune.verifier import METERED_LOOKS

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)


@pytest.fixture(scope="module")
def learned():
    """The measurements that `predictor` learned from."""
    runner = FakeRunner()
    problems = KERNEL.training_problems(5)
    plan = plan_configurations(KERNEL, problems, 25)
    return [m for p, configs in plan.items() for m in runner.run(KERNEL, p, configs)]


@pytest.fixture(scope="module")
def predictor(learned):
    return Predictor().fit(from_measurements(learned, DEVICE))


def test_tune_problem_with_predictor_needs_few_measurements(predictor):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), predictor, budget=5)
    assert len(result.trace) == 5
    assert result.verified
    assert result.winner.config == config()
    assert result.winner.ratio == pytest.approx(8.0)
    assert result.baseline.config == KERNEL.default(PROBLEM)
    assert result.trace[0].low_ms < result.trace[0].predicted_ms < result.trace[0].high_ms


def test_steps_have_interval_of_other_device_only_after_correction(predictor):
    """The other device takes three times as long: five runs say so, and the intervals follow."""

    class Slower(FakeRunner):
        def run(self, *args):
            for m in super().run(*args):
                yield dataclasses.replace(m, time_ms=3 * m.time_ms)

    other = dataclasses.replace(DEVICE, name="Other CPU")
    result = tune_problem(KERNEL, PROBLEM, Slower(other), predictor, budget=14, searcher="tpe")
    before = result.trace[:4]
    after = result.trace[-1]
    assert all(math.isfinite(s.predicted_ms) and math.isnan(s.low_ms) for s in before)
    assert after.low_ms < after.predicted_ms < after.high_ms
    assert after.predicted_ms == pytest.approx(3 * time_ms(PROBLEM, after.config), rel=0.5)


class Slower(FakeRunner):
    """Of another device, on which everything takes three times as long."""

    def __init__(self):
        super().__init__(dataclasses.replace(DEVICE, name="Other CPU"))

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            yield dataclasses.replace(m, time_ms=3 * m.time_ms)


def test_predictor_of_other_device_is_corrected_by_other_problems(predictor):
    first = KERNEL.problem(n=60)
    second = KERNEL.problem(n=90)
    tune_problem(KERNEL, first, Slower(), predictor, budget=8)
    (step,) = tune_problem(KERNEL, second, Slower(), predictor, budget=1).trace
    assert step.predicted_ms == pytest.approx(3 * time_ms(second, step.config), rel=0.5)
    assert step.low_ms < step.predicted_ms < step.high_ms


def test_searcher_gets_no_training_runs_of_predictor(predictor, learned, tmp_path):
    """On those it errs less than elsewhere, and the search would trust it too much."""

    def proposals(name, *known):
        store = tmp_path / name
        MeasurementCache.for_kernel(KERNEL, DEVICE, store).append(*known)
        tuned = tune_problem(KERNEL, PROBLEM, FakeRunner(), predictor, budget=8, store=store)
        return [step.config for step in tuned.trace]

    learned = [m for m in learned if m.problem != PROBLEM]
    other = KERNEL.problem(n=60)
    unseen = [
        *FakeRunner().run(KERNEL, other, KERNEL.space(other).sample(9, np.random.default_rng(0)))
    ]
    assert proposals("nothing.db") == proposals("learned.db", *learned)
    assert proposals("unseen.db", *unseen) == proposals("both.db", *learned, *unseen)
    assert proposals("nothing.db") != proposals("unseen.db", *unseen)


def test_tune_problem_without_predictor():
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=25, seed=1)
    assert result.verified
    assert result.winner.ratio >= 4
    assert math.isnan(result.trace[0].predicted_ms)


@pytest.mark.parametrize("searcher", ["random", "exhaustive", "tpe"])
def test_tune_problem_takes_any_searcher(searcher):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=8, searcher=searcher)
    assert len({s.config for s in result.trace}) == 8


def test_tune_problem_seed_changes_configurations():
    def tried(seed):
        how = {"budget": 8, "searcher": "random", "seed": seed, "store": False}
        return [s.config for s in tune_problem(KERNEL, PROBLEM, FakeRunner(), **how).trace]

    assert tried(1) == tried(1) != tried(2)


class ThreeDevices(FakeRunner):
    """Measures up to three at once; what began last is done first."""

    parallelism = 3

    def __init__(self):
        super().__init__()
        self.batches = []

    def run_many(self, kernel, work, incumbent_ms=math.inf):
        self.batches.append(list(work))
        yield from super().run_many(kernel, reversed(self.batches[-1]), incumbent_ms)


def test_tune_problem_measures_on_several_devices_at_once():
    runner = ThreeDevices()
    result = tune_problem(KERNEL, PROBLEM, runner, budget=8, store=False)
    assert list(map(len, runner.batches)) == [3, 3, 2]
    assert len({step.config for step in result.trace}) == 8


def test_tune_problem_budget_above_space_measures_all():
    size = len(KERNEL.space(PROBLEM))
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=size + 9, searcher="exhaustive")
    assert len(result.trace) == size


LUCKY = config(work=2)


class LuckyRunner(FakeRunner):
    """One configuration seems ten times as fast as it is while the search measures it."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            yield dataclasses.replace(m, time_ms=m.time_ms / (10 if m.config == LUCKY else 1))


def test_tune_problem_lucky_measurement_does_not_win():
    result = tune_problem(KERNEL, PROBLEM, LuckyRunner(), budget=60, searcher="exhaustive")
    assert min(result.trace, key=lambda step: step.objective).config == LUCKY
    assert result.winner.config == config()


class BoundedRunner(FakeRunner):
    """Repeats every measurement, and notes the times that it was told to beat."""

    def __init__(self):
        super().__init__()
        self.bounds = []

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            self.bounds.append(incumbent_ms)
            yield dataclasses.replace(m, time_ms_samples=(m.time_ms,) * 6)


def test_runner_gets_upper_bound_of_incumbent():
    runner = BoundedRunner()
    result = tune_problem(KERNEL, PROBLEM, runner, budget=20, searcher="random")
    best = np.minimum.accumulate([step.objective for step in result.trace])
    assert runner.bounds == [math.inf, *best[:-1].tolist()]
    more = BoundedRunner()
    tune_problem(KERNEL, PROBLEM, more, budget=21, searcher="random", seed=1)
    assert more.bounds[0] == best[-1], "what the store knows is to be beaten, too"


def test_tune_problem_flat_space_keeps_default(monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {9: 1.0})
    flat = FlatRunner(noise=0.001)
    result = tune_problem(KERNEL, PROBLEM, flat, budget=5)
    assert not result.verified
    assert result.winner is result.baseline
    assert result.summary()["verdict"] == "no_win"
    assert result.summary()["config"] == dict(KERNEL.default(PROBLEM))
    assert result.library is None


def test_tune_problem_inconclusive_choice_is_not_verified(tmp_path):
    store = Store(tmp_path / "store.db")
    result = tune_problem(KERNEL, PROBLEM, FlatRunner(noise=0.5), budget=5, store=store)
    assert result.verdict == "inconclusive"
    assert result.winner is result.baseline
    assert result.explanation.startswith("inconclusive: ")
    (subject,) = store.subjects()
    choice = store.choice(subject, PROBLEM)
    assert (choice.how, choice.config) == ("measured", KERNEL.default(PROBLEM))
    assert math.isnan(choice.regret), "after five measurements nobody knows"
    plain = json.dumps(result.to_dict())
    assert json.dumps(TuneResult.from_dict(json.loads(plain)).to_dict()) == plain


def test_tune_problem_waits_for_idle_machine_twice(monkeypatch):
    busy = MachineLoad(other_load=0.5, steal=0.0)
    progress = Mock()
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", 0.1)
    monkeypatch.setattr(machine_load, "OBSERVE_S", 0.001)
    monkeypatch.setattr(machine_load, "_cpu_load", lambda begin, end: busy)
    how = {"patience_s": 0.01, "progress": progress}
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=25, seed=1, **how)
    said = [call.args[0] for call in progress.say.call_args_list]
    assert [line.partition(":")[0] for line in said] == ["not idle after 0.01 s"] * 2
    assert result.verified
    noise = result.summary()["noise"]
    assert noise["disturbed"].startswith("other processes kept the CPU busy for 50%")


def test_tune_one_idle_wait_is_not_search_time(monkeypatch, tmp_path):
    """By default, a verification may take as long as the search, which is two runs of 7 s."""
    clock = SimpleNamespace(now=0.0)

    def wait(self):
        clock.now += 1000.0

    class SlowRunner(FakeRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            for m in super().run(kernel, problem, configs, incumbent_ms):
                clock.now += 7.0
                yield m

    monkeypatch.setattr(tuner, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(TuningJob, "wait_until_idle", wait)
    store = Store(tmp_path / "store.db")

    tune_problem(KERNEL, PROBLEM, SlowRunner(), budget=2, searcher="random", store=store)

    (subject,) = store.subjects()
    verification = store.choice(subject, PROBLEM).verification
    assert verification["allowed_s"] == 2 * 7.0


class OnlyDefaultRunner(FakeRunner):
    """Nothing the search tries works."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        return super().run(kernel, problem, [config("no run") for _ in configs], incumbent_ms)


def test_tune_problem_all_failures_keep_default():
    result = tune_problem(KERNEL, PROBLEM, OnlyDefaultRunner(), budget=3, searcher="random")
    assert result.winner is result.baseline
    assert all(s.objective == math.inf for s in result.trace)


def test_tune_problem_reuses_run_log(tmp_path):
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        first = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=6, store=False, log=log)
        again = FakeRunner()
        second = tune_problem(KERNEL, PROBLEM, again, budget=6, store=False, log=log)
    assert again.measured == []
    assert [s.config for s in first.trace] == [s.config for s in second.trace]


def test_tune_result_survives_json(predictor):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), predictor, budget=3)
    assert TuneResult.from_dict(result.to_dict()) == result


def test_tune_problem_energy_without_meter_raises():
    with pytest.raises(MeterUnavailable, match="no meter is registered for a abacus"):
        tune_problem(KERNEL, PROBLEM, FakeRunner(Device("x", "abacus")), objective=Objective.ENERGY)


def test_tune_problem_predictor_of_other_kernel_is_refused(predictor):
    class Other(Toy):
        name = "other"

    with pytest.raises(PredictorError, match="knows 'toy', not 'other'"):
        tune_problem(Other(), PROBLEM, FakeRunner(), predictor)


def test_tune_one_shipped_predictor_without_column_is_not_used(predictor):
    runs = predictor.runs_.assign(**{"problem.batch": np.arange(len(predictor.runs_)) % 3})
    shipped = TrainedGuide(Predictor().fit(runs), DEVICE, shipped=True)
    options = {"budget": 3, "store": False}
    here = TuningJob.from_options(KERNEL, FakeRunner(), options, Objective.TIME)
    with pytest.warns(ForetuneWarning, match=r"the shipped predictor is not used: .*problem.batch"):
        result = tune_one(here, PROBLEM, shipped, 0.1)
    assert [math.isnan(step.predicted_ms) for step in result.trace] == [True] * 3


def test_tune_problem_minimizes_energy(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    result = tune_problem(
        KERNEL,
        PROBLEM,
        MeteredRunner(),
        budget=60,
        objective=Objective.ENERGY,
        searcher="exhaustive",
    )
    assert result.verified
    assert result.winner.config == config(work=16)
    assert result.library is None  # nobody metered it
    assert result.processes == sum(METERED_LOOKS)
    summary = result.summary()
    assert summary["energy_mj"] < summary["baseline_energy_mj"]
    assert result.winner.value == pytest.approx(100 / 16**1.5 * time_ms(PROBLEM, config(work=16)))


def test_tune_problem_energy_needs_predictor_of_power(predictor, monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    with pytest.raises(PredictorError, match="has not learned power"):
        tune_problem(KERNEL, PROBLEM, MeteredRunner(), predictor, objective=Objective.ENERGY)
