"""Corrections by a user's own measurements: `plan/serve/deployments/calibration.py`."""

import json

import numpy as np
import pandas as pd
import pytest

from foretune.errors import RunTableError, UsageError
from foretune.plan import Formats, Layout, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.calibration import Calibration, read_calibration
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

MODEL = describe_model("meta-llama/Llama-3.1-8B")
SYSTEM = find_system("h100_sxm")
CLOCKS = StepTimerFactory(None)


def deployment(concurrency, layout=Layout(), isl=512):  # noqa: B008  # immutable
    return Deployment(MODEL, SYSTEM, "vllm", layout, Formats(), Workload(isl, 64), concurrency)


def line(concurrency, slower=1.3, **more):
    deployed = deployment(concurrency, Layout(int(more.get("tp", 1))))
    said = formula_latencies(analytic_times([deployed], CLOCKS)).iloc[0]
    return {
        "model_id": "org/Llama-3.1-8B",
        "tp": 1,
        "max_concurrency": concurrency,
        "completed": 100,
        "total_input_tokens": 51200,
        "total_output_tokens": 6400,
        "median_ttft_ms": slower * said["ttft_ms"],
        "median_tpot_ms": slower * said["tpot_ms"],
        **more,
    }


def read(tmp_path, lines, text=None):
    path = tmp_path / "lines.json"
    path.write_text(text or "\n".join(map(json.dumps, lines)))
    return read_calibration(path, MODEL, SYSTEM, "vllm", CLOCKS)


def factors(calibration, deployments):
    rows = analytic_times(deployments, CLOCKS)
    plain = formula_latencies(rows)
    return calibration.apply(rows, plain) / plain


def test_calibration_shifts_similar_deployments_most(tmp_path):
    found = read(tmp_path, [line(n) for n in (1, 8, 32)])
    assert list(found.processes) == ["tpot_ms"]
    near, far = factors(found, [deployment(16), deployment(16, Layout(8), 8192)])["tpot_ms"]
    assert 1.15 < near < 1.3
    assert 1.0 < far < near


def test_calibration_time_to_first_token_needs_more_lines(tmp_path):
    few = factors(read(tmp_path, [line(n) for n in (1, 8, 32)]), [deployment(16)])
    assert few["ttft_ms"].item() == 1.0
    many = factors(read(tmp_path, [line(2**i) for i in range(8)]), [deployment(16)])
    assert 1.1 < many["ttft_ms"].item() < 1.3


def test_calibration_shifts_intervals():
    rows = analytic_times([deployment(n) for n in (1, 8)], CLOCKS)
    said = formula_latencies(rows)
    latencies = said.assign(tpot_ms_low=said["tpot_ms"] / 2, tpot_ms_high=said["tpot_ms"] * 2)
    shifted = Calibration.fit(rows, 0.8 * said, None).apply(rows, latencies)
    ratio = shifted["tpot_ms"] / said["tpot_ms"]
    assert (ratio < 0.9).all()
    pd.testing.assert_series_equal(
        shifted["tpot_ms_high"], 2 * shifted["tpot_ms"], check_names=False
    )


def test_read_calibration_layout(tmp_path):
    """vLLM's metadata and SGLang's account of itself say the same."""
    server = {
        "tp_size": 4,
        "dp_size": 1,
        "enable_dp_attention": False,
        "model_path": "x/Llama-3.1-8B",
    }
    said = line(8, tp="4")
    other = {**said, "model_id": None, "tp": None, "server_info": server}
    texts = [json.dumps([said]), json.dumps(said, indent=1), json.dumps(other)]
    shifts = [factors(read(tmp_path, (), text), [deployment(8, Layout(4))]) for text in texts]
    assert np.ptp([one["tpot_ms"].item() for one in shifts]) < 1e-9
    assert shifts[0]["tpot_ms"].item() > 1.15


@pytest.mark.parametrize(
    ("lines", "error", "reason"),
    [
        ([{}], UsageError, "does not name the model"),
        ([{**line(8), "completed": None}], RunTableError, "completed is None"),
        ([{**line(8), "tp": None}], UsageError, "--metadata tp=N"),
        ([{"benchmarks": []}], UsageError, "has no benchmark"),
        (["x"], RunTableError, "no JSON objects"),
        ([{**line(8), "tp": "four"}], RunTableError, "are not all numbers"),
        ([{**line(8), "tp": "5"}], UsageError, "cannot be served on tp5"),
        ([{**line(8), "max_concurrency": None}], UsageError, "--max-concurrency N"),
        ([{**line(8), "median_tpot_ms": None}], UsageError, "streams tokens"),
        ([{**line(8), "failed": 25}], UsageError, "25 of 125 requests failed"),
        ([{**line(8), "num_prompts": 125}], UsageError, "25 of 125 requests failed"),
        # 100 requests, 8 at a time, of 63 tokens after the first: 12.5 × (30 + 63 × 6) ms are 5 s.
        (
            [{**line(8), "duration": 5.0, "median_ttft_ms": 0.03, "median_tpot_ms": 0.006}],
            UsageError,
            "give milliseconds",
        ),
        ([{**line(8), "model_id": "Qwen/Qwen3-8B"}], UsageError, "give lines of meta-llama"),
    ],
)
def test_read_calibration_invalid_line_is_refused(tmp_path, lines, error, reason):
    with pytest.raises(error, match=reason):
        read(tmp_path, lines, json.dumps(lines))


def test_read_calibration_weights_that_fit_nowhere_are_refused(tmp_path):
    large = describe_model("meta-llama/Llama-3.1-70B-Instruct")
    path = tmp_path / "lines.json"
    path.write_text(json.dumps({**line(8), "model_id": large.name}))
    # 70.6e9 weights of two bytes are 131.4 GiB.
    with pytest.raises(UsageError, match=r"takes 131\.4 GiB a GPU on one GPU"):
        read_calibration(path, large, SYSTEM, "vllm", CLOCKS)


@pytest.mark.parametrize(
    "model_id",
    ["/models/Llama-3.1-8B/", "/cache/hub/models--meta-llama--Llama-3.1-8B/snapshots/abc"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_read_calibration_of_a_folder_and_an_encoding(tmp_path, model_id, encoding):
    path = tmp_path / "lines.json"
    path.write_text(json.dumps({**line(8), "model_id": model_id}), encoding=encoding)
    assert list(read_calibration(path, MODEL, SYSTEM, "vllm", CLOCKS).processes) == ["tpot_ms"]


def test_read_calibration_without_json_is_refused(tmp_path):
    with pytest.raises(RunTableError, match=r"no JSON: give the file that vllm bench serve"):
        read(tmp_path, (), "TTFT 12 ms")


def test_read_calibration_numbers_in_texts_are_numbers(tmp_path):
    said = line(8)
    texts = {name: str(value) for name, value in said.items()}
    deployments = [deployment(8)]
    shifted = factors(read(tmp_path, [texts]), deployments)
    assert (
        shifted["tpot_ms"].item() == factors(read(tmp_path, [said]), deployments)["tpot_ms"].item()
    )
