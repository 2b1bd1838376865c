"""Predicted servers, and what trials teach the predictor."""

from dataclasses import replace

import pytest

from foretune.plan import Workload
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import Observation, ServerPredictor, StepFactors
from foretune.plan.prove.setting import Setting

LOADS = [Load(Workload(isl=32, osl=8), concurrency=n) for n in (1, 3, 8)]


@pytest.fixture
def setting(deployment):
    return Setting(deployment, requests=8, cache_gib=1.0)


def observations(predictor, settings, factors):
    """Return what servers with these factors would show."""
    truth = ServerPredictor(predictor.timers, factors=factors)
    return [
        Observation(setting, load, vars(truth.promise(setting, load)))
        for setting in settings
        for load in LOADS
    ]


@pytest.mark.parametrize(
    "factors",
    [
        StepFactors(decode=3.0, prompt=0.5),
        StepFactors(decode=1.0, prompt=2.0, step_ms=4.0),
        StepFactors(decode=0.4, prompt=1.0),
    ],
)
def test_prediction_one_start_corrects_other_flags(timers, setting, factors):
    predictor = ServerPredictor(timers)
    seen = observations(predictor, [setting], factors)
    other = replace(setting, requests=2)
    expected = ServerPredictor(timers, factors=factors).promise(other, LOADS[-1])
    before = predictor.promise(other, LOADS[-1])

    predictor.learn(seen)
    after = predictor.promise(other, LOADS[-1])
    for name in ("ttft_ms", "tpot_ms", "tokens_per_s"):
        error_before = abs(getattr(before, name) / getattr(expected, name) - 1)
        error_after = abs(getattr(after, name) / getattr(expected, name) - 1)
        assert error_after < 0.1
        assert error_after < error_before
    assert after.spread < before.spread


def test_prediction_promise_keeps_interval_around_it(timers, setting):
    promise = ServerPredictor(timers, spread=0.2).promise(setting, LOADS[0])
    low, high = promise.interval(promise.tpot_ms)
    assert low < promise.tpot_ms < high
    assert high / promise.tpot_ms == pytest.approx(1.39, abs=0.01)


def test_prediction_without_trials_learns_nothing(timers):
    predictor = ServerPredictor(timers)
    predictor.learn([])
    assert predictor.factors == StepFactors()


def test_fewer_requests_at_once_wait_longer(timers, setting):
    predictor = ServerPredictor(timers)
    many = predictor.promise(setting, LOADS[-1])
    few = predictor.promise(replace(setting, requests=1), LOADS[-1])
    assert few.ttft_ms > many.ttft_ms
    assert few.tokens_per_s < many.tokens_per_s


def test_half_of_the_threads_take_twice_as_long(timers, setting):
    predictor = ServerPredictor(timers, factors=StepFactors(decode=100.0, prompt=100.0))
    both = predictor.promise(replace(setting, threads=2), LOADS[0])
    one = predictor.promise(replace(setting, threads=1), LOADS[0])
    assert one.tpot_ms / both.tpot_ms == pytest.approx(2.0, rel=0.05)


def test_prediction_cached_prefix_is_not_read_again(timers, setting):
    load = Load(Workload(isl=32, osl=8, prefix=24), concurrency=4)
    predictor = ServerPredictor(timers, factors=StepFactors(prompt=100.0))
    without = predictor.promise(setting, load)
    with_cache = predictor.promise(replace(setting, prefix_cache=True), load)
    assert with_cache.ttft_ms < without.ttft_ms
