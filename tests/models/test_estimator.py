"""The predictor among scikit-learn's tools: clones, pipelines, parameter search."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline

from foretune.errors import UnknownName
from foretune.features.featureset import FeatureSet
from foretune.models import Predictor
from foretune.models.trees.boosting import BoostingModel

QUICK = {"rounds": 30, "rate": 0.2}


@pytest.fixture(scope="module")
def runs():
    """A kernel that nobody knows: a law of two parameters."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 40, (2, 150))
    modes = rng.choice(["a", "b"], 150)
    table = pd.DataFrame({"config.x": x, "config.y": y, "config.mode": modes, "problem.n": x % 5})
    time_ms = 0.1 * (x + 1.0) * np.where(modes == "a", 2.0, 1.0)
    fixed = {"kernel": "theirs", "device": "d", "status": "ok"}
    return table.assign(**fixed, time_ms=time_ms).drop_duplicates(["config.x", "config.y"])


@pytest.fixture(scope="module")
def fitted(runs):
    return Predictor(parameters=QUICK).fit(runs)


def test_clone_learns_the_same(fitted, runs):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.parameters is not fitted.parameters
    assert not hasattr(copy, "targets_")
    pd.testing.assert_frame_equal(copy.fit(runs).predict(runs), fitted.predict(runs))


def test_parameters_reach_the_trees(runs):
    few, many = (Predictor(parameters={**QUICK, "rounds": n}).fit(runs) for n in (1, 30))
    assert few.make_regressor().rounds == 1
    tree_of = [p.targets_["time_ms"].experts.tree for p in (few, many)]
    X = few.features_.matrix(runs)
    truth = np.log(runs["time_ms"]) - few.targets_["time_ms"].scale.log_unit(few.features_, runs)
    off = [np.abs(tree.predict(X) - truth).mean() for tree in tree_of]
    assert off[1] < off[0]
    seeded = Predictor(seed=3, parameters={"seed": 7})
    assert seeded.make_regressor().seed == 7


def test_parameters_unknown_to_the_model_are_refused(runs):
    with pytest.raises(UnknownName, match=r"parameter of xgboost 'round': did you mean 'rounds'"):
        Predictor(parameters={"round": 3}).fit(runs)
    with pytest.raises(UnknownName, match="unknown model 'xgbost'"):
        Predictor("xgbost").fit(runs)


def test_parameters_are_saved(fitted, runs, tmp_path):
    fitted.save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    assert loaded.parameters == QUICK
    assert clone(loaded).fit(runs).make_regressor().rounds == 30


def test_score_is_r2_of_logarithms(fitted, runs):
    expected = r2_score(np.log(runs["time_ms"]), np.log(fitted.predict(runs)["time_ms"]))
    assert fitted.score(runs) == pytest.approx(expected)
    with_failures = pd.concat([runs, runs.head(3).assign(status="timeout", time_ms=np.nan)])
    with_failures.loc[with_failures["status"] != "ok", "config.y"] = 99
    assert fitted.score(with_failures) == pytest.approx(expected)  # these teach nothing


def test_score_of_constant_target(runs):
    constant = runs.assign(time_ms=0.25)
    assert Predictor(parameters=QUICK).fit(constant).score(constant) in (0.0, 1.0)


def test_predictor_in_a_pipeline(fitted, runs):
    pipeline = Pipeline([("predictor", Predictor(parameters=QUICK))]).fit(runs)
    pd.testing.assert_frame_equal(pipeline.predict(runs), fitted.predict(runs))
    assert pipeline.score(runs) == fitted.score(runs)


def test_features_in_a_pipeline(runs):
    pipeline = make_pipeline(FeatureSet(), BoostingModel(**QUICK))
    pipeline.fit(runs, np.log(runs["time_ms"]))
    assert pipeline.score(runs, np.log(runs["time_ms"])) > 0.9
    names = pipeline[:-1].get_feature_names_out()
    assert {"config.x", "config.mode=a", "alignment.n"} <= set(names)


def test_grid_search_over_parameters(runs):
    grid = {"parameters": [{"rounds": 1}, QUICK], "model": ["xgboost"]}
    search = GridSearchCV(Predictor(), grid, cv=2, error_score="raise").fit(runs)
    tried = [params["parameters"] for params in search.cv_results_["params"]]
    assert tried == grid["parameters"]
    assert search.best_score_ > 0.8
    assert len(search.best_estimator_.predict(runs)) == len(runs)


def test_cross_validation_by_scikit_learn(runs):
    scores = cross_val_score(Predictor(parameters=QUICK), runs, cv=3, error_score="raise")
    assert scores.shape == (3,)
    assert (scores > 0.5).all()
