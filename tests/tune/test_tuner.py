import dataclasses
import json
import math

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy, config, time_ms

from foretune.collect import machine_load, plan_configurations
from foretune.collect.benchmark import DEFAULT_REPEATED
from foretune.collect.machine_load import MachineLoad
from foretune.datasets import RunLog, from_measurements
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, PredictorError
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.tune import job, tune_problem
from foretune.tune.job import TuningJob
from foretune.tune.record import SharedMeasurementCache
from foretune.tune.results import TuneResult
from foretune.tune.verifier import METERED_ROUNDS, verify

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)


def a_session(runner):
    return TuningJob(KERNEL, runner, SharedMeasurementCache(KERNEL, runner.device, store=False))


@pytest.fixture(scope="module")
def predictor():
    runner, problems = FakeRunner(), KERNEL.training_problems(5)
    plan = plan_configurations(KERNEL, problems, 25)
    rows = [m for p, configs in plan.items() for m in runner.run(KERNEL, p, configs)]
    return Predictor().fit(from_measurements(rows, DEVICE))


def test_a_predictor_finds_the_optimum_in_few_measurements(predictor):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), predictor, budget=5)
    assert len(result.trace) == 5
    assert result.verified
    assert result.winner.config == config()
    assert result.winner.ratio == pytest.approx(8.0)
    assert result.baseline.config == KERNEL.default(PROBLEM)
    assert result.trace[0].low_ms < result.trace[0].predicted_ms < result.trace[0].high_ms


def test_one_from_elsewhere_promises_nothing_before_it_is_corrected(predictor):
    """The other device takes three times as long: five runs say so, and the intervals follow."""

    class Slower(FakeRunner):
        def run(self, *args):
            for m in super().run(*args):
                yield dataclasses.replace(m, time_ms=3 * m.time_ms)

    other = dataclasses.replace(DEVICE, name="Other CPU")
    result = tune_problem(KERNEL, PROBLEM, Slower(other), predictor, budget=14, searcher="tpe")
    before, after = result.trace[:4], result.trace[-1]
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


def test_what_was_measured_of_other_problems_corrects_one_from_elsewhere(predictor):
    first, second = KERNEL.problem(n=60), KERNEL.problem(n=90)
    tune_problem(KERNEL, first, Slower(), predictor, budget=8)
    (step,) = tune_problem(KERNEL, second, Slower(), predictor, budget=1).trace
    assert step.predicted_ms == pytest.approx(3 * time_ms(second, step.config), rel=0.5)
    assert step.low_ms < step.predicted_ms < step.high_ms


def test_without_a_predictor_it_searches_too():
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=25, seed=1)
    assert result.verified
    assert result.winner.ratio >= 4
    assert math.isnan(result.trace[0].predicted_ms)


@pytest.mark.parametrize("searcher", ["random", "exhaustive", "tpe"])
def test_any_searcher_does(searcher):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=8, searcher=searcher)
    assert len({s.config for s in result.trace}) == 8


class ThreeDevices(FakeRunner):
    """Measures up to three at once; what began last is done first."""

    parallelism = 3

    def __init__(self):
        super().__init__()
        self.batches = []

    def run_many(self, kernel, work, incumbent_ms=math.inf):
        self.batches.append(list(work))
        yield from super().run_many(kernel, reversed(self.batches[-1]), incumbent_ms)


def test_several_devices_measure_at_once():
    runner = ThreeDevices()
    result = tune_problem(KERNEL, PROBLEM, runner, budget=8, store=False)
    assert list(map(len, runner.batches)) == [3, 3, 2]
    assert len({step.config for step in result.trace}) == 8


def test_a_budget_above_the_space_ends_with_the_space():
    size = len(KERNEL.space(PROBLEM))
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=size + 9, searcher="exhaustive")
    assert len(result.trace) == size


LUCKY = config(work=2)


class LuckyRunner(FakeRunner):
    """One configuration seems ten times as fast as it is while the search measures it."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            yield dataclasses.replace(m, time_ms=m.time_ms / (10 if m.config == LUCKY else 1))


def test_a_lucky_measurement_does_not_decide():
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


def test_a_runner_is_told_what_to_beat():
    runner = BoundedRunner()
    result = tune_problem(KERNEL, PROBLEM, runner, budget=20, searcher="random")
    best = np.minimum.accumulate([step.objective for step in result.trace])
    assert runner.bounds == [math.inf, *best[:-1].tolist()]


class FlatRunner(FakeRunner):
    """Every configuration takes as long, give or take noise."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
        return {c.id: self._noisy(np.ones(30)) for c in configs}


def test_no_measurable_win_keeps_the_default():
    result = tune_problem(KERNEL, PROBLEM, FlatRunner(noise=0.05), budget=5)
    assert not result.verified
    assert result.winner is result.baseline
    assert result.summary()["verdict"] == "no measurable win"
    assert result.summary()["config"] == dict(KERNEL.default(PROBLEM))
    assert result.library is None


class TwiceRunner(FakeRunner):
    """The default is in the race twice, and differs from itself by a factor."""

    def __init__(self, factor, **more):
        super().__init__(**more)
        self.factor = factor

    def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
        found = super().compare_interleaved(kernel, problem, configs, max_seconds)
        return {**found, DEFAULT_REPEATED: found[kernel.default(problem).id] * self.factor}


def test_a_win_smaller_than_the_doubt_is_unstable():
    sure = tune_problem(KERNEL, PROBLEM, TwiceRunner(1.01), budget=25, seed=1)
    assert sure.verified
    assert sure.steadiness.again_low == pytest.approx(1 / 1.01)
    assert 1.01 < sure.steadiness.noise_ratio < 2
    doubtful = tune_problem(KERNEL, PROBLEM, TwiceRunner(9.0), budget=25, seed=1, store=False)
    assert doubtful.won
    assert not doubtful.verified
    assert doubtful.verdict == "unstable: the default differs from itself by up to 9.00×"
    plain = json.dumps(doubtful.to_json())
    assert json.dumps(TuneResult.from_json(json.loads(plain)).to_json()) == plain


def test_a_busy_machine_has_no_headline(monkeypatch):
    busy = MachineLoad(other_load=0.5, steal=0.0)
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", 0.1)
    monkeypatch.setattr(machine_load._CpuSampler, "end", lambda self: busy)
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=25, seed=1)
    assert result.won
    assert not result.verified
    assert result.summary()["unstable"].startswith("other processes kept the CPU busy for 50%")


class OnlyDefaultRunner(FakeRunner):
    """Nothing the search tries works."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        return super().run(kernel, problem, [config("no run") for _ in configs], incumbent_ms)


def test_when_everything_fails_the_default_stays():
    result = tune_problem(KERNEL, PROBLEM, OnlyDefaultRunner(), budget=3, searcher="random")
    assert result.winner is result.baseline
    assert all(s.objective == math.inf for s in result.trace)


def test_ratios_cancel_drift():
    contenders, rounds, _ = verify(a_session(FakeRunner()), PROBLEM, [config(work=2)])
    default, candidate, library = contenders
    assert rounds == 20
    assert (default.name, library.name) == ("default", "NumPy")
    assert candidate.ratio_low == pytest.approx(candidate.ratio_high)
    assert candidate.ratio == pytest.approx(
        time_ms(PROBLEM, KERNEL.default(PROBLEM)) / time_ms(PROBLEM, config(work=2))
    )


def test_the_default_is_not_its_own_rival():
    contenders, *_ = verify(a_session(FakeRunner()), PROBLEM, [KERNEL.default(PROBLEM)])
    assert [c.name for c in contenders] == ["default", "NumPy"]


def test_a_log_spares_measurements(tmp_path):
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        first = tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=6, store=False, log=log)
        again = FakeRunner()
        second = tune_problem(KERNEL, PROBLEM, again, budget=6, store=False, log=log)
    assert again.measured == []
    assert [s.config for s in first.trace] == [s.config for s in second.trace]


def test_results_survive_json(predictor):
    result = tune_problem(KERNEL, PROBLEM, FakeRunner(), predictor, budget=3)
    assert TuneResult.from_json(result.to_json()) == result


def test_energy_without_a_meter_says_why():
    with pytest.raises(MeterUnavailable, match="no meter is registered for a abacus"):
        tune_problem(KERNEL, PROBLEM, FakeRunner(Device("x", "abacus")), objective=Objective.ENERGY)


def test_a_predictor_of_another_kernel_is_refused(predictor):
    class Other(Toy):
        name = "other"

    with pytest.raises(PredictorError, match="knows 'toy', not 'other'"):
        tune_problem(Other(), PROBLEM, FakeRunner(), predictor)


class NoDefaultRunner(FakeRunner):
    """The default gives wrong results."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
        values = super().compare_interleaved(kernel, problem, configs, max_seconds)
        return {k: v for k, v in values.items() if k != kernel.default(problem).id}


def test_a_wrong_default_is_an_error():
    with pytest.raises(MeasurementError, match="configuration of toy does not run, gives wrong"):
        verify(a_session(NoDefaultRunner()), PROBLEM, [config()])


def test_a_default_that_never_runs_is_an_error():
    class Failing(FakeRunner):
        def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
            values = super().compare_interleaved(kernel, problem, configs, max_seconds)
            return {**values, kernel.default(problem).id: np.full(20, np.inf)}

    with pytest.raises(MeasurementError, match="configuration of toy does not run"):
        verify(a_session(Failing()), PROBLEM, [config()])


def test_who_fails_in_one_round_does_not_win():
    class OneFailure(FakeRunner):
        def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
            values = super().compare_interleaved(kernel, problem, configs, max_seconds)
            values[config().id][3] = np.inf
            return values

    _, once_failed, sound, _ = verify(a_session(OneFailure()), PROBLEM, [config(), config(work=2)])[
        0
    ]
    assert not once_failed.wins
    assert sound.wins


class FlakyRunner(FakeRunner):
    """A race with the fastest candidate dies."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
        if config() in configs:
            raise MeasurementError("it died")
        return super().compare_interleaved(kernel, problem, configs, max_seconds)


def test_a_candidate_that_dies_in_the_race_is_left_out():
    contenders, *_ = verify(a_session(FlakyRunner()), PROBLEM, [config(), config(work=2)])
    assert [c.config for c in contenders[:-1]] == [KERNEL.default(PROBLEM), config(work=2)]


def test_rounds_without_a_value_say_nothing():
    class Gaps(FakeRunner):
        def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
            values = super().compare_interleaved(kernel, problem, configs, max_seconds)
            values[config().id][:17] = np.nan  # three rounds are left
            values[config(work=2).id][:10] = np.nan
            return values

    default, first, second, _ = verify(a_session(Gaps()), PROBLEM, [config(), config(work=2)])[0]
    assert not first.wins
    assert second.wins
    assert math.isnan(first.ratio)
    assert default.ratio == 1


def test_several_candidates_share_the_chance_of_a_lucky_win():
    """Of many comparisons of equals, at most one in forty may seem to win: 2.5 % on this side."""
    candidates = [config(work=2, skew=s) for s in (1, 2, 3)]

    class Equals(FlatRunner):
        def compare_interleaved(self, kernel, problem, configs, max_seconds=2.0):
            return {c.id: self._noisy(np.ones(60)) for c in configs}

    runner = Equals(noise=0.05)
    lucky = 0
    for _ in range(300):
        contenders, *_ = verify(a_session(runner), PROBLEM, candidates)
        lucky += any(c.wins for c in contenders)
    assert lucky <= 12


def test_energy_is_minimised_where_a_meter_is(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    result = tune_problem(
        KERNEL, PROBLEM, MeteredRunner(), budget=60, objective=Objective.ENERGY,
        searcher="exhaustive",
    )  # fmt: skip
    assert result.verified
    assert result.winner.config == config(work=16)
    assert result.library is None  # nobody metered it
    assert result.rounds == METERED_ROUNDS
    summary = result.summary()
    assert summary["energy_mj"] < summary["baseline_energy_mj"]
    assert result.winner.value == pytest.approx(100 / 16**1.5 * time_ms(PROBLEM, config(work=16)))


def test_a_predictor_without_power_cannot_guide_energy(predictor, monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    with pytest.raises(PredictorError, match="has not learned power"):
        tune_problem(KERNEL, PROBLEM, MeteredRunner(), predictor, objective=Objective.ENERGY)
