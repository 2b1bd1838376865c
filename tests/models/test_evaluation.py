"""Evaluation: honest splits, baselines beside every model, numbers that mean what they say."""

import math

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import from_measurements
from foretune.errors import PredictorError, RunTableError
from foretune.models import Predictor, evaluate_predictor, metrics_table, train_predictor
from foretune.models.baselines import BASELINES, calibrated_roofline, nearest_neighbour
from foretune.models.evaluation import cross_validate
from foretune.models.metrics import METRICS


@pytest.fixture(scope="module")
def training(toy_measurements, toy_device):
    return train_predictor(from_measurements(toy_measurements, toy_device))


def test_baselines_stand_in_every_table(training):
    assert set(training.scores) == {"time_ms", "power_w"}
    for splits in training.scores.values():
        assert set(splits) == {"random", "grouped"}
        for models in splits.values():
            assert set(models) == {"xgboost", *BASELINES}
            for metrics in models.values():
                assert set(METRICS) <= set(metrics)


def test_the_table_for_people(training):
    table = metrics_table(training.scores)
    assert list(table)[:3] == ["target", "split", "model"]
    assert len(table) == 2 * 2 * 3
    row = table[(table["target"] == "time_ms") & (table["split"] == "grouped")].iloc[0]
    assert row["mape"] == training.scores["time_ms"]["grouped"]["xgboost"]["mape"]


def test_every_successful_row_is_scored_once(training, toy_runs):
    ok = (toy_runs["status"] == "ok").sum()
    for models in training.scores["time_ms"].values():
        assert {m["rows"] for m in models.values()} == {ok}
        assert {m["groups"] for m in models.values()} == {6}


def test_one_problem_cannot_be_held_out(toy_runs):
    one = toy_runs[toy_runs["problem.M"] == 96]
    scores = cross_validate(Predictor(), one, "time_ms")
    assert set(scores) == {"random"}


def test_devices_can_be_held_out(toy_runs):
    other = toy_runs.assign(device="Other", time_ms=toy_runs["time_ms"] * 2)
    both = pd.concat([toy_runs, other], ignore_index=True)
    scores = cross_validate(Predictor(), both, "time_ms", group="device")
    grouped = scores["grouped"]["nearest neighbour"]
    # each device is predicted with the times of the other: by 2, or by one half
    assert grouped["median_ape"] == pytest.approx(0.75, abs=0.25)


def test_cross_validation_leaves_the_predictor_alone(toy_runs):
    predictor = Predictor()
    cross_validate(predictor, toy_runs, "time_ms")
    assert not hasattr(predictor, "targets_")


def test_scores_on_training_rows_flatter(training, toy_runs):
    scores = evaluate_predictor(training.predictor, toy_runs)
    assert set(scores) == {"time_ms", "power_w"}
    assert scores["time_ms"]["rows"] == (toy_runs["status"] == "ok").sum()
    honest = training.scores["time_ms"]["grouped"]["xgboost"]
    assert scores["time_ms"]["median_ape"] < honest["median_ape"]
    assert scores["time_ms"]["coverage90"] > 0.9


def test_evaluation_notices_a_wrong_scale(training, toy_runs):
    right = evaluate_predictor(training.predictor, toy_runs)["time_ms"]
    doubled = toy_runs.assign(time_ms=toy_runs["time_ms"] * 2)
    wrong = evaluate_predictor(training.predictor, doubled)["time_ms"]
    assert wrong["median_ape"] == pytest.approx(0.5, abs=0.05)
    assert wrong["spearman"] == pytest.approx(right["spearman"])
    assert wrong["top1_regret"] == pytest.approx(right["top1_regret"])
    assert wrong["coverage90"] < 0.2


def test_without_power_only_time_is_scored(training, toy_runs):
    bare = toy_runs.drop(columns=["power_w", "energy_mj"])
    assert set(evaluate_predictor(training.predictor, bare)) == {"time_ms"}


def test_another_kernel(training, toy_runs):
    with pytest.raises(PredictorError, match="knows 'matmul', the runs are of 'softmax'"):
        evaluate_predictor(training.predictor, toy_runs.assign(kernel="softmax"))


def test_nothing_succeeded(training, toy_runs):
    failed = toy_runs.assign(
        status="timeout", time_ms=math.nan, power_w=math.nan, energy_mj=math.nan
    )
    with pytest.raises(PredictorError, match="none of the runs succeeded"):
        evaluate_predictor(training.predictor, failed)


def test_impossible_rows(training, toy_runs):
    with pytest.raises(RunTableError):
        evaluate_predictor(training.predictor, toy_runs.assign(time_ms=0.0))


def test_baselines():
    X = np.array([[0.0, 100.0], [1.0, 0.0], [np.nan, 50.0]])
    y = np.array([1.0, 2.0, 6.0])
    new = np.array([[0.9, 10.0], [0.1, 90.0]])
    assert calibrated_roofline(X, y, new).tolist() == [2.0, 2.0]
    assert nearest_neighbour(X, y, new).tolist() == [2.0, 1.0]
