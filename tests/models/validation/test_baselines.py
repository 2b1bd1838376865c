"""Baselines: each says what its name promises, and the calibrated roofline where it cannot."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from foretune.features.roofline import row_roofline_ms
from foretune.models.validation.baselines import BASELINES


@pytest.fixture
def runs(toy_runs):
    return toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)


def baseline(name, matmul, target="time_ms"):
    return BASELINES[name](target, matmul)


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
def test_one_value_per_row(name, target, matmul, runs):
    fitted = baseline(name, matmul, target).fit(runs)
    predicted = fitted.predict(runs)
    assert predicted.shape == (len(runs),)
    if (name, target) == ("roofline", "power_w"):
        assert np.isnan(predicted).all()  # it knows no power
    else:
        assert (predicted > 0).all()


@pytest.mark.parametrize("name", BASELINES)
def test_they_are_estimators(name, matmul, runs):
    copy = clone(baseline(name, matmul))
    assert copy.get_params()["family"].name == "matmul"
    assert copy.fit(runs) is copy
    np.testing.assert_array_equal(
        copy.predict(runs), baseline(name, matmul).fit(runs).predict(runs)
    )


@pytest.mark.parametrize("name", ["problem median", "nearest neighbor"])
def test_without_a_family_too(name):
    fitted = BASELINES[name]().fit(GRID)
    assert (fitted.predict(GRID) > 0).all()


@pytest.mark.parametrize("name", ["roofline", "calibrated roofline"])
def test_without_a_family_there_is_no_roofline(name):
    assert np.isnan(BASELINES[name]().fit(GRID).predict(GRID)).all()


def test_the_roofline_is_the_bound(matmul, runs):
    fitted = baseline("roofline", matmul).fit(runs)
    np.testing.assert_array_equal(fitted.predict(runs), row_roofline_ms(matmul, runs))


def test_the_calibrated_roofline_is_right_in_the_middle(matmul, runs):
    ratio = baseline("calibrated roofline", matmul).fit(runs).predict(runs) / runs["time_ms"]
    assert ratio.median() == pytest.approx(1.0)


def test_the_median_of_a_problem():
    fitted = BASELINES["problem median"]().fit(GRID)
    asked = GRID.head(2).assign(**{"problem.N": [2.0, 3.0]})
    median = np.sqrt(8.0)  # of the logarithms of 1, 2, 4 and 8
    np.testing.assert_allclose(fitted.predict(asked), median)  # nobody ran 3: that of all
    elsewhere = GRID.assign(time_ms=GRID["time_ms"] * np.where(GRID["problem.N"] == 8.0, 100, 1))
    fitted = BASELINES["problem median"]().fit(elsewhere)
    predicted = fitted.predict(GRID.iloc[[0, -1]])
    np.testing.assert_allclose(predicted, [median, 100 * median])


def test_a_problem_with_a_gap_has_a_median():
    gaps = GRID.assign(**{"problem.N": np.repeat([1.0, np.nan, 8.0], 4)})
    gaps.loc[4:7, "time_ms"] *= 10
    predicted = BASELINES["problem median"]().fit(gaps).predict(gaps)
    np.testing.assert_allclose(predicted[4:8], 10 * np.sqrt(8.0))


def test_the_nearest_neighbour():
    fitted = BASELINES["nearest neighbor"]().fit(GRID)
    asked = GRID.head(2).assign(**{"config.x": [7.0, 1.1]})
    np.testing.assert_allclose(fitted.predict(asked), [8.0, 1.0])
    np.testing.assert_allclose(fitted.predict(GRID), GRID["time_ms"])


def test_interpolation_on_a_grid():
    grid = GRID.rename(columns={"config.x": "problem.x"})
    """A law straight in octaves is met between its runs; where none is near, the middle."""
    fitted = BASELINES["grid interpolation"]().fit(grid)
    asked = grid.head(3).assign(**{"problem.N": [1.0, 2.0, 4.0], "problem.x": [3.0, 3.0, 2.0]})
    np.testing.assert_allclose(fitted.predict(asked), [3.0, 3.0, 2.0], rtol=1e-5)
    alone = asked.assign(device="elsewhere")
    np.testing.assert_allclose(fitted.predict(alone), np.exp(fitted.center_))
