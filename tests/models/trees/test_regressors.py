"""The registered tree models follow the contract of regressors: `models/trees/`."""

import sys

import numpy as np
import pytest

from foretune.errors import MissingExtra
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.forest import ForestModel
from foretune.models.trees.regressor import ROWS_PER_THREAD, Regressor, parallel_map, threads_for
from foretune.registry import load, registered
from foretune.testing import check_regressor

MODELS = [BoostingModel(rounds=30), ForestModel(trees=10)]


@pytest.fixture(params=MODELS, ids=lambda m: type(m).__name__)
def model(request) -> Regressor:
    return request.param


def data(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 4)).astype(np.float32)
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, np.nan_to_num(X[:, 0]) * 2 + np.where(X[:, 1] > 0, 1.0, 0.0)


def test_every_registered_model_is_tested():
    tested = {type(m) for m in MODELS}
    assert {load("models", name) for name in registered("models")} >= tested
    assert all(issubclass(load("models", name), Regressor) for name in registered("models"))
    assert {load("models", name) for name in ("xgboost", "random_forest")} == tested


def test_regressor_passes_contract(model):
    check_regressor(model)


def test_fit_depends_on_seed_alone(model):
    X, y = data()
    one, same, other = (
        type(model)(**{**model.get_params(), "seed": seed}).fit(X, y).predict(X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_logistic_model_predicts_probability():
    X, y = data()
    model = BoostingModel(rounds=30, objective="binary:logistic").fit(X, (y > 0.5).astype(float))
    predicted = model.predict(X)
    assert ((predicted > 0) & (predicted < 1)).all()
    assert predicted[y > 0.8].mean() > 0.8


def test_threads_for_small_data_is_one():
    assert threads_for(0) == threads_for(ROWS_PER_THREAD) == 1
    assert threads_for(10**9) >= 1


def test_quick_boosted_model_has_third_of_trees_and_three_times_the_rate():
    quick = BoostingModel(rounds=301, rate=0.2, depth=5, seed=3).quick()
    assert quick.get_params() == BoostingModel(100, rate=0.2 * 3, depth=5, seed=3).get_params()
    least = BoostingModel(rounds=1, rate=0.8).quick()
    assert (least.rounds, least.rate) == (1, 1.0)


def test_parallel_map_shares_the_cores(monkeypatch):
    rows = 100 * ROWS_PER_THREAD
    monkeypatch.setattr("foretune.models.trees.regressor.available_cores", lambda: 8)
    assert parallel_map(lambda n: (n, threads_for(rows)), range(3)) == [(0, 2), (1, 2), (2, 2)]
    assert parallel_map(lambda n: (n, threads_for(rows)), [5]) == [(5, 8)]
    assert parallel_map(threads_for, []) == []
    assert threads_for(rows) == 8
    monkeypatch.setattr("foretune.models.trees.regressor.available_cores", lambda: 1)
    assert parallel_map(threads_for, [rows, rows]) == [1, 1]


def test_parallel_map_raises_errors():
    with pytest.raises(ZeroDivisionError):
        parallel_map(lambda n: 1 / n, [1, 0])


def test_missing_xgboost_names_the_extra(tmp_path, monkeypatch):
    BoostingModel(rounds=2).fit(*data()).save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    says = r"needs xgboost.*pip install '.\[learn\]'"
    with pytest.raises(MissingExtra, match=says):
        BoostingModel(rounds=2).fit(*data())
    with pytest.raises(MissingExtra, match=says):
        BoostingModel.load(tmp_path / "model")
