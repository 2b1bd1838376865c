"""Saved tree models predict as before; `tests/support/test_files.py` has damaged ones."""

import numpy as np
import pytest

from foretune.models.trees.boosting import BoostingModel


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 100, (n, 5)).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, np.nan_to_num(X[:, 0]) * 2 + np.where(X[:, 1] > 0, 50.0, 0.0)


@pytest.mark.parametrize("parameters", [{}, {"depth": 1, "rounds": 1}])
def test_load_predicts_and_explains_the_same(tmp_path, parameters):
    """It is saved without what training alone reads."""
    xgboost = pytest.importorskip("xgboost")
    X, y = data()
    model = BoostingModel(**parameters).fit(X, y)
    model.save(tmp_path / "model.boosted.npz")
    loaded = BoostingModel.load(tmp_path / "model.boosted.npz")
    np.testing.assert_array_equal(model.predict(X), loaded.predict(X))
    shares = [
        each.booster_.predict(xgboost.DMatrix(X), pred_contribs=True) for each in (model, loaded)
    ]
    np.testing.assert_array_equal(*shares)


def test_load_trees_without_a_split(tmp_path):
    X, _ = data()
    model = BoostingModel(rounds=5).fit(X, np.full(len(X), 3.5))
    model.save(tmp_path / "model.boosted.npz")
    loaded = BoostingModel.load(tmp_path / "model.boosted.npz")
    np.testing.assert_allclose(loaded.predict(X[:2]), [3.5, 3.5], rtol=1e-5)
