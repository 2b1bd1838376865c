"""The compiled walk says of many rows what XGBoost says, bit by bit, whatever the rows hold."""

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.models.trees.boosting import MIN_COMPILED_ROWS, BoostingModel
from foretune.models.trees.tree_arrays import Trees

pytest.importorskip("numba")

from foretune.models.trees.compiled_trees import BLOCK, CompiledTrees


def matrix(rng, rows, columns, gaps):
    """Numbers of all sizes, many of them equal, some missing."""
    X = rng.normal(0, 10.0 ** rng.integers(-2, 4, columns), (rows, columns)).astype(np.float32)
    X[:, ::2] = np.round(X[:, ::2])
    X[rng.random(X.shape) < gaps] = np.nan
    return X


def learned(X, rng, **parameters):
    y = np.nan_to_num(X[:, 0]) + np.where(np.isnan(X[:, -1]), 20.0, 0.0) + rng.normal(0, 3, len(X))
    return BoostingModel(**parameters).fit(X, y)


def asked_of(trees, rng, columns):
    """Values just at the bounds, and beside them."""
    bounds = trees.bound[np.isfinite(trees.bound)]
    if len(bounds) == 0:
        return np.zeros((1, columns), dtype=np.float32)
    X = rng.choice(bounds, (300, columns))
    return np.vstack([X, np.nextafter(X, np.float32(np.inf)), np.nextafter(X, np.float32(-np.inf))])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    columns=st.integers(1, 12),
    depth=st.integers(1, 8),
    rounds=st.integers(1, 12),
    gaps=st.sampled_from([0.0, 0.1, 0.9]),
    rows=st.integers(1, 2 * BLOCK + 1),
)
def test_the_same_as_xgboost(seed, columns, depth, rounds, gaps, rows):
    rng = np.random.default_rng(seed)
    model = learned(matrix(rng, 400, columns, gaps), rng, depth=depth, rounds=rounds)
    trees = Trees.from_booster(model.booster_)
    compiled = CompiledTrees.from_trees(trees)
    X = np.vstack([matrix(rng, rows, columns, 0.2), asked_of(trees, rng, columns)])
    expected = model.booster_.inplace_predict(X, missing=np.nan)
    np.testing.assert_array_equal(compiled.predict(X), expected)
    np.testing.assert_array_equal(compiled.predict(np.asfortranarray(X)), expected)


def test_a_feature_whose_missing_values_go_either_way():
    rng = np.random.default_rng(0)
    model = learned(matrix(rng, 2000, 3, 0.3), rng, rounds=50)
    compiled = CompiledTrees.from_trees(Trees.from_booster(model.booster_))
    assert len(compiled.columns) > len(set(compiled.columns))
    X = np.full((1, 3), np.nan, dtype=np.float32)
    np.testing.assert_array_equal(compiled.predict(X), model.booster_.inplace_predict(X))


def test_probabilities():
    rng = np.random.default_rng(0)
    X = matrix(rng, 1000, 4, 0.1)
    y = (np.nan_to_num(X[:, 0]) > 0).astype(float)
    model = BoostingModel(objective="binary:logistic", rounds=40).fit(X, y)
    said = CompiledTrees.from_trees(Trees.from_booster(model.booster_)).predict(X)
    np.testing.assert_allclose(said, model.booster_.inplace_predict(X), rtol=1e-6)


def test_trees_without_a_split():
    X = matrix(np.random.default_rng(0), 100, 2, 0.0)
    model = BoostingModel(rounds=5).fit(X, np.full(len(X), 3.5))
    said = CompiledTrees.from_trees(Trees.from_booster(model.booster_)).predict(X)
    np.testing.assert_array_equal(said, model.booster_.inplace_predict(X))


def test_no_rows():
    rng = np.random.default_rng(0)
    X = matrix(rng, 100, 2, 0.0)
    trees = Trees.from_booster(learned(X, rng, rounds=2).booster_)
    assert CompiledTrees.from_trees(trees).predict(X[:0]).shape == (0,)


def test_trees_too_deep_are_left_to_xgboost():
    rng = np.random.default_rng(0)
    X = matrix(rng, MIN_COMPILED_ROWS, 3, 0.0)
    model = learned(X, rng, depth=10, rounds=3)
    assert CompiledTrees.from_trees(Trees.from_booster(model.booster_)) is None
    np.testing.assert_array_equal(model.predict(X), model.booster_.inplace_predict(X))


class TestManyRows:
    """Whoever asks for many rows at once gets compiled trees, where there is Numba."""

    @pytest.fixture
    def model(self):
        rng = np.random.default_rng(0)
        self.X = matrix(rng, MIN_COMPILED_ROWS, 3, 0.1)
        return learned(self.X[:500], rng, rounds=5)

    def test_as_xgboost(self, model):
        expected = model.booster_.inplace_predict(self.X)
        np.testing.assert_array_equal(model.predict(self.X), expected)
        np.testing.assert_array_equal(model.predict(self.X[:-1]), expected[:-1])

    def test_compiled(self, model, monkeypatch):
        said = np.zeros(MIN_COMPILED_ROWS)
        monkeypatch.setattr(CompiledTrees, "predict", lambda self, X: said)
        assert model.predict(self.X) is said
        assert model.predict(self.X[:-1]) is not said

    def test_a_copy_says_the_same(self, model):
        before = model.predict(self.X)
        copied = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(copied.predict(self.X), before)

    def test_without_numba(self, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "foretune.models.trees.compiled_trees", None)
        expected = model.booster_.inplace_predict(self.X)
        np.testing.assert_array_equal(model.predict(self.X), expected)
