"""What is read of XGBoost's format, and what is left to XGBoost."""

import numpy as np
import pytest

from foretune.models.trees import tree_arrays
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.tree_arrays import TreeArrays


@pytest.fixture
def booster():
    X = np.random.default_rng(0).normal(0, 1, (200, 3)).astype(np.float32)
    return BoostingModel(rounds=4, depth=3).fit(X, X[:, 0] - X[:, 1]).booster_


def changed(monkeypatch, part, change):
    """Let the first tree's array of that name be another one."""
    plain = tree_arrays.read_ubjson

    def read(data):
        document = plain(data)
        tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
        tree[part] = tree[part].copy()
        change(tree[part])
        return document

    monkeypatch.setattr(tree_arrays, "read_ubjson", read)


def test_every_node_has_a_place(booster):
    trees = TreeArrays.from_booster(booster)
    assert trees.depth.max() <= 3
    assert trees.features == 3
    assert (np.diff(trees.roots) > 0).all()
    assert len(trees.left) == len(trees.slot) == len(trees.bound) == len(trees.leaf)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("left_children", 0),  # a circle
        ("left_children", 10**6),
        ("right_children", 0),
        ("split_indices", 3),
        ("split_indices", -1),
        ("split_type", 1),  # a split by category
    ],
)
def test_what_is_no_tree_of_ours_is_left_to_xgboost(booster, monkeypatch, part, number):
    changed(monkeypatch, part, lambda values: values.__setitem__(0, number))
    assert TreeArrays.from_booster(booster) is None


def test_a_linear_booster_is_left_to_xgboost():
    import xgboost

    X = np.arange(20, dtype=np.float32).reshape(-1, 1)
    data = xgboost.DMatrix(X, X[:, 0])
    assert TreeArrays.from_booster(xgboost.train({"booster": "gblinear"}, data, 2)) is None
