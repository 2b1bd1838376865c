"""vLLM's server and benchmark, played by a script that answers as they do."""

import json
import sys
from dataclasses import replace

import psutil
import pytest

import foretune.plan.check.vllm_bench as bench
from foretune.cli.output import Output
from foretune.cli.plan_verify import verify_vllm
from foretune.errors import MeasurementError, UsageError
from foretune.plan import Formats, Layout, Workload, find_system
from foretune.plan.check.vllm_bench import Benchmark, check_vllm
from foretune.plan.serve.deployments.deployment import Deployment, Pools

RESULT = {  # fields of a result file of vllm/benchmarks/serve.py; lists of single requests left out
    "date": "20260801-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "small", "tokenizer_id": "small", "num_prompts": 16, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 4, "duration": 8.0, "completed": 16, "failed": 0,
    "total_input_tokens": 1600, "total_output_tokens": 800, "request_throughput": 2.0,
    "request_goodput": None, "output_throughput": 100.0, "total_token_throughput": 300.0,
    "max_output_tokens_per_s": 140.0, "max_concurrent_requests": 6, "rtfx": 0.0,
    "mean_ttft_ms": 42.0, "median_ttft_ms": 40.0, "std_ttft_ms": 6.0, "p99_ttft_ms": 61.0,
    "mean_tpot_ms": 11.0, "median_tpot_ms": 10.5, "std_tpot_ms": 1.0, "p99_tpot_ms": 14.0,
    "mean_itl_ms": 11.0, "median_itl_ms": 10.4, "std_itl_ms": 1.5, "p99_itl_ms": 20.0,
}  # fmt: skip
FAKE = f"""#!{sys.executable}
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
words, behaviour = sys.argv[1:], os.environ.get("FAKE_VLLM", "")
def after(flag):
    return words[words.index(flag) + 1]
if words[0] == "serve":
    if behaviour == "no memory":
        print("loading")
        sys.exit("torch.OutOfMemoryError: CUDA out of memory")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # a worker
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
    HTTPServer(("127.0.0.1", int(after("--port"))), Healthy).serve_forever()
if behaviour == "no tokenizer":
    sys.exit("ValueError: no tokenizer")
import urllib.request
url = "http://127.0.0.1:" + after("--port") + "/health"
assert urllib.request.urlopen(url).status == 200
result = json.loads(os.environ["FAKE_RESULT"]) | {{"words": words}}
with open(os.path.join(after("--result-dir"), after("--result-filename")), "w") as out:
    json.dump(result, out)
with open(os.environ["FAKE_SEEN"], "w") as out:
    json.dump(words, out)
"""
PREDICTED = {
    "ttft_ms": 40.0, "ttft_ms_low": 30.0, "ttft_ms_high": 50.0,
    "tpot_ms": 9.0, "tpot_ms_low": 8.5, "tpot_ms_high": 9.5, "tokens_per_s_per_gpu": 55.0,
}  # fmt: skip


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A ``vllm`` on the path; returns where it notes how its benchmark was called."""
    program = tmp_path / "vllm"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("FAKE_RESULT", json.dumps(RESULT))
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setattr(bench, "END_S", 5.0)
    return tmp_path / "seen.json"


@pytest.fixture
def deployment(small):
    return Deployment(
        small, find_system("h100_sxm"), "vllm", Layout(2), Formats(), Workload(100, 50), 4
    )


def left():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != "zombie"]


def test_the_plan_is_served_and_measured(vllm, deployment):
    before = len(left())
    check = check_vllm(deployment, PREDICTED)
    assert check.command[:3] == ["vllm", "serve", "small"]
    asked = json.loads(vllm.read_text())
    for flag, value in (
        ("--random-input-len", "100"), ("--random-output-len", "50"), ("--max-concurrency", "4"),
        ("--num-prompts", "16"), ("--dataset-name", "random"), ("--model", "small"),
    ):  # fmt: skip
        assert asked[asked.index(flag) + 1] == value
    table = check.table.set_index("figure")
    assert table.loc["ttft_ms", ["measured", "inside"]].tolist() == [42.0, True]
    assert table.loc["tpot_ms", ["measured", "inside"]].tolist() == [11.0, False]
    # 100 tokens per second on two GPUs, and a plan that gives no interval for them
    assert table.loc["tokens_per_s_per_gpu", ["measured", "inside"]].tolist() == [50.0, None]
    assert not check.passed
    assert check.to_json()["benchmark"]["completed"] == 16
    assert len(left()) == before  # the server's worker is gone, too


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("no memory", "vllm serve ended with exit code 1: .*CUDA out of memory"),
        ("no tokenizer", "vllm bench serve ended with exit code 1: ValueError: no tokenizer"),
    ],
)
def test_what_fails_says_its_last_line(vllm, deployment, monkeypatch, behaviour, message):
    monkeypatch.setenv("FAKE_VLLM", behaviour)
    before = len(left())
    with pytest.raises(MeasurementError, match=message):
        check_vllm(deployment, PREDICTED)
    assert len(left()) == before


def test_a_server_that_is_never_ready_is_ended(vllm, deployment, monkeypatch):
    monkeypatch.setattr(bench, "START_S", 0.0)
    before = len(left())
    with pytest.raises(MeasurementError, match="not ready after 0 s: it said nothing"):
        check_vllm(deployment, PREDICTED)
    assert len(left()) == before


def test_without_vllm_there_is_one_line(deployment, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (check_vllm, lambda *plan: verify_vllm(Output(False), *plan)):
        with pytest.raises(MeasurementError, match=r"vllm is not installed here.*pip install vllm"):
            ask(deployment, PREDICTED)
    assert capsys.readouterr().out == ""


def test_plans_that_one_server_cannot_serve_are_refused(vllm, deployment):
    with pytest.raises(UsageError, match="CHECKPOINT_IN_INT4_WO"):
        check_vllm(replace(deployment, formats=Formats("int4_wo")), PREDICTED)
    with pytest.raises(UsageError, match="pools"):
        check_vllm(replace(deployment, pools=Pools(Layout(), 1)), PREDICTED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_tpot_ms": None}, "cannot be read"),
        ({"completed": 0, "failed": 16}, "answered none of 16"),
    ],
)
def test_results_without_figures_are_refused(tmp_path, change, message):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | change))
    with pytest.raises(MeasurementError, match=message):
        Benchmark.from_file(path)


def test_a_field_that_is_missing_is_named(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({k: v for k, v in RESULT.items() if k != "output_throughput"}))
    with pytest.raises(MeasurementError, match="output_throughput"):
        Benchmark.from_file(path)
    path.write_text(json.dumps({k: v for k, v in RESULT.items() if k != "failed"}))
    assert Benchmark.from_file(path).failed == 0
    with pytest.raises(MeasurementError, match="cannot be read"):
        Benchmark.from_file(tmp_path / "none.json")


def test_the_table_is_shown_with_what_machine_it_is_of(vllm, deployment, capsys):
    found = verify_vllm(Output(False), deployment, PREDICTED)
    shown = capsys.readouterr().out
    assert "42" in shown
    assert "30 … 50" in shown
    assert "the plan is for h100_sxm" in shown
    assert found["held"] is False
