"""XGBoost never reads a saved model that would crash it, or never end."""

import gzip

import numpy as np
import pytest

from foretune.models.trees import saved_trees
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.saved_trees import check_boosted_trees


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 100, (n, 5)).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, np.nan_to_num(X[:, 0]) * 2 + np.where(X[:, 1] > 0, 50.0, 0.0)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("left_children", 0),  # a circle
        ("left_children", 10**6),
        ("right_children", 0),
        ("split_indices", 5),
        ("split_indices", -1),
        ("split_type", 1),  # a split by category
    ],
)
def test_what_is_no_tree_is_refused(monkeypatch, part, number):
    raw = bytes(BoostingModel(rounds=4, depth=3).fit(*data()).booster_.save_raw("ubj"))
    check_boosted_trees(raw)
    plain = saved_trees.read_ubjson

    def read(data):
        document = plain(data)
        tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
        tree[part] = tree[part].copy()
        tree[part][0] = number
        return document

    monkeypatch.setattr(saved_trees, "read_ubjson", read)
    with pytest.raises(ValueError, match="a tree"):
        check_boosted_trees(raw)


def test_a_linear_booster_is_refused(tmp_path):
    import xgboost

    X = np.arange(20, dtype=np.float32).reshape(-1, 1)
    booster = xgboost.train({"booster": "gblinear"}, xgboost.DMatrix(X, X[:, 0]), 2)
    file = tmp_path / "model.ubj.gz"
    file.write_bytes(gzip.compress(bytes(booster.save_raw("ubj"))))
    with pytest.raises((LookupError, ValueError)):
        BoostingModel.load(file)


@pytest.mark.parametrize("parameters", [{}, {"depth": 1, "rounds": 1}])
def test_a_saved_model_predicts_and_explains_itself_the_same_way(tmp_path, parameters):
    """It is saved without what training alone reads."""
    xgboost = pytest.importorskip("xgboost")
    X, y = data()
    model = BoostingModel(**parameters).fit(X, y)
    model.save(tmp_path / "model.ubj.gz")
    loaded = BoostingModel.load(tmp_path / "model.ubj.gz")
    np.testing.assert_array_equal(model.predict(X), loaded.predict(X))
    shares = [
        each.booster_.predict(xgboost.DMatrix(X), pred_contribs=True) for each in (model, loaded)
    ]
    np.testing.assert_array_equal(*shares)


def test_trees_without_a_split(tmp_path):
    X, _ = data()
    model = BoostingModel(rounds=5).fit(X, np.full(len(X), 3.5))
    model.save(tmp_path / "model.ubj.gz")
    loaded = BoostingModel.load(tmp_path / "model.ubj.gz")
    np.testing.assert_allclose(loaded.predict(X[:2]), [3.5, 3.5], rtol=1e-5)
