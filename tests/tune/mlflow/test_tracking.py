"""Tracking for real: a predictor in MLflow's registry is the predictor that was trained."""

import json
import re
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from foretune.errors import TrackingError
from foretune.features import candidate_rows
from foretune.models import train_predictor
from foretune.tune.mlflow.flavour import input_columns, signature_of
from foretune.tune.mlflow.tracking import Tracker, score_metrics

CHAMPION = "models:/foretune-matmul@champion"


@pytest.fixture
def place(tmp_path, template, monkeypatch):
    """An empty directory with an MLflow of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri(tmp_path))  # MLflow sets it, this takes it back
    mlflow.set_tracking_uri(uri(tmp_path))
    return tmp_path


def uri(place):
    """Absolute: MLflow keeps one connection per URI, wherever that is relative to."""
    return f"sqlite:///{place / 'mlflow.db'}"


@pytest.fixture(scope="module")
def trainings():
    return {}


@pytest.fixture
def training(toy_runs, trainings):
    """Train once per model."""

    def train(model="xgboost"):
        if model not in trainings:
            trainings[model] = train_predictor(toy_runs, model, splits=("grouped",))
        return trainings[model]

    return train


def log(training, place, name="predictor"):
    """Log a training as ``foretune train --mlflow`` does; return its run."""
    training.predictor.save(place / name)
    tracker = Tracker(uri(place))
    run_id = tracker.open_run("train", None, {})
    with tracker.running(run_id):
        tracker.log_training(run_id, training, place / name)
    return mlflow.MlflowClient(uri(place)).get_run(run_id)


@pytest.mark.parametrize("model", ["xgboost", "random_forest", "ensemble"])
def test_the_champion_predicts_what_was_trained(place, training, toy_runs, model):
    done = training(model)
    log(done, place)
    champion = mlflow.pyfunc.load_model(CHAMPION)
    predicted = champion.predict(toy_runs)
    pd.testing.assert_frame_equal(predicted, done.predictor.predict(toy_runs))
    assert {"time_ms", "time_ms_low", "time_ms_high", "power_w", "p_valid"} <= set(predicted)


def test_nothing_is_pickled(place, training):
    log(training("random_forest"), place)
    files = {p.name for p in Path(mlflow.artifacts.download_artifacts(CHAMPION)).rglob("*")}
    assert {"predictor.json", "tree.skops", "runs.parquet"} <= files
    assert not any(f.endswith((".pkl", ".pickle", ".joblib")) for f in files)
    info = mlflow.models.get_model_info(CHAMPION)
    assert info.flavors["python_function"]["loader_module"] == "foretune.tune.mlflow.flavour"


def test_signature_and_example(place, training, toy_runs):
    done = training()
    log(done, place)
    info = mlflow.models.get_model_info(CHAMPION)
    assert info.signature.inputs.input_names() == list(input_columns(toy_runs).columns)
    assert info.signature.outputs.input_names() == list(done.predictor.predict(toy_runs).columns)
    example = mlflow.models.Model.load(CHAMPION).load_input_example(CHAMPION)
    expected = done.predictor.predict(toy_runs.head(5))
    predicted = mlflow.pyfunc.load_model(CHAMPION).predict(example)
    np.testing.assert_allclose(predicted["time_ms"], expected["time_ms"])


def test_configurations_nobody_ran(place, training, matmul, toy_device):
    done = training()
    log(done, place)
    problem = matmul.problem(M=384, N=384, K=256)
    rows = candidate_rows("matmul", problem, matmul.space(problem), toy_device, np.arange(50))
    rows = rows.astype(dict.fromkeys(rows.select_dtypes("category"), "str"))
    predicted = mlflow.pyfunc.load_model(CHAMPION).predict(rows)
    np.testing.assert_allclose(predicted["time_ms"], done.predictor.predict(rows)["time_ms"])


def test_what_is_missing_is_named(place, training, toy_runs):
    log(training(), place)
    champion = mlflow.pyfunc.load_model(CHAMPION)
    with pytest.raises(mlflow.MlflowException, match=r"problem\.M"):
        champion.predict(toy_runs.drop(columns="problem.M"))


def test_columns_with_gaps_are_open(toy_runs):
    """Whole numbers beside gaps are floats in one table and integers in the next."""
    half = toy_runs.index < len(toy_runs) // 2
    gappy = toy_runs.assign(
        **{
            "config.stages": np.where(half, 2.0, np.nan),
            "config.layout": pd.Series(np.where(half, "row", None), dtype="str"),
        }
    )
    predictor = train_predictor(gappy, targets=("time_ms",), splits=()).predictor
    by_name = signature_of(predictor).inputs.input_dict()
    assert not by_name["config.stages"].required
    assert not by_name["config.layout"].required
    assert by_name["config.threads"].required
    signature = signature_of(predictor)
    enforce = mlflow.models.utils._enforce_schema
    for values in (np.ones(len(gappy), dtype=int), gappy["config.stages"]):
        enforce(input_columns(gappy.assign(**{"config.stages": values})), signature.inputs)


def test_scores_rows_and_plots_are_logged(place, training, toy_runs):
    done = training()
    run = log(done, place)
    client = mlflow.MlflowClient(uri(place))
    assert run.info.status == "FINISHED"
    assert run.data.params["model"] == "xgboost"
    assert run.data.params["rows"] == str(len(toy_runs))
    expected = score_metrics(done)
    assert {"time_ms.grouped.mape", "power_w.grouped.coverage90"} <= expected.keys()
    for name, value in expected.items():
        if np.isfinite(value):
            assert run.data.metrics[name] == pytest.approx(value)
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "matmul runs"
    assert json.loads(dataset.dataset.profile)["num_rows"] == len(toy_runs)
    assert str(place / "predictor" / "runs.parquet") in dataset.dataset.source
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["predictions.html"]
    assert len(run.outputs.model_outputs) == 1
    page = Path(mlflow.artifacts.download_artifacts(f"runs:/{run.info.run_id}/predictions.html"))
    text = page.read_text("utf-8")
    assert "matmul: xgboost trained on" in text
    assert re.search(r"in the 90.{0,7}%.{0,7}interval", text)


def test_scores_stand_beside_the_model(place, training):
    done = training()
    log(done, place)
    version = mlflow.MlflowClient(uri(place)).get_model_version_by_alias(
        "foretune-matmul", "champion"
    )
    logged = mlflow.get_logged_model(version.source.removeprefix("models:/"))
    scores = {m.key: m.value for m in logged.metrics}
    assert scores["time_ms.grouped.mape"] == pytest.approx(
        score_metrics(done)["time_ms.grouped.mape"]
    )
    assert logged.source_run_id == version.run_id
    assert version.tags["foretune.device"] == "Toy CPU"


def test_the_newest_training_is_champion(place, training):
    client = mlflow.MlflowClient(uri(place))
    log(training(), place)
    log(training("random_forest"), place, "second")
    assert client.get_model_version_by_alias("foretune-matmul", "champion").version == 2
    assert len(client.search_model_versions("name = 'foretune-matmul'")) == 2
    assert mlflow.models.get_model_info(CHAMPION).metadata["model"] == "random_forest"


def test_a_failed_training_is_marked(place):
    tracker = Tracker(uri(place))
    run_id = tracker.open_run("train", None, {})
    with pytest.raises(ValueError, match="no"), tracker.running(run_id):
        raise ValueError("no")
    client = mlflow.MlflowClient(uri(place))
    assert client.get_run(run_id).info.status == "FAILED"


def test_no_server(place):
    with pytest.raises(TrackingError, match="start it, or set"):
        Tracker("http://127.0.0.1:9")
