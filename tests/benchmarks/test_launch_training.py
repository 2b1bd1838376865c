"""An order of launches that learns from other kernels."""

import numpy as np
import pytest
from launch_training import (
    MAX_LOG_SLOWDOWN,
    MeasuredProblem,
    fit_order,
    ranking_trees,
    save_order,
)

from foretune.features.launches import MAX_LOG_RATIO, LaunchFeatures
from foretune.tune.triton.launch_order import LaunchOrder


def problems(kernel, count, seed, slope=1.0, candidates=12):
    """Times that follow the second column; a law that knows half of it; one that does not fit."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = rng.random((candidates, 3)).astype(np.float32)
        cost = slope * values[:, 1].astype(float)
        law = 0.3 * (cost - cost.min())
        fits = np.arange(candidates) > 0
        time_ms = np.where(fits, np.exp(cost + 0.02 * rng.standard_normal(candidates)), np.inf)
        columns = LaunchFeatures(values, np.minimum(law, MAX_LOG_RATIO), fits)
        found.append(MeasuredProblem(kernel, columns, time_ms))
    return found


@pytest.fixture(scope="module")
def order():
    pytest.importorskip("xgboost")
    return fit_order([*problems("a", 40, 0), *problems("b", 40, 1)])


def test_it_orders_a_kernel_it_has_never_seen(order):
    kept = []
    for p in problems("c", 30, 2, slope=1.5):
        ratios = order.log_ratios(p.columns)
        pick = np.flatnonzero(p.columns.fits)[np.argmin(ratios[p.columns.fits])]
        kept.append(p.relative_speed[pick])
    assert np.mean(kept) > 0.95


def test_its_ratios_are_those_of_times(order):
    expected, seen = [], []
    for p in problems("c", 30, 3):
        runs = p.columns.fits
        expected += order.log_ratios(p.columns)[runs].tolist()
        seen += p.log_slowdown[runs].tolist()
    assert np.mean(np.abs(np.array(expected) - seen)) < 0.1
    assert max(expected) <= MAX_LOG_SLOWDOWN + 0.1


def test_one_kernel_is_enough_to_learn_from():
    pytest.importorskip("xgboost")
    assert np.diff(fit_order(problems("a", 30, 0)).ratios).min() > 0


def test_saved_it_says_the_same(order, tmp_path):
    save_order(order, tmp_path / "order.npz")
    again = LaunchOrder.load(tmp_path / "order.npz")
    (p,) = problems("c", 1, 4)
    np.testing.assert_array_equal(again.log_ratios(p.columns), order.log_ratios(p.columns))


def test_scores_are_those_of_xgboost():
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(0, 1, (300, 4)).astype(np.float32)
    data = xgboost.DMatrix(X, X[:, 0] * X[:, 1])
    booster = xgboost.train({"max_depth": 5, "base_score": 0.0}, data, 20)
    bounds = np.repeat(ranking_trees(booster).bound[:50, None], 4, axis=1)  # values at the bounds
    asked = np.concatenate([X, np.nan_to_num(bounds)])
    expected = booster.inplace_predict(asked)
    np.testing.assert_allclose(ranking_trees(booster).scores(asked), expected, atol=1e-5)
