"""Load generators of others: found by name, run under a guard, their reports read.

`toy_bench` takes the place of vLLM's. The real ones run in ``engines/``.
"""

import json
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import toy_bench
from served_toys import toy_server

from foretune.errors import MeasurementError, UsageError
from foretune.plan import Workload
from foretune.plan.prove import load_tools
from foretune.plan.prove.client import Prompts
from foretune.plan.prove.load import Load
from foretune.plan.prove.load_tools import check_tool_load, find_load_tool

LOAD = Load(Workload(isl=16, osl=4), concurrency=2)
PROMPTS = Prompts("toy", vocab=1000)


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """The toy benchmark as ``vllm`` on the PATH."""
    folder = toy_bench.write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return find_load_tool("vllm", "a-model")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with toy_server(tmp_path_factory.mktemp("server"), "--step-ms", "2") as running:
        running.wait_until_healthy(60)
        yield running


def run(tool, server, tmp_path, load=LOAD, limit_s=60):
    return tool.run(server.url, load, PROMPTS, seed=1, limit_s=limit_s, folder=tmp_path / "runs")


@pytest.mark.parametrize(
    "load", [LOAD, Load(Workload(16, 4), rate=2.0)], ids=lambda load: load.name
)
def test_tool_loads_the_server_and_its_report_is_read(vllm, server, tmp_path, load):
    found = run(vllm, server, tmp_path, load)
    figures = found.figures
    assert figures.requests == load.count
    assert figures.prompt_tokens == 16 * load.count
    assert figures.tokens == 4 * load.count
    assert figures.ttft_ms > 0
    assert figures.tpot_ms >= 2
    assert figures.tokens_per_s > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("exit", "status 3: the tokenizer does not exist"),
        ("silent", "wrote no report"),
        ("none", "no request was answered"),
        ("short", "prompts of 8 tokens, as the server counts them, instead of 16"),
    ],
)
def test_tool_that_fails_is_a_reason(vllm, server, tmp_path, monkeypatch, failure, reason):
    monkeypatch.setenv("TOY_BENCH", failure)
    with pytest.raises(MeasurementError, match=reason):
        run(vllm, server, tmp_path)


def test_tool_that_hangs_is_ended_with_its_children(vllm, server, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_BENCH", "hang")
    with pytest.raises(MeasurementError, match="did not end within 4 s"):
        run(vllm, server, tmp_path, limit_s=4)
    left = [p for p in psutil.process_iter(["cmdline"]) if "61.5" in (p.info["cmdline"] or [])]
    assert not left


def test_report_of_an_earlier_run_is_not_read(vllm, server, tmp_path, monkeypatch):
    run(vllm, server, tmp_path)
    monkeypatch.setenv("TOY_BENCH", "silent")
    with pytest.raises(MeasurementError, match="wrote no report"):
        run(vllm, server, tmp_path)


@pytest.mark.parametrize("name", ["vllm", "guidellm"])
def test_absent_program_is_named(name, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=f"there is no program {name} on the PATH: pip install"):
        find_load_tool(name, "a-model")


def test_absent_module_is_named(monkeypatch):
    monkeypatch.setattr(load_tools, "SGLANG_PACKAGE", "no_such_package_of_sglang")
    with pytest.raises(UsageError, match="is not installed here: pip install sglang"):
        find_load_tool("sglang", "a-model")


def test_unknown_name_is_refused():
    with pytest.raises(UsageError, match="give one of own, vllm, sglang, guidellm"):
        find_load_tool("locust", "a-model")


def test_own_generator_is_no_tool():
    assert find_load_tool("own", "a-model") is None


@pytest.mark.parametrize("name", ["sglang", "guidellm"])
def test_common_prefix_is_refused_where_a_tool_sends_none(name):
    prefixed = Load(Workload(16, 4, prefix=8), concurrency=1)
    with pytest.raises(UsageError, match="sends no common prefix"):
        check_tool_load(name, prefixed)
    check_tool_load("vllm", prefixed)


def test_report_of_guidellm_is_read(tmp_path):
    """The figures that GuideLLM 0.8.1 wrote of six requests to vLLM 0.32, without the rest."""

    def successful(**statistics):
        return {"successful": statistics}

    metrics = {
        "request_totals": {"errored": 0},
        "prompt_token_count": successful(count=6, mean=64.0),
        "output_token_count": successful(count=6, mean=16.0),
        "time_to_first_token_ms": successful(median=126.777),
        "inter_token_latency_ms": successful(median=44.026),
        "request_concurrency": successful(mean=1.9),
    }
    config = {"strategy": {"type_": "concurrent", "streams": 2}}
    benchmark = {"config": config, "metrics": metrics, "duration": 3.5}
    report = tmp_path / "guidellm-c2-0.json"
    report.write_text(json.dumps({"benchmarks": [benchmark]}), encoding="utf-8")

    figures = load_tools._read_report("guidellm", report).figures
    assert figures.ttft_ms == pytest.approx(126.777)
    assert figures.tpot_ms == pytest.approx(44.026)
    assert figures.tokens_per_s == pytest.approx(96 / 3.5)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"completed": 3}'])
def test_damaged_report_is_a_reason(tmp_path, text):
    report = tmp_path / "vllm-c2-0.json"
    report.write_text(text, encoding="utf-8")
    with pytest.raises(MeasurementError, match="report"):
        load_tools._read_report("vllm", report)


def test_words_for_sglang_name_lengths_and_load():
    tool = load_tools.LoadTool("sglang", ("python",), "a-model")
    words = load_tools._sglang_words(tool, "http://h:1", LOAD, "toy", 3, Path("report.json"))
    options = dict(pairwise(words))
    assert options["--random-input-len"] == "16"
    assert options["--random-output-len"] == "4"
    assert options["--max-concurrency"] == "2"
    assert options["--served-model-name"] == "toy"
