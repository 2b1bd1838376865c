"""Boosted trees as small arrays."""

import numpy as np
import pytest

from foretune.plan.operators.compact_trees import CompactTrees


def test_compact_trees_predict_as_xgboost():
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    y = np.abs(X[:, 0]) + X[:, 1]
    X[rng.random(X.shape) < 0.1] = np.nan
    parameters = {"max_depth": 5, "max_bin": 32, "tree_method": "hist", "nthread": 1}
    booster = xgboost.train(parameters, xgboost.QuantileDMatrix(X, y, max_bin=32), 30)

    trees = CompactTrees.from_booster(booster)
    again = CompactTrees.from_arrays(trees.to_arrays())

    # Leaves have 11 bits of precision, and 30 of them are added.
    np.testing.assert_allclose(again.predict(X), booster.inplace_predict(X), atol=0.01)


def test_compact_trees_without_a_split_predict_a_constant():
    xgboost = pytest.importorskip("xgboost")
    X = np.zeros((20, 2), dtype=np.float32)
    booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(X, np.full(20, 3.0)), 5)

    assert CompactTrees.from_booster(booster).predict(X) == pytest.approx(3.0, abs=0.01)
