"""Whether a predictor is still valid: `models/validation/drift.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import catalog, from_measurements
from foretune.errors import PredictorError
from foretune.measurement import Measurement, Status
from foretune.models import Predictor
from foretune.models.splits import task_numbers
from foretune.models.validation.drift import (
    MIN_BIAS,
    _design_effect,
    _min_coverage,
    check_drift,
)

FRESH_SIZES = [(128, 128, 64), (512, 128, 512), (768, 384, 96), (192, 960, 256), (640, 640, 640)]


@pytest.fixture(scope="module")
def fresh(matmul, toy_device, toy_law):
    """Other problems, other configurations, the same law."""
    rng = np.random.default_rng(5)
    rows = []
    for m, n, k in FRESH_SIZES:
        problem = matmul.problem(M=m, N=n, K=k)
        for config in matmul.space(problem).sample(40, rng):
            if toy_law.fails(config):
                continue
            time_ms = toy_law.time_ms(matmul, problem, config, toy_device) * rng.normal(1, 0.005)
            power_w = toy_law.power_w(config) * rng.normal(1, 0.005)
            rows.append(
                Measurement(
                    matmul.name,
                    problem,
                    config,
                    toy_device.name,
                    Status.OK,
                    time_ms=time_ms,
                    power_w=power_w,
                    energy_mj=power_w * time_ms,
                )
            )
    return from_measurements(rows, toy_device)


def slower(runs, factor):
    return runs.assign(time_ms=runs["time_ms"] * factor)


def test_drift_of_unchanged_machine_is_silent(predictor, fresh):
    found = check_drift(predictor, fresh)
    assert set(found) == {"time_ms", "power_w"}
    time = found["time_ms"]
    assert (time.verdict, time.reasons) == ("ok", ())
    assert (time.rows, time.problems) == (len(fresh), len(FRESH_SIZES))
    assert time.coverage >= time.min_coverage
    assert abs(time.bias) <= time.bias_limit
    assert time.bias_limit >= MIN_BIAS
    assert time.repeats == 0
    assert time.median_error < 3 * time.expected_error


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_drift_of_slower_machine_is_found(predictor, fresh, factor):
    found = check_drift(predictor, slower(fresh, factor))
    time = found["time_ms"]
    assert time.verdict == "drifted"
    assert time.bias == pytest.approx(factor - 1, abs=0.1)
    side = "above" if factor > 1 else "below"
    assert any(f"{side} predictions" in reason for reason in time.reasons)
    assert any("90 % interval" in reason for reason in time.reasons)
    assert found["power_w"].verdict == "ok"


@pytest.mark.parametrize("kernel", ["matmul", "softmax"])
def test_drift_doubled_time_is_found_in_few_problems(kernel):
    """Their wide intervals also cover problems worse than all seen, but all are not worse."""
    runs = catalog.load("amd-epyc-2-cores")
    runs = runs[runs["kernel"] == kernel]
    problems = task_numbers(runs)
    predictor = Predictor(seed=0).fit(runs[problems % 2 == 0].reset_index(drop=True))
    others = runs[problems % 2 == 1].reset_index(drop=True)
    same, twice = (check_drift(predictor, slower(others, f))["time_ms"] for f in (1.0, 2.0))
    assert (same.verdict, twice.verdict) == ("ok", "drifted")
    assert same.expected_error < 0.6


def test_drift_small_change_is_found_in_repeats(predictor, runs):
    assert check_drift(predictor, runs)["time_ms"].verdict == "ok"
    again = check_drift(predictor, slower(runs, 1.04))["time_ms"]
    assert again.repeats == (runs["status"] == "ok").sum()
    assert again.change == pytest.approx(0.04)
    assert again.change_low == pytest.approx(0.04)
    assert again.verdict == "drifted"
    assert "4.0 % above their earlier value" in again.reasons[-1]


def test_drift_tiny_change_is_ignored(predictor, runs):
    time = check_drift(predictor, slower(runs, 1.01))["time_ms"]
    assert time.verdict == "ok"
    assert time.change == pytest.approx(0.01)


def test_drift_few_repeats_are_ignored(predictor, runs):
    few = runs[runs["status"] == "ok"].iloc[:5]
    time = check_drift(predictor, slower(few, 1.04))["time_ms"]
    assert time.repeats == 5
    assert time.change_low == -1.0
    assert time.change_high == np.inf
    assert time.verdict == "ok"


def test_drift_gaps_and_types_do_not_hide_repeats(predictor, runs):
    floats = runs.assign(**{"problem.M": runs["problem.M"].astype(float)})
    assert check_drift(predictor, floats)["time_ms"].repeats > 100


def test_drift_scatter_is_found_by_coverage(predictor, fresh):
    rng = np.random.default_rng(0)
    noisy = slower(fresh, np.exp(rng.choice([-0.7, 0.7], len(fresh))))
    (reason,) = check_drift(predictor, noisy)["time_ms"].reasons
    assert "are in their 90 % interval" in reason


def test_drift_uses_newest_successful_rows(predictor, fresh):
    old = slower(fresh, 9.0).assign(recorded_at="2020-01-01")
    import pandas as pd

    both = pd.concat([fresh.assign(recorded_at="2021-01-01"), old], ignore_index=True)
    assert check_drift(predictor, both)["time_ms"].verdict == "ok"


def test_drift_runs_without_power(predictor, fresh):
    found = check_drift(predictor, fresh.drop(columns=["power_w", "energy_mj"]))
    assert set(found) == {"time_ms"}


def test_drift_other_kernel_or_few_rows_is_refused(predictor, fresh):
    with pytest.raises(PredictorError, match="not 'other'"):
        check_drift(predictor, fresh.assign(kernel="other"))
    with pytest.raises(PredictorError, match="at least 5"):
        check_drift(predictor, fresh.iloc[:3])


def test_drift_correlated_errors_count_as_fewer_rows():
    groups = np.repeat(np.arange(10), 20)
    rng = np.random.default_rng(0)
    alike = (rng.random(10) < 0.5)[groups].astype(float)
    apart = rng.random(200) < 0.5
    assert _design_effect(alike, groups) == pytest.approx(20)
    assert _design_effect(apart.astype(float), groups) < 3
    assert _design_effect(alike, np.arange(200)) == 1
    assert _design_effect(alike, np.zeros(200)) == 200
    assert _design_effect(np.ones(200), groups) == 1


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_drift_coverage_seldom_raises_false_alarm(shared):
    """90 % intervals, errors partly shared within a problem."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(12), 15)
    alarms = 0
    for _ in range(300):
        error = np.sqrt(shared) * rng.normal(size=12)[groups]
        error += np.sqrt(1 - shared) * rng.normal(size=len(groups))
        inside = (np.abs(error) < 1.645).astype(float)
        alarms += inside.mean() < _min_coverage(inside, groups)
    assert alarms / 300 < 0.12


def test_drift_of_equal_times():
    """No error is seen in the hold-outs; the interval has a width all the same."""
    sizes = {
        "problem.M": [64, 128, 256, 512] * 5,
        "config.block": np.repeat([8, 16, 32, 48, 64], 4),
    }
    runs = pd.DataFrame(
        {"kernel": "theirs", "device": "d", "status": "ok", "time_ms": 1.0, **sizes}
    )
    drift = check_drift(Predictor(parameters={"rounds": 5}).fit(runs), runs)["time_ms"]
    assert drift.verdict == "ok"
    assert drift.expected_error > 0
