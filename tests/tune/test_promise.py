"""The central promise, end to end: what one process learned guides any searcher of another."""

import json
import subprocess
import sys
from pathlib import Path

import mlflow
from toy_kernel import FakeRunner, Toy

from foretune.cli import main
from foretune.tune.campaign.campaign import Preset, run_campaign

SMALL = Preset(
    train_problems=8,
    random_configs=12,
    guided_configs=2,
    tune_problems=1,
    budget=4,
    profile_s=60.0,
    box_s=0.01,
    verify_s=0.1,
)
ANOTHER_PROCESS = """
import json, sys
from toy_kernel import FakeRunner, Toy
from foretune import registry
from foretune.collect import machine_load
from foretune.tune import tune_problem

machine_load.MAX_OTHER_LOAD = machine_load.MAX_STEAL = float("inf")  # other tests run, too
registry._BUILTIN["kernels"]["toy"] = "toy_kernel:Toy"

told = {}
for searcher, n in (("tpe", 1010), ("surrogate", 1030)):
    kernel = Toy()
    result = tune_problem(
        kernel, kernel.problem(n=n), FakeRunner(), "models:/foretune-toy@champion",
        searcher=searcher, budget=4,
    )
    told[searcher] = {**result.summary(), "trace": [
        [s.objective, s.low_ms, s.predicted_ms, s.high_ms] for s in result.trace
    ]}
json.dump(told, sys.stdout)
"""


def test_campaign_champion_new_process_tune_verify_export(
    tmp_path, template, monkeypatch, toy_registered, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("mlflow.db").write_bytes(template.read_bytes())
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    done = run_campaign(Toy(), FakeRunner(), SMALL, validate="quick")
    client = mlflow.MlflowClient(uri)
    version = client.get_model_version_by_alias("foretune-toy", "champion")
    assert version.run_id == done.mlflow_run_id

    toy = str(Path(__file__).parents[1] / "toy")
    monkeypatch.setenv("PYTHONPATH", toy, prepend=":")
    run = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    for searcher, found in json.loads(run.stdout).items():
        assert found["verified"], searcher
        assert found["measurements"] == 4
        assert found["config"] == {"work": 1, "skew": 1, "order": "ab", "behaviour": "ok"}
        assert all(low < mean < high for _, low, mean, high in found["trace"])
        best = min(value for value, *_ in found["trace"])
        assert found["trace"][0][0] < 1.5 * best, "the first proposal is the predictor's"

    assert main(["export", "--kernel", "toy", "--out", "chosen.py"]) == 0
    scope = {}
    exec(Path("chosen.py").read_text("utf-8"), scope)
    chosen = scope["choose"](n=1010)
    assert (chosen["work"], chosen["skew"], chosen["behaviour"]) == (1, 1, "ok")
