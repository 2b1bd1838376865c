"""Contributions: they add up to what is predicted, and say what the toy law says."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import PredictorError
from foretune.features.candidates import rows_of
from foretune.models import Predictor
from foretune.models.explanation import (
    BASE,
    FEATURE_GROUPS,
    UNIT,
    compare,
    contributions,
    feature_groups,
    importance,
    is_explainable,
)
from foretune.models.trees.boosting import BoostingModel


def tree_log(predictor, rows, target="time_ms"):
    X = predictor.features_.transform(rows).to_numpy()
    return predictor.targets_[target].experts.tree.predict(X)


def unit_log(predictor, rows):
    return predictor.targets_["time_ms"].scale.log_unit(predictor.features_, rows)


@pytest.mark.parametrize("target", ["time_ms", "power_w"])
def test_contributions_sum_to_prediction_of_trees(predictor, runs, target):
    rows = runs.iloc[::3]
    shares = contributions(predictor, rows, target)
    assert list(shares.columns) == [*predictor.features_.columns_, BASE]
    assert shares.index.equals(rows.index)
    assert shares[BASE].nunique() == 1
    np.testing.assert_allclose(shares.sum(axis=1), tree_log(predictor, rows, target), atol=1e-4)


def test_contributions_equal_shapley_values():
    """Of y = a + b + a·b on a full grid, where expectations over the data are easy to write."""
    a, b = np.meshgrid([0.0, 1.0], [0.0, 1.0])
    X = np.tile(np.column_stack([a.ravel(), b.ravel()]), (200, 1)).astype(np.float32)
    y = X[:, 0] + X[:, 1] + X[:, 0] * X[:, 1]
    model = BoostingModel(
        rounds=200, depth=2, rate=0.3, rows=1.0, columns=1.0, min_child_weight=0.0
    )
    model.fit(X, y)
    import xgboost

    point = xgboost.DMatrix(np.array([[1.0, 0.0]], dtype=np.float32))
    a_share, b_share, base = model.booster_.predict(point, pred_contribs=True)[0]
    # Alone and last: (E[y|a=1] − E[y] + y(1,0) − E[y|b=0]) / 2, and the same for b.
    assert (a_share, b_share, base) == pytest.approx(
        ((2.0 - 1.25 + 1.0 - 0.5) / 2, (0.5 - 1.25 + 1.0 - 2.0) / 2, 1.25), abs=1e-2
    )


def test_contributions_of_no_rows(predictor, runs):
    shares = contributions(predictor, runs.iloc[:0])
    assert shares.empty
    assert list(shares.columns) == [*predictor.features_.columns_, BASE]


def test_importance_finds_relevant_features(predictor, runs):
    found = importance(predictor)
    features = found.features.set_index("feature")
    assert found.rows == (runs["status"] == "ok").sum()
    assert set(features["group"]) | set(found.groups["group"]) <= set(FEATURE_GROUPS)
    assert features["mean"].is_monotonic_decreasing
    np.testing.assert_allclose(features["factor"], np.exp(features["mean"]))
    assert features["factor"]["config.vector_bits"] > features["factor"]["config.order"]
    by_group = found.groups.set_index("group")["mean"]
    assert by_group["config"] > by_group["problem"]
    # Features may work against each other, groups never count more than their features.
    sums = features.groupby("group")["mean"].sum()
    assert (by_group <= sums[by_group.index] + 1e-9).all()


def test_importance_text_column_is_one_feature(predictor):
    features = set(importance(predictor).features["feature"])
    assert "config.order" in features
    assert not any("=" in f for f in features)


def test_importance_samples_large_tables(predictor, monkeypatch):
    monkeypatch.setattr("foretune.models.explanation.SAMPLES", 20)
    drawn, again = (importance(predictor) for _ in range(2))
    assert drawn.rows == 20
    pd.testing.assert_frame_equal(drawn.features, again.features)


def test_why_one_configuration_is_faster(predictor, matmul, toy_device):
    problem = matmul.problem(M=384, N=384, K=256)
    good = {**matmul.default(problem), "vector_bits": 512, "pack_b": True}
    bad = {**good, "vector_bits": 128}
    rows = rows_of("matmul", problem, [bad, good], toy_device)
    why = compare(predictor, rows, 0, 1)
    lines = why.factors.set_index("feature")
    assert why.factors["feature"][0] == "config.vector_bits"
    assert (lines["a"]["config.vector_bits"], lines["b"]["config.vector_bits"]) == (128, 512)
    assert lines["factor"]["config.vector_bits"] < 1
    strength = np.abs(np.log(why.factors["factor"]))
    assert strength.is_monotonic_decreasing
    predicted = predictor.predict(rows)["time_ms"]
    assert why.predicted == pytest.approx(predicted[1] / predicted[0])
    back = compare(predictor, rows, 1, 0)
    assert back.tree == pytest.approx(1 / why.tree)


def test_compare_product_of_factors_is_ratio_of_trees(predictor, runs):
    a, b = 2, len(runs) - 1  # of problems of very different sizes
    why = compare(predictor, runs, a, b)
    pair = runs.iloc[[a, b]]
    log = tree_log(predictor, pair) + unit_log(predictor, pair)
    assert why.tree == pytest.approx(np.exp(log[1] - log[0]), rel=1e-4)
    assert why.factors["factor"].prod() == pytest.approx(why.tree)
    unit = why.factors.set_index("feature").loc[UNIT]
    assert unit["factor"] == pytest.approx(np.exp(np.diff(unit_log(predictor, pair))[0]))
    assert pd.isna(unit["a"])


def test_compare_power_without_roofline(predictor, runs):
    why = compare(predictor, runs, 0, 5, "power_w")
    assert why.factors.set_index("feature")["factor"][UNIT] == 1.0


def test_compare_shows_text_as_text(predictor, runs):
    values = compare(predictor, runs, 0, 1).factors.set_index("feature")
    assert values["a"]["config.order"] == runs["config.order"].iloc[0]


def test_feature_groups_by_prefix_and_origin():
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(
        {
            "kernel": "theirs",
            "device": "GPU",
            "status": "ok",
            "problem.size_0": rng.choice([96, 1024, 4096], 60),
            "config.block_size_x": rng.choice([32, 64, 128], 60),
            "config.tile_size_x": rng.choice([1, 2, 4], 60),
            "static.registers": rng.integers(16, 64, 60).astype(float),
            "time_ms": rng.uniform(1, 2, 60),
        }
    )
    features = Predictor(extra_columns=("static",)).fit(runs).features_
    groups = feature_groups(features, runs)
    assert groups["problem.size_0"] == "problem"
    assert groups["config.tile_size_x"] == "config"
    assert groups["static.registers"] == "static"
    assert groups["log2_tile"] == "geometry"
    assert groups["alignment.size_0"] == "alignment"


def test_feature_groups_cost_is_analytic(predictor, runs):
    assert feature_groups(predictor.features_, runs)["log2_flops"] == "analytic"


def test_importance_of_loaded_predictor_is_the_same(predictor, runs, tmp_path):
    predictor.save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    pd.testing.assert_frame_equal(importance(loaded).features, importance(predictor).features)


def test_contributions_of_forest_are_refused(runs):
    grown = Predictor("random_forest", ("time_ms",)).fit(runs)
    assert not is_explainable(grown)
    with pytest.raises(
        PredictorError, match=r"this predictor's is random_forest: .*--model xgboost"
    ):
        importance(grown)


def test_contributions_of_missing_target_are_refused(runs):
    predictor = Predictor(targets=("time_ms",)).fit(runs)
    assert is_explainable(predictor)
    assert not is_explainable(predictor, "power_w")
    with pytest.raises(PredictorError, match="has no power_w: it predicts time_ms"):
        contributions(predictor, runs, "power_w")
