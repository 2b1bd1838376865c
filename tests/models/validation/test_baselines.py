"""Baselines that predictors are compared with: `models/validation/baselines.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.features.roofline import row_roofline_ms
from foretune.models.validation.baselines import BASELINES, predict_baselines


@pytest.fixture
def runs(toy_runs):
    return toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)


def predict(name, known, test, family=None, target="time_ms"):
    return predict_baselines(target, family, known, test, [name])[name]


def theirs(**columns):
    """Runs of a kernel nobody knows: ``time = x`` at every problem."""
    fixed = {"kernel": "theirs", "device": "d", "status": "ok"}
    return pd.DataFrame({**fixed, **columns})


GRID = theirs(
    **{
        "problem.N": np.repeat([1.0, 2.0, 8.0], 4),
        "config.x": np.tile([1.0, 2.0, 4.0, 8.0], 3),
        "time_ms": np.tile([1.0, 2.0, 4.0, 8.0], 3),
    }
)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("target", ["time_ms", "power_w"])
def test_predict_baselines_one_value_per_row(name, target, matmul, runs):
    predicted = predict(name, runs, runs, matmul, target)
    assert predicted.shape == (len(runs),)
    if (name, target) == ("roofline", "power_w"):
        assert np.isnan(predicted).all()  # it knows no power
    else:
        assert (predicted > 0).all()


@pytest.mark.parametrize("name", ["problem median", "nearest neighbor"])
def test_predict_baselines_without_family(name):
    assert (predict(name, GRID, GRID) > 0).all()


@pytest.mark.parametrize("name", ["roofline", "calibrated roofline"])
def test_roofline_without_family_is_missing(name):
    assert np.isnan(predict(name, GRID, GRID)).all()


def test_roofline_is_the_bound(matmul, runs):
    predicted = predict("roofline", runs, runs, matmul)
    np.testing.assert_array_equal(predicted, row_roofline_ms(matmul, runs))


def test_calibrated_roofline_has_median_error_zero(matmul, runs):
    ratio = predict("calibrated roofline", runs, runs, matmul) / runs["time_ms"]
    assert ratio.median() == pytest.approx(1.0)


def test_problem_median():
    asked = GRID.head(2).assign(**{"problem.N": [2.0, 3.0]})
    median = np.sqrt(8.0)  # of the logarithms of 1, 2, 4 and 8
    np.testing.assert_allclose(
        predict("problem median", GRID, asked), median
    )  # nobody ran 3: that of all
    elsewhere = GRID.assign(time_ms=GRID["time_ms"] * np.where(GRID["problem.N"] == 8.0, 100, 1))
    predicted = predict("problem median", elsewhere, GRID.iloc[[0, -1]])
    np.testing.assert_allclose(predicted, [median, 100 * median])


def test_problem_median_with_gap_in_problem():
    gaps = GRID.assign(**{"problem.N": np.repeat([1.0, np.nan, 8.0], 4)})
    gaps.loc[4:7, "time_ms"] *= 10
    predicted = predict("problem median", gaps, gaps)
    np.testing.assert_allclose(predicted[4:8], 10 * np.sqrt(8.0))


def test_nearest_neighbor():
    asked = GRID.head(2).assign(**{"config.x": [7.0, 1.1]})
    np.testing.assert_allclose(predict("nearest neighbor", GRID, asked), [8.0, 1.0])
    np.testing.assert_allclose(predict("nearest neighbor", GRID, GRID), GRID["time_ms"])


def test_grid_interpolation():
    grid = GRID.rename(columns={"config.x": "problem.x"})
    """A law straight in octaves is met between its runs; where none is near, the middle."""
    asked = grid.head(3).assign(**{"problem.N": [1.0, 2.0, 4.0], "problem.x": [3.0, 3.0, 2.0]})
    np.testing.assert_allclose(
        predict("grid interpolation", grid, asked), [3.0, 3.0, 2.0], rtol=1e-5
    )
    alone = asked.assign(device="elsewhere")
    np.testing.assert_allclose(
        predict("grid interpolation", grid, alone), np.exp(np.log(grid["time_ms"]).median())
    )
