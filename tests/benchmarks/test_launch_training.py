"""Orders of launches that learn from other kernels."""

import numpy as np
import pytest
from launch_training import (
    MAX_LOG_SLOWDOWN,
    MeasuredProblem,
    fit_orders,
    tree_nodes,
)

from foretune.features.launches import MAX_LOG_RATIO, LaunchFeatures
from foretune.tune.triton.launch_order import ANALYTIC, RANKING, SIZES, LaunchOrders


def problems(kernel, count, seed, slope=1.0, candidates=12):
    """Times that follow the second column; a law that knows a third of it; one that does not fit.

    The plain sizes are the first two columns.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = rng.random((candidates, 3)).astype(np.float32)
        cost = slope * values[:, 1].astype(float)
        law = 0.3 * (cost - cost.min())
        fits = np.arange(candidates) > 0
        time_ms = np.where(fits, np.exp(cost + 0.02 * rng.standard_normal(candidates)), np.inf)
        columns = LaunchFeatures(values, values[:, :2], np.minimum(law, MAX_LOG_RATIO), fits)
        found.append(MeasuredProblem(kernel, columns, time_ms))
    return found


@pytest.fixture(scope="module")
def orders():
    pytest.importorskip("xgboost")
    return fit_orders([*problems("a", 40, 0), *problems("b", 40, 1)])


@pytest.mark.parametrize("name", [RANKING, SIZES, ANALYTIC])
def test_fit_orders_order_a_kernel_they_have_never_seen(orders, name):
    kept = []
    for p in problems("c", 30, 2, slope=1.5):
        ratios = orders.log_ratios(p.columns)[name]
        pick = np.flatnonzero(p.columns.fits)[np.argmin(ratios[p.columns.fits])]
        kept.append(p.relative_speed[pick])
    assert np.mean(kept) > 0.95


@pytest.mark.parametrize("name", [RANKING, SIZES, ANALYTIC])
def test_fit_orders_ratios_are_those_of_times(orders, name):
    expected = []
    seen = []
    for p in problems("c", 30, 3):
        runs = p.columns.fits
        expected += orders.log_ratios(p.columns)[name][runs].tolist()
        seen += p.log_slowdown[runs].tolist()
    assert np.mean(np.abs(np.array(expected) - seen)) < 0.1
    assert max(expected) <= MAX_LOG_SLOWDOWN + 0.1


def test_fit_orders_one_kernel_is_enough():
    pytest.importorskip("xgboost")
    for curve in fit_orders(problems("a", 30, 0)).curves.values():
        assert np.diff(curve.ratios).min() > 0


def test_saved_orders_say_the_same(orders, tmp_path):
    orders.save(tmp_path / "orders.npz")
    loaded = LaunchOrders.load(tmp_path / "orders.npz")
    (p,) = problems("c", 1, 4)
    before = orders.log_ratios(p.columns)
    for name, log_ratios in loaded.log_ratios(p.columns).items():
        np.testing.assert_array_equal(log_ratios, before[name])


def test_scores_are_those_of_xgboost():
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(0, 1, (300, 4)).astype(np.float32)
    data = xgboost.DMatrix(X, X[:, 0] * X[:, 1])
    booster = xgboost.train({"max_depth": 5, "base_score": 0.0}, data, 20)
    bounds = np.repeat(tree_nodes(booster, 5).bound[:50, None], 4, axis=1)  # values at the bounds
    asked = np.concatenate([X, np.nan_to_num(bounds)])
    expected = booster.inplace_predict(asked)
    np.testing.assert_allclose(tree_nodes(booster, 5).scores(asked), expected, atol=1e-5)
