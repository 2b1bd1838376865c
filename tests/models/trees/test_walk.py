"""A walk says of few rows what XGBoost says, bit by bit where it adds up floats."""

import numpy as np
import pytest

from foretune.models.trees.boosting import MAX_ARRAY_ROWS, BoostingModel, JointModel
from foretune.models.trees.forest import ForestModel
from foretune.models.trees.tree_arrays import TreeArrays


def data(n=400, seed=0, columns=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 100, (n, columns)).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, np.nan_to_num(X[:, 0]) * 2 + np.where(X[:, 1] > 0, 50.0, 0.0)


def walked(model, X):
    return TreeArrays.from_booster(model.booster_).predict(X)[:, 0]


@pytest.mark.parametrize("parameters", [{}, {"depth": 3, "rounds": 80}, {"depth": 1, "rounds": 1}])
def test_they_add_up_to_the_same(parameters):
    X, y = data()
    model = BoostingModel(**parameters).fit(X, y)
    trees = TreeArrays.from_booster(model.booster_)
    assert len(trees.roots) == model.rounds + 1  # the base value
    assert trees.depth.max() <= model.depth
    asked = np.vstack([X, data(100, seed=1)[0], np.full((1, 5), np.nan, dtype=np.float32)])
    expected = model.booster_.inplace_predict(asked)
    np.testing.assert_array_equal(walked(model, asked), expected)


def test_many_rows_at_once_add_up_to_the_same():
    X, y = data()
    walk = JointModel([BoostingModel(rounds=20, seed=s).fit(X, y) for s in (0, 1)]).arrays
    asked = np.nan_to_num(data(50, seed=1)[0])
    np.testing.assert_allclose(walk.sums(asked), walk.predict(asked), rtol=1e-5)


def test_values_at_the_bounds():
    X, y = data()
    model = BoostingModel(rounds=20).fit(X, y)
    trees = TreeArrays.from_booster(model.booster_)
    bounds = trees.bound[np.isfinite(trees.bound)]
    asked = np.repeat(bounds[:200, None], 5, axis=1)
    expected = model.booster_.inplace_predict(asked)
    np.testing.assert_array_equal(walked(model, asked), expected)


def test_probabilities():
    X, y = data()
    model = BoostingModel(objective="binary:logistic").fit(X, (y > 40).astype(float))
    expected = model.booster_.inplace_predict(X)
    np.testing.assert_allclose(walked(model, X), expected, rtol=1e-6)


def test_trees_without_a_split():
    X, _ = data()
    model = BoostingModel(rounds=5).fit(X, np.full(len(X), 3.5))
    assert TreeArrays.from_booster(model.booster_).depth.max() == 0
    np.testing.assert_array_equal(model.predict(X[:1]), model.predict(X)[:1])


def test_an_objective_that_is_not_known_is_left_to_xgboost():
    X, y = data()
    model = BoostingModel(objective="reg:gamma", rounds=10).fit(X, np.abs(y) + 1.0)
    assert TreeArrays.from_booster(model.booster_) is None
    np.testing.assert_array_equal(model.predict(X[:2]), model.predict(X)[:2])
    assert JointModel([model]).arrays is None


def test_a_model_trained_again_forgets_its_trees():
    X, y = data()
    model = BoostingModel(rounds=10).fit(X, y)
    before = model.predict(X[:MAX_ARRAY_ROWS])
    model.fit(X, -y)
    after = model.predict(X[:MAX_ARRAY_ROWS])
    assert (before != after).all()
    np.testing.assert_array_equal(after, model.predict(X)[:MAX_ARRAY_ROWS])


def test_few_rows_and_many(tmp_path):
    X, y = data()
    model = BoostingModel(rounds=30).fit(X, y)
    model.save(tmp_path / "model.ubj.gz")
    loaded = BoostingModel.load(tmp_path / "model.ubj.gz")
    whole = model.predict(X)
    for rows in range(1, MAX_ARRAY_ROWS + 3):
        np.testing.assert_array_equal(model.predict(X[:rows]), whole[:rows])
        np.testing.assert_array_equal(loaded.predict(X[:rows]), whole[:rows])


def test_a_saved_model_explains_itself_the_same_way(tmp_path):
    """It is saved without what training alone reads."""
    xgboost = pytest.importorskip("xgboost")
    X, y = data()
    model = BoostingModel(rounds=30).fit(X, y)
    model.save(tmp_path / "model.ubj.gz")
    shares = [
        each.booster_.predict(xgboost.DMatrix(X), pred_contribs=True)
        for each in (model, BoostingModel.load(tmp_path / "model.ubj.gz"))
    ]
    np.testing.assert_array_equal(*shares)


def test_models_in_one_walk():
    """Of different rounds and depths, and the second has learned from more columns."""
    (narrow, y), (wide, z) = data(), data(seed=1, columns=9)
    models = [
        BoostingModel(rounds=31, depth=6).fit(narrow, y),
        BoostingModel(rounds=7).fit(wide, z),
        BoostingModel(rounds=1, depth=1).fit(narrow, -y),
        BoostingModel(rounds=3).fit(wide, np.full(len(z), 3.5)),
    ]
    together = JointModel(models)
    assert together.arrays is not None
    expected = together.predict(wide)
    assert expected.shape == (len(wide), len(models))
    assert (expected[:, 0] == models[0].predict(wide[:, :5])).all()
    for rows in (1, MAX_ARRAY_ROWS):
        np.testing.assert_array_equal(together.predict(wide[-rows:]), expected[-rows:])
    assert together.predict(wide[:0]).shape == (0, len(models))


def test_models_without_a_common_walk():
    X, y = data()
    known = np.nan_to_num(X)
    models = [BoostingModel(rounds=5).fit(known, y), ForestModel(trees=3).fit(known, y)]
    together = JointModel(models)
    assert together.arrays is None
    expected = np.column_stack([model.predict(known) for model in models])
    np.testing.assert_array_equal(together.predict(known[:1]), expected[:1])
    unlike = BoostingModel(objective="binary:logistic", rounds=5).fit(known, (y > 40) * 1.0)
    assert JointModel([models[0], unlike]).arrays is None
