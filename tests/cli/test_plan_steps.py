"""``foretune plan steps``."""

import json

import joblib
import pytest
from commands import run_json

STEPS = 300


def write_log(path):
    """Write vLLM's log of a server with one to eight answers; a step has one token of each."""
    lines = ["GPU KV cache size: 100,000 tokens"]
    for number in range(STEPS):
        answers = 1 + number % 8
        ms = 5.0 + 0.5 * answers + 0.01 * (number % 7)
        lines.append(
            f"Engine 000: Iteration({number}): 0 context requests, 0 context tokens, {answers} "
            f"generation requests, {answers} generation tokens, iteration elapsed time: {ms:.2f} "
            f"ms, GPU KV cache usage: {0.1 * answers:.1f}%"
        )
    path.write_text("\n".join(lines))
    return path


def test_plan_steps_writes_predictor_and_models(capsys, tmp_path):
    log = write_log(tmp_path / "server.log")
    files = {name: tmp_path / name for name in ("steps", "model.pkl", "steps.json")}
    answer = run_json(
        capsys,
        *("plan", "steps", str(log), "--device", "a GPU", "--out", str(files["steps"])),
        *("--sglang", str(files["model.pkl"]), "--aisimulate", str(files["steps.json"])),
    )
    assert answer["steps"] == STEPS
    assert answer["errors"]["answers alone"]["median"] < 0.03
    assert len(joblib.load(files["model.pkl"])["features"]) == 18
    assert json.loads(files["steps.json"].read_text())["worker_type"] == "decode"

    problem = "prompts=0,prompt_tokens=0,answers=4,context=400"
    predicted = run_json(capsys, "predict", str(files["steps"]), "--problem", problem)
    (row,) = predicted["configs"]
    assert row["time_ms"] == pytest.approx(5.0 + 0.5 * 4, rel=0.05)
