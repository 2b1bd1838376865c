"""Saved plans: the folder, the MLflow run, and failures: `plan/serve/saving.py`."""

import dataclasses
import json
import math

import mlflow
import numpy as np
import pandas as pd
import pytest

from foretune.errors import OutputError, TrackingError, UsageError
from foretune.plan import Formats, PlanRequest, Requirements, Workload, find_system, plan
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.plan_json import plan_to_json
from foretune.plan.serve.saving import save_plan, write_plan_folder
from foretune.tune.mlflow.tracking import Tracker

LOAD = Workload(512, 64)
CLOCKS = StepTimerFactory(None)
FORMATS = (Formats("bf16"), Formats("int8", kv="fp8"))
COMMANDS = {"vllm": "vllm serve small -tp 1", "sglang": "python -m sglang.launch_server"}


@pytest.fixture
def place(tmp_path, template, monkeypatch):
    """An empty directory with an MLflow of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri(tmp_path))  # MLflow sets it, this takes it back
    mlflow.set_tracking_uri(uri(tmp_path))
    return tmp_path


def uri(place):
    return f"sqlite:///{place / 'mlflow.db'}"


def made(model, requirements=None):
    request = PlanRequest(
        model=model,
        systems=(find_system("h100_sxm"),),
        gpus=2,
        workload=LOAD,
        requirements=requirements or Requirements(),
        formats=FORMATS,
    )
    return dataclasses.replace(plan(request, CLOCKS), seconds=1.5)


def test_write_plan_folder_has_all_files(tmp_path, small):
    answer = made(small)
    folder = write_plan_folder(answer, CLOCKS, tmp_path / "plans", COMMANDS)
    assert folder == tmp_path / "plans" / "small-h100_sxm-001"
    assert {p.name for p in folder.iterdir()} == {
        "candidates.parquet",
        "plan.json",
        "report.html",
        "commands.txt",
    }
    table = pd.read_parquet(folder / "candidates.parquet")
    pd.testing.assert_frame_equal(table, answer.candidates)
    said = json.loads((folder / "plan.json").read_text())
    assert said == json.loads(json.dumps(plan_to_json(answer, COMMANDS)))
    assert "vllm serve small -tp 1\n" in (folder / "commands.txt").read_text()


def test_plan_to_json_unknown_values_are_none(small):
    answer = made(small)
    answer.candidates["power_w"] = np.nan
    said = plan_to_json(answer)
    assert said["best"]["power_w"] is None
    assert said["best"]["tpot_ms"] == answer.best["tpot_ms"]
    assert len(said["pareto"]) == len(answer.pareto)
    assert said["question"]["model"] == "small"
    assert "limit.tpot_ms" not in said["question"]
    assert "commands" not in said
    json.dumps(said, allow_nan=False)


def test_write_plan_folder_takes_next_free_number(tmp_path, small):
    answer = made(small)
    (tmp_path / "small-h100_sxm-002").mkdir()
    names = [write_plan_folder(answer, CLOCKS, tmp_path).name for _ in range(2)]
    assert names == ["small-h100_sxm-001", "small-h100_sxm-003"]


@pytest.mark.parametrize("name", ["../../<b>x", "..", "a/b c\n", "x" * 500])
def test_write_plan_folder_model_name_cannot_leave_folder(tmp_path, small, name):
    answer = made(dataclasses.replace(small, name=name))
    folder = write_plan_folder(answer, CLOCKS, tmp_path / "out")
    assert folder.resolve().parent == (tmp_path / "out").resolve()
    assert folder.name.endswith("-001")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_save_plan_tracks_question_metrics_and_files(place, small):
    answer = made(small, Requirements(tpot_ms=30.0))
    kept = save_plan(answer, CLOCKS, place / "plans", commands=COMMANDS)
    client = mlflow.MlflowClient(uri(place))
    run = client.get_run(kept.run_id)
    assert run.info.status == "FINISHED"
    assert kept.mlflow_uri == uri(place)
    assert kept.report.is_file()
    best = answer.best
    for name in ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu", "memory_gib"):
        assert run.data.metrics[name] == pytest.approx(best[name])
    assert run.data.metrics["candidates"] == len(answer.candidates)
    assert run.data.metrics["seconds"] == 1.5
    asked = {"model": "small", "gpus": "2", "isl": "512", "osl": "64", "limit.tpot_ms": "30.0"}
    assert asked.items() <= run.data.params.items()
    assert run.data.params["best.formats"] == best["formats"]
    assert run.data.tags["foretune.model"] == "small"
    assert {a.path for a in client.list_artifacts(kept.run_id)} == {
        "candidates.parquet",
        "plan.json",
        "report.html",
        "commands.txt",
    }


def test_save_plan_front_is_metric_steps(place, small):
    answer = made(small)
    kept = save_plan(answer, CLOCKS, place / "plans")
    client = mlflow.MlflowClient(uri(place))
    for name in ("tpot_ms", "tokens_per_s_per_gpu"):
        history = client.get_metric_history(kept.run_id, f"front.{name}")
        assert [m.step for m in history] == list(range(1, len(answer.pareto) + 1))
        assert [m.value for m in history] == pytest.approx(answer.pareto[name].tolist())


def test_log_steps_leaves_out_unknown_values(place):
    tracker = Tracker(uri(place))
    run_id = tracker.open_run("steps", None, {})
    table = pd.DataFrame({"a": np.arange(1200.0), "b": [math.nan, math.inf, *range(1198)]})
    tracker.log_steps(run_id, table)
    client = mlflow.MlflowClient(uri(place))
    steps = {n: [m.step for m in client.get_metric_history(run_id, n)] for n in ("a", "b")}
    assert sorted(steps["a"]) == list(range(1, 1201))
    assert sorted(steps["b"]) == list(range(3, 1201))


def test_save_plan_unreachable_mlflow_keeps_files(place, small):
    answer = made(small)
    nowhere = f"sqlite:///{place / 'no' / 'folder' / 'mlflow.db'}"
    (place / "no").write_text("")
    with pytest.raises(TrackingError, match="does not work") as error:
        save_plan(answer, CLOCKS, place / "plans", nowhere)
    assert "\n" not in str(error.value)
    assert str(place / "plans" / "small-h100_sxm-001") in str(error.value)
    assert (place / "plans" / "small-h100_sxm-001" / "report.html").is_file()


def test_write_plan_folder_unwritable_folder_is_one_line(tmp_path, small):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to") as error:
        write_plan_folder(made(small), CLOCKS, tmp_path / "file")
    assert "\n" not in str(error.value)


def test_save_plan_infeasible_plan_writes_nothing(tmp_path, small):
    with pytest.raises(UsageError, match="no deployment meets"):
        save_plan(made(small, Requirements(tpot_ms=1e-9)), CLOCKS, tmp_path / "plans")
    assert list(tmp_path.iterdir()) == []
