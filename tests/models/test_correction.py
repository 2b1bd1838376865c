"""The correction of one target on one device: `models/correction.py`."""

import numpy as np
import pandas as pd
import pytest
from matrix_products import HERE, THERE, products

from foretune.features.arrays import Rows
from foretune.models import Predictor
from foretune.models.conformal import conformal_quantile
from foretune.models.correction import Correction, CorrectionFeatures
from foretune.models.feature_process import WORK_FEATURES
from foretune.models.target_model import TargetPrediction

SLOWER = 1.6


@pytest.fixture(scope="module")
def predictor():
    return Predictor(parameters={"rounds": 60, "rate": 0.2}).fit(products(HERE, 400, 0))


def error(predictor, runs):
    return np.log(predictor.predict(runs)["time_ms"] / runs["time_ms"]).abs().median()


@pytest.mark.parametrize("n", [10, 60])
def test_calibrate_few_runs_find_the_scale(predictor, n):
    there = products(THERE, 300, 5, SLOWER)
    before = error(predictor, there)
    calibrated = predictor.calibrate(products(THERE, n, 7, SLOWER))
    assert error(calibrated, there) < 0.6 * before
    assert error(predictor, there) == before, "the predictor itself is unchanged"


def test_calibrate_ten_runs_do_no_harm(predictor):
    there = products(THERE, 300, 5)
    calibrated = predictor.calibrate(products(THERE, 10, 7))
    assert error(calibrated, there) < 1.2 * error(predictor, there)


def test_calibrate_learns_memory_bound_rows(predictor):
    """Half the bandwidth shows in rows that memory binds, and in no others."""
    there = products(THERE, 300, 5)
    bound = 2.0 ** (there["problem.M"].to_numpy() < 256)
    measured = products(THERE, 64, 7)
    measured["time_ms"] *= 2.0 ** (measured["problem.M"].to_numpy() < 256)
    calibrated = predictor.calibrate(measured)
    assert error(calibrated, there.assign(time_ms=there["time_ms"] * bound)) < 0.12


def test_work_features_exist_in_predictors(predictor):
    assert set(WORK_FEATURES) <= set(predictor.features_.columns_)


def evidence_of(n):
    predicted = TargetPrediction(
        log_value=np.zeros(n), half_width=np.zeros(n), expert_differences=np.full((n, 1), np.nan)
    )
    return CorrectionFeatures.from_prediction(["log2_flops", "fill"], np.zeros((n, 2)), predicted)


def test_intervals_hold_for_nine_of_ten():
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(
        {"problem.n": rng.uniform(1, 100, 400), "config.x": rng.integers(1, 5, 400)}
    )
    errors = 0.3 * np.sin(runs["problem.n"].to_numpy() / 20) + rng.normal(0, 0.1, 400)
    correction = Correction.fit(runs.head(150), evidence_of(150), errors[:150])
    mean, width = correction.predict(runs.tail(250), evidence_of(250))
    assert 0.84 <= (np.abs(mean - errors[150:]) <= width).mean() <= 0.97
    assert np.std(errors[150:] - mean) < 0.15
    assert len(correction.predict(runs.head(0), evidence_of(0))[0]) == 0


def test_intervals_hold_where_scales_were_found_in_noise():
    """With many inputs some seem to matter in the runs that scales are found on."""
    rows = 40
    inputs = 15
    held = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(rows + 500, inputs))
        noise = rng.normal(0.2, 0.3, rows + 500)
        runs = pd.DataFrame(points, columns=[f"config.{i}" for i in range(inputs)])
        correction = Correction.fit(runs.head(rows), evidence_of(rows), noise[:rows])
        mean, width = correction.predict(runs.tail(500), evidence_of(500))
        naive = width / correction.interval_factor * naive_widening(correction.posterior)
        misses = np.abs(mean - noise[rows:])
        held.append(((misses <= width).mean(), (misses <= naive).mean()))
    by_halves, in_sight = np.mean(held, axis=0)
    assert in_sight < 0.86 < by_halves < 0.97


def naive_widening(posterior):
    """The factor for nine of ten runs that are left out, by scales that had them in sight."""
    misses, deviations = posterior.leave_one_out()
    return conformal_quantile(np.abs(misses) / deviations)


def test_runs_that_differ_in_nothing_have_their_mean_error():
    runs = pd.DataFrame({"problem.n": np.full(6, 8.0)})
    correction = Correction.fit(runs, evidence_of(6), np.full(6, 0.5))
    mean, width = correction.predict(runs, evidence_of(6))
    assert np.allclose(mean, 0.5, atol=0.05)
    assert (width > 0).all()


def test_correction_follows_jumps_and_loads_as_saved(tmp_path):
    """A size's last bits decide: a smooth process cannot know, trees can."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(1000, 3))
    runs = pd.DataFrame(points, columns=[f"config.{i}" for i in range(3)])
    jumps = np.where(np.floor(4.0 * points[:, 0]) % 2, 0.4, -0.4) + rng.normal(0, 0.02, 1000)
    correction = Correction.fit(runs.head(500), evidence_of(500), jumps[:500])
    assert correction.tree_share > 0
    mean, width = correction.predict(runs.tail(500), evidence_of(500))
    smooth, _ = correction.posterior.predict(
        correction.similarity.points(Rows(runs.tail(500)), evidence_of(500))[0]
    )
    missed, missed_by_process = (np.abs(said - jumps[500:]) for said in (mean, smooth))
    assert missed.mean() < 0.9 * missed_by_process.mean()
    assert (missed <= width).mean() > 0.85
    correction.save(tmp_path, "c")
    loaded, _ = Correction.load(tmp_path, "c").predict(runs.tail(500), evidence_of(500))
    np.testing.assert_allclose(loaded, mean, rtol=1e-6)


def test_noise_gives_trees_no_share():
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(rng.normal(size=(100, 3)), columns=[f"config.{i}" for i in range(3)])
    assert Correction.fit(runs, evidence_of(100), rng.normal(0, 0.3, 100)).tree_share == 0.0
