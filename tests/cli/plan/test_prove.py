"""``foretune plan serve … --prove`` as people type it, with a toy server."""

import json
import os
from pathlib import Path

import pytest
import toy_bench
from commands import fails, run_json
from served_toys import processes_of, toy_template

from foretune.cli import main

PLAN = [
    "plan",
    "meta-llama/Llama-3.1-8B",
    "--system",
    "h100_sxm",
    "--gpus",
    "1",
    "--isl",
    "16",
    "--osl",
    "4",
    "--formats",
    "fp8/fp8",
    "--tpot",
    "7",
]
TOY = ["--prove", "--command", toy_template("--slots", "{requests}"), "--loads", "1,2"]
ONCE = ["--starts", "1", "--pairs", "0", "--repeats", "1"]


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_a_plan_is_proven(capsys, tmp_path):
    answer = run_json(capsys, *PLAN, *TOY, *ONCE, "--limit", "memory=30", "--out", "made")
    proof = answer["proof"]
    assert len(proof["trials"]) == 1
    assert proof["trials"][0]["loads"][0]["proven"]["tokens_per_s"]["value"] > 0
    assert proof["stopped"] == "budget"
    assert "{port}" not in proof["best_command"]
    folder = tmp_path / "made" / "proof-Llama-3.1-8B-h100_sxm-001"
    assert proof["folder"] == str(folder)
    assert (folder / "proof.html").exists()
    assert json.loads((folder / "trials.jsonl").read_text())["number"] == 1

    # The same lines correct the next plan.
    lines = str(folder / "lines.jsonl")
    corrected = run_json(capsys, *PLAN[:-2], "--calibrate", lines)
    assert corrected["best"]["tpot_ms"] != answer["best"]["tpot_ms"]


def test_people_see_promise_and_proof(capsys):
    assert main([*PLAN, *TOY, *ONCE, "--limit", "memory=30"]) == 0
    out = capsys.readouterr().out
    assert "promised → proven" in out
    assert "promise " in out
    assert "start the best with" in out
    assert "--calibrate" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--command", "x"], "--command is an option of a proof: add --prove"),
        (["--prove", "--url", "localhost"], "--url localhost: write http://127.0.0.1:8000"),
        (["--prove", "--url", "http://x", "--flag", "requests=1"], "leave --flag out"),
        (["--prove", "--flag", "requests"], "write NAME=VALUE,VALUE"),
        (["--prove", "--loads", "0"], "each is at least 1"),
        (["--prove", "--loads", "many"], "write requests in flight"),
        (["--prove", "--starts", "0"], "0 starts prove nothing"),
        (["--prove", "--for", "energy"], "--prove cannot measure energy"),
        (["--prove", "--rate", "1", "--loads", "2"], "leave --loads out"),
    ],
)
def test_wrong_options_are_refused_in_one_line(capsys, options, message):
    assert message in fails(capsys, 2, *PLAN, *options)


def test_a_server_that_does_not_start_is_an_answer(capsys):
    words = ["--prove", "--command", toy_template("--fail", "oom")]
    answer = run_json(capsys, *PLAN, *words, *ONCE)
    assert not answer["proof"]["kept"]
    assert answer["proof"]["best"] is None
    assert answer["proof"]["trials"][0]["reason"].startswith("out of memory")
    log = Path(answer["proof"]["trials"][0]["log"]).read_text(encoding="utf-8")
    port = log.partition("--port ")[2].split()[0]
    assert processes_of(port) == []


def test_another_load_generator_proves_a_plan(capsys, tmp_path, monkeypatch):
    folder = toy_bench.write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with_vllm = [*TOY, *ONCE, "--limit", "memory=30", "--load-with", "vllm", "--out", "made"]
    proof = run_json(capsys, *PLAN, *with_vllm)["proof"]
    (trial,) = proof["trials"]
    assert all(load["proven"]["tokens_per_s"]["value"] > 0 for load in trial["loads"])
    assert len(list(Path(proof["folder"]).glob("vllm-01/vllm-c*.json"))) == len(trial["loads"])


def test_load_generator_that_fails_is_the_reason_of_a_trial(capsys, tmp_path, monkeypatch):
    folder = toy_bench.write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TOY_BENCH", "exit")
    with_vllm = [*TOY, *ONCE, "--limit", "memory=30", "--load-with", "vllm"]
    (trial,) = run_json(capsys, *PLAN, *with_vllm)["proof"]["trials"]
    assert "the tokenizer does not exist" in trial["reason"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--load-with", "vllm"], "is an option of a proof: add --prove"),
        (["--prove", "--load-with", "locust"], "give one of own, vllm, sglang, guidellm"),
        (["--prove", "--load-with", "guidellm"], "no program guidellm on the PATH"),
    ],
)
def test_load_generator_that_cannot_run_is_refused(capsys, monkeypatch, change, says):
    monkeypatch.setenv("PATH", "/nowhere")
    assert says in fails(capsys, 2, *PLAN, *change)
