"""Tracking for real: a predictor in MLflow's registry is the predictor that was trained."""

import json
import re
import subprocess
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from foretune.errors import TrackingError
from foretune.features.candidates import candidate_rows
from foretune.models import Predictor, train_predictor
from foretune.models.saved.lookup import read_predictor
from foretune.tune.mlflow.flavor import infer_model_signature, input_columns
from foretune.tune.mlflow.tracking import Tracker, git_state, provenance, score_metrics

CHAMPION = "models:/foretune-matmul@champion"
NEWEST = "models:/foretune-matmul/1"


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
    """Train once per model, and validate one of them in full."""

    def train(model="xgboost"):
        if model not in trainings:
            extent = "full" if model == "xgboost" else "quick"
            trainings[model] = train_predictor(
                toy_runs, model, splits=("grouped",), validate=extent
            )
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


@pytest.fixture(scope="module")
def logged(tmp_path_factory, template):
    """A directory with the MLflow in which `champion` logs once."""
    folder = tmp_path_factory.mktemp("logged")
    (folder / "mlflow.db").write_bytes(template.read_bytes())
    return folder


@pytest.fixture
def champion(logged, training, monkeypatch):
    """The training that was logged, with its directory; read it only."""
    monkeypatch.chdir(logged)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri(logged))
    mlflow.set_tracking_uri(uri(logged))
    if not (logged / "predictor").exists():
        log(training(), logged)
    return training(), logged


@pytest.mark.parametrize("model", ["xgboost", "random_forest"])
def test_tracked_model_predicts_as_trained(place, training, toy_runs, model):
    done = training(model)
    log(done, place)
    loaded = mlflow.pyfunc.load_model(NEWEST)
    predicted = loaded.predict(toy_runs)
    for raw in (loaded.get_raw_model(), loaded.unwrap_python_model()):
        assert isinstance(raw, Predictor)
        assert raw.kernel_name_ == "matmul"
    pd.testing.assert_frame_equal(predicted, done.predictor.predict(toy_runs))
    assert {"time_ms", "time_ms_low", "time_ms_high", "power_w", "p_valid"} <= set(predicted)


def test_tracked_model_has_no_pickle(place, training):
    log(training("random_forest"), place)
    files = {p.name for p in Path(mlflow.artifacts.download_artifacts(NEWEST)).rglob("*")}
    assert {"predictor.json", "tree.npz", "runs.parquet"} <= files
    assert not any(f.endswith((".pkl", ".pickle", ".joblib")) for f in files)
    info = mlflow.models.get_model_info(NEWEST)
    assert info.flavors["python_function"]["loader_module"] == "foretune.tune.mlflow.flavor"


def test_signature_and_example(champion, toy_runs):
    done, _ = champion
    info = mlflow.models.get_model_info(CHAMPION)
    assert info.signature.inputs.input_names() == list(input_columns(toy_runs).columns)
    assert info.signature.outputs.input_names() == list(done.predictor.predict(toy_runs).columns)
    example = mlflow.models.Model.load(CHAMPION).load_input_example(CHAMPION)
    expected = done.predictor.predict(toy_runs.head(5))
    predicted = mlflow.pyfunc.load_model(CHAMPION).predict(example)
    np.testing.assert_allclose(predicted["time_ms"], expected["time_ms"])


def test_configurations_nobody_ran(champion, matmul, toy_device):
    done, _ = champion
    problem = matmul.problem(M=384, N=384, K=256)
    rows = candidate_rows("matmul", problem, matmul.space(problem), toy_device, np.arange(50))
    rows = rows.astype(dict.fromkeys(rows.select_dtypes("category"), "str"))
    predicted = mlflow.pyfunc.load_model(CHAMPION).predict(rows)
    np.testing.assert_allclose(predicted["time_ms"], done.predictor.predict(rows)["time_ms"])


@pytest.mark.usefixtures("champion")
def test_tracked_model_names_missing_column(toy_runs):
    loaded = mlflow.pyfunc.load_model(CHAMPION)
    with pytest.raises(mlflow.MlflowException, match=r"problem\.M"):
        loaded.predict(toy_runs.drop(columns="problem.M"))


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
    by_name = infer_model_signature(predictor).inputs.input_dict()
    assert not by_name["config.stages"].required
    assert not by_name["config.layout"].required
    assert by_name["config.threads"].required
    signature = infer_model_signature(predictor)
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


def test_scores_stand_beside_the_model(champion):
    done, place = champion
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
    run = mlflow.MlflowClient(uri(place)).get_run(version.run_id)
    (dataset,) = run.inputs.dataset_inputs
    for tags in (version.tags, run.data.tags):
        assert tags["foretune.dataset"] == dataset.dataset.digest
        assert tags["foretune.rows"].endswith("runs.parquet")
        assert len(tags["foretune.code_hash"]) == 16
        assert tags["mlflow.user"]
    assert "champion: the first champion: typical error" in version.description
    assert run.data.tags["mlflow.note.content"] == version.description


def test_tracked_run_has_state_of_git(place):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    (place / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    clean = {"mlflow.source.git.commit": commit.stdout.strip(), "foretune.git.changed": "false"}
    assert git_state() == clean
    (place / "file").write_text("two")
    tags = provenance()
    assert tags["foretune.git.changed"] == "true"
    assert tags["mlflow.source.git.commit"] == commit.stdout.strip()


def test_tracked_model_second_version_is_challenger(place, training):
    client = mlflow.MlflowClient(uri(place))
    log(training(), place)
    run = log(training(), place, "second")
    assert client.get_model_version_by_alias("foretune-matmul", "champion").version == 1
    assert client.get_model_version_by_alias("foretune-matmul", "challenger").version == 2
    assert run.data.tags["foretune.alias"] == "challenger"
    assert "is no better than" in run.data.tags["foretune.reason"]


def test_tracked_model_is_read_by_name(champion, toy_runs):
    done, place = champion
    client = mlflow.MlflowClient(uri(place))
    run_id = client.get_model_version_by_alias("foretune-matmul", "champion").run_id
    for name in (CHAMPION, NEWEST, f"runs:/{run_id}"):
        found = read_predictor(name)
        pd.testing.assert_frame_equal(found.predict(toy_runs), done.predictor.predict(toy_runs))


@pytest.mark.parametrize(
    "name", ["models:/foretune-matmul@champion", "models:/nothing/1", "runs:/0123456789abcdef"]
)
@pytest.mark.usefixtures("place")
def test_tracked_model_unknown_name_is_one_line(name):
    with pytest.raises(TrackingError, match=f"has no {name}.*set MLFLOW_TRACKING_URI"):
        read_predictor(name)


@pytest.mark.parametrize("name", ["models:/nix@champion", "runs:/0123456789abcdef"])
def test_tracker_reading_makes_no_database(place, name):
    (place / "mlflow.db").unlink()
    with pytest.raises(TrackingError, match=r"has no .* \(there is no such file\): set MLFLOW_"):
        read_predictor(name)
    assert not list(place.iterdir())


def test_tracked_run_of_failure_is_marked(place):
    tracker = Tracker(uri(place))
    run_id = tracker.open_run("train", None, {})
    with pytest.raises(ValueError, match="no"), tracker.running(run_id):
        raise ValueError("no")
    client = mlflow.MlflowClient(uri(place))
    assert client.get_run(run_id).info.status == "FAILED"


def test_tracker_without_server_is_one_line(place):
    with pytest.raises(TrackingError, match="start it, or set"):
        Tracker("http://127.0.0.1:9")


def test_tracker_damaged_database_is_one_line(place):
    (place / "none.db").write_text("no database")
    with pytest.raises(TrackingError, match="file is not a database"):
        Tracker(f"sqlite:///{place}/none.db")
