"""Tables of measured deployments: `plan/serve/deployments/measured_deployments.py`."""

import pandas as pd
import pytest

from foretune.plan.describe.layout import Layout
from foretune.plan.serve.deployments.measured_deployments import read_measured_deployments

ROW = {
    "backend": "vllm",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h100_sxm",
    "mode": "agg",
    "isl": 1000,
    "osl": 100,
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8",
    "batch_size": 16.0,
    "tp_size": 4.0,
    "pp_size": 1.0,
    "attention_dp_size": 1.0,
    "moe_tp_size": None,
    "moe_ep_size": None,
    "silicon_concurrency": 16.0,
    "silicon_ttft_ms": 100.0,
    "silicon_tpot_ms": 10.0,
    "source_kind": "inferencex csv",
}
POOLS = {
    "mode": "disagg",
    "model_path": "deepseek-ai/DeepSeek-V3",
    "prefill_tp_size": 4.0,
    "decode_tp_size": 8.0,
    "decode_num_workers": 2.0,
    "prefill_num_workers": 1.0,
    "batch_size": None,
    "tp_size": None,
    "silicon_concurrency": 64.0,
}


@pytest.fixture
def read(tmp_path):
    def make(*changes):
        path = tmp_path / "e2e.parquet"
        pd.DataFrame([ROW | change for change in changes]).to_parquet(path)
        return read_measured_deployments(path)

    return make


def test_read_measured_deployments_row(read):
    data = read({})
    (deployment,) = data.deployments
    assert deployment.layout == Layout(4)
    assert (deployment.workload.isl, deployment.workload.osl) == (900, 90)
    assert (deployment.formats.weights, deployment.formats.kv) == ("fp8", "fp8")
    assert deployment.load == "steady"
    assert data.measured.loc[0].tolist() == [10.0, 100.0]


def test_read_measured_deployments_counts_rows_without_load(read):
    data = read(
        {},
        {"silicon_concurrency": None},
        {"silicon_concurrency": None, "batch_size": None},
        POOLS,
        POOLS | {"decode_num_workers": None},
        {"model_path": "nobody/knows-this-one"},
    )
    assert (len(data.deployments), data.excluded, data.unknown) == (3, 2, 1)
    assert data.rows.tolist() == [0, 1, 3]
    assert data.deployments[1].concurrency == 16
    assert data.deployments[2].batch == 32


def test_measured_deployments_checkpoints_of_one_architecture_are_one_model(read):
    data = read(
        {"model_path": "deepseek-ai/DeepSeek-R1"}, {"model_path": "deepseek-ai/DeepSeek-V3"}
    )
    assert data.models[0] == data.models[1]


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({"backend_version": "0.19.0", "measured_date": "2026-04-21"}, "0.19.0"),
        ({"backend_version": None, "measured_date": "2025-12-05"}, "of 2025-12"),
        ({}, ""),
    ],
)
def test_read_measured_deployments_version_or_month(read, change, version):
    data = read(change)
    assert data.deployments[0].version == version


@pytest.mark.parametrize(
    ("change", "weights", "moe"),
    [
        ({"gemm_quant_mode": None, "moe_quant_mode": None}, "bf16", "bf16"),
        # A table may leave out either label of a dense model.
        ({"moe_quant_mode": None}, "fp8", "fp8"),
        ({"gemm_quant_mode": None}, "bf16", "fp8"),
        ({"model_path": "openai/gpt-oss-120b"}, "bf16", "mxfp4"),
        ({"model_path": "openai/gpt-oss-120b", "system": "b200_sxm"}, "bf16", "w4a8_mxfp4_mxfp8"),
        (
            {
                "model_path": "deepseek-ai/DeepSeek-R1",
                "gemm_quant_mode": "nvfp4",
                "moe_quant_mode": "nvfp4",
            },
            "bf16",
            "nvfp4",
        ),
    ],
)
def test_read_measured_deployments_formats(read, change, weights, moe):
    formats = read(change).deployments[0].formats
    assert (formats.weights, formats.moe) == (weights, moe)


def test_read_measured_deployments_large_tp_is_attention_dp(read):
    wide = {
        "model_path": "deepseek-ai/DeepSeek-V3",
        "tp_size": 36.0,
        "moe_tp_size": 36.0,
        "moe_ep_size": 1.0,
    }
    assert read(wide).deployments[0].layout == Layout(1, 1, 36, 1, 36)


@pytest.mark.shared_data
def test_read_measured_deployments_published_table(shared_data):
    data = read_measured_deployments(shared_data / "llm" / "e2e_silicon.parquet")
    assert len(data.deployments) + data.excluded + data.unknown == 1946
    assert data.unknown <= 1  # a model that only aiconfigurator-core describes
    assert len(set(data.models)) == 10
