"""Calibration: what is known of devices that a predictor was calibrated for, and of no others."""

import numpy as np
import pandas as pd
import pytest
from matrix_products import HERE, THERE, products

from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.models.validation.drift import check_drift
from foretune.models.validation.evaluation import count_seen_before

SLOWER = 1.6


@pytest.fixture(scope="module")
def predictor():
    return Predictor(parameters={"rounds": 60, "rate": 0.2}).fit(products(HERE, 400, 0))


def test_calibrate_leaves_other_devices_unchanged(predictor):
    calibrated = predictor.calibrate(products(THERE, 30, 7, SLOWER))
    rows = products(HERE, 20, 9)
    rows["problem.M"] *= 2.0 ** np.arange(20)
    larger = products(THERE, 30, 7, SLOWER)
    larger[["problem.M", "time_ms"]] *= 2.0**20  # which says nothing of other devices
    for with_runs in (calibrated, predictor.calibrate(larger)):
        pd.testing.assert_frame_equal(with_runs.predict(rows), predictor.predict(rows))


def test_load_calibrated_predicts_as_the_saved_one(predictor, tmp_path):
    calibrated = predictor.calibrate(products(THERE, 60, 7, SLOWER))
    calibrated.save(tmp_path / "p")
    rows = products(THERE, 20, 9)
    loaded = Predictor.load(tmp_path / "p")
    pd.testing.assert_frame_equal(loaded.predict(rows), calibrated.predict(rows), rtol=1e-6)
    assert loaded.training_["calibrated"] == [THERE]


def test_too_few_runs(predictor):
    with pytest.raises(PredictorError, match=f"{THERE} has fewer than 5"):
        predictor.calibrate(products(THERE, 4, 7))


def test_calibrate_puts_device_inside_the_range(predictor):
    rows = products(THERE, 20, 9)
    assert (predictor.predict(rows)["outside"] > 0).all()
    calibrated = predictor.calibrate(products(THERE, 200, 7))
    assert (calibrated.predict(rows)["outside"] == 0).all()


def test_calibrate_again_keeps_earlier_runs(predictor, tmp_path):
    """Two small calibrations are one of all runs, saved in between or not."""
    runs = products(THERE, 60, 7, SLOWER)
    there = products(THERE, 300, 5, SLOWER)
    first = predictor.calibrate(runs[:30])
    first.save(tmp_path / "first")
    both = predictor.calibrate(runs).predict(there)
    for before in (first, Predictor.load(tmp_path / "first")):
        pd.testing.assert_frame_equal(before.calibrate(runs[30:]).predict(there), both, rtol=1e-6)


def test_calibrate_adds_another_device(predictor):
    there = products(THERE, 30, 7, SLOWER)
    other = products("NVIDIA A100-SXM4-80GB", 30, 8, 0.7)
    calibrated = predictor.calibrate(there).calibrate(other)
    assert calibrated.training_["calibrated"] == sorted([THERE, "NVIDIA A100-SXM4-80GB"])
    assert (calibrated.predict(pd.concat([there, other]))["outside"] == 0).all()
    assert count_seen_before(calibrated, there) == len(there)
    assert len(calibrated.measured_runs()) == 400 + 30 + 30


def test_calibrate_ignores_parameters_of_other_devices(predictor):
    other = products("NVIDIA A100-SXM4-80GB", 30, 8, 0.7).assign(**{"config.warps": [4, 8] * 15})
    there = products(THERE, 30, 7, SLOWER)
    predicted = predictor.calibrate(other).calibrate(there).predict(there)
    pd.testing.assert_frame_equal(predicted, predictor.calibrate(there).predict(there))


def test_calibrate_power_alone_keeps_device_outside(predictor):
    both = products(HERE, 100, 0)
    watts = Predictor(parameters={"rounds": 20}).fit(
        both.assign(power_w=100.0 + both["problem.M"] / 100)
    )
    there = products(THERE, 30, 7)
    calibrated = watts.calibrate(there.assign(power_w=300.0, time_ms=np.nan))
    assert calibrated.calibration_.devices == [THERE]
    assert (calibrated.predict(there)["outside"] > 0).all()


def test_drift_uses_calibration(predictor):
    runs = products(THERE, 60, 7, SLOWER)
    slower = runs.assign(time_ms=runs["time_ms"] * 1.5)
    found = check_drift(predictor.calibrate(runs), slower)["time_ms"]
    assert found.repeats > 50
    assert found.change == pytest.approx(0.5, abs=0.02)


def test_calibrate_other_kernel_or_few_runs_is_refused(predictor):
    there = products(THERE, 30, 7)
    with pytest.raises(PredictorError, match="knows 'gemm', not 'other'"):
        predictor.calibrate(there.assign(kernel="other"))
    few = products("NVIDIA A100-SXM4-80GB", 3, 7)
    with pytest.raises(PredictorError, match="A100-SXM4-80GB has fewer than 5"):
        predictor.calibrate(pd.concat([there, few], ignore_index=True))


def test_calibrate_other_unit_is_refused(predictor):
    runs = products(THERE, 10, 7)
    with pytest.raises(
        PredictorError, match=r"differ from the prediction by a factor of over.*check the unit"
    ):
        predictor.calibrate(runs.assign(time_ms=runs["time_ms"] * 1000))


def test_log_spread_of_calibrated_device_is_that_of_correction(predictor):
    noisy = products(THERE, 60, 7)
    noisy["time_ms"] *= np.exp(np.random.default_rng(0).normal(0, 0.4, 60))
    calibrated = predictor.calibrate(noisy)
    assert calibrated.log_spread(device=HERE) == predictor.log_spread()
    assert 0.2 < calibrated.log_spread(device=THERE) < 0.8
