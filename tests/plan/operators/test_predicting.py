"""What an operator costs on a device, without training."""

import numpy as np
import pytest

import foretune
from foretune.device import find_device
from foretune.errors import ProblemError, UnknownName, UsageError
from foretune.plan.operators import predicting
from foretune.plan.operators.measured_rows import MeasuredRows
from foretune.plan.operators.predicting import predict_operator

SIZES = {"M": 4096, "N": 4096, "K": 4096}


@pytest.fixture(autouse=True)
def without_tables(monkeypatch):
    monkeypatch.setattr(predicting, "table_rows", lambda kernel, system, engine: None)


def test_predict_operator_is_public():
    assert foretune.predict_operator is predict_operator


def test_predict_operator_unmeasured_gpu_names_nearest_and_has_wide_interval():
    sibling = predict_operator("gemm", "h200_sxm", SIZES)
    far = predict_operator("gemm", "RTX 4090", SIZES)

    assert far.source == "predicted"
    assert far.nearest[0].name == "l40s"
    assert "never measured" in far.note
    assert far.time_ms_low < far.time_ms < far.time_ms_high
    width = far.time_ms_high / far.time_ms_low
    assert width > sibling.time_ms_high / sibling.time_ms_low


def test_predict_operator_is_not_faster_than_the_roofline_allows():
    answer = predict_operator("gemm", "RTX 4090", SIZES)

    device = find_device("RTX 4090")
    limit_ms = 2 * 4096**3 / (device.specs["bf16_gflops"] * 1e6)
    assert answer.bottleneck == "compute"
    assert answer.limit_share == pytest.approx(limit_ms / answer.time_ms)
    assert answer.limit_share < 1.2


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        ("attention", {"seq_len": 2048, "heads": 32, "kv_heads": 8}),
        ("attention", {"batch": 8, "kv_len": 2048, "heads": 32, "kv_heads": 8}),
        ("mla", {"batch": 8, "kv_len": 2048, "kv_dtype": "fp8"}),
        ("moe", {"tokens": 64, "hidden": 2048, "intermediate": 768, "experts": 128, "top_k": 8}),
        ("norm", {"rows": 4096, "columns": 4096}),
        ("softmax", {"rows": 4096, "columns": 4096}),
        ("elementwise", {"rows": 4096, "columns": 4096}),
        ("all_reduce", {"bytes": 2**20, "gpus": 8}),
        ("all_to_all", {"bytes": 2**20, "gpus": 8}),
    ],
)
def test_predict_operator_answers_each_operator(operator, sizes):
    small = predict_operator(operator, "L4", sizes)
    grown = "bytes" if "bytes" in sizes else next(iter(sizes))
    large = predict_operator(operator, "L4", {**sizes, grown: 16 * sizes[grown]})

    assert 0 < small.time_ms < large.time_ms


@pytest.mark.parametrize(
    ("operator", "device", "sizes", "error", "message"),
    [
        ("gem", "H100", SIZES, UnknownName, "did you mean 'gemm'"),
        ("gemm", "RTX 4091", SIZES, UnknownName, "did you mean 'RTX 4090'"),
        ("gemm", "H100", {"M": 1, "N": 1}, ProblemError, "needs K"),
        ("gemm", "H100", {**SIZES, "Q": 1}, UnknownName, "unknown problem parameter"),
        ("gemm", "H100", {**SIZES, "m": 1}, UsageError, "given twice"),
        ("gemm", "A100-SXM4-80GB", {**SIZES, "dtype": "mxfp8"}, UsageError, "no kernels for mxfp8"),
        ("gemm", "T4", {**SIZES, "M": 2**22}, UsageError, "give smaller sizes"),
        ("gemm", "AMD EPYC 9654", SIZES, UsageError, "is no GPU"),
        ("all_reduce", "h100", {"bytes": 8, "gpus": 16}, UsageError, "more than the 8"),
    ],
)
def test_predict_operator_refuses(operator, device, sizes, error, message):
    with pytest.raises(error, match=message):
        predict_operator(operator, device, sizes)


def test_predict_operator_measured_row_is_the_answer(monkeypatch):
    m = np.array([1024.0, 2048.0, 4096.0, 8192.0])
    rows = MeasuredRows(
        columns={
            "problem.M": m,
            "problem.N": np.full(4, 4096.0),
            "problem.K": np.full(4, 4096.0),
            "config.format": np.full(4, "bf16"),
        },
        ms=3.0 * m / 4096.0,
    )
    monkeypatch.setattr(predicting, "table_rows", lambda kernel, system, engine: rows)

    measured = predict_operator("gemm", "RTX 4090", SIZES)
    between = predict_operator("gemm", "RTX 4090", {**SIZES, "M": 3072})

    assert measured.source == "measured"
    assert measured.time_ms == pytest.approx(3.0, rel=0.05)
    assert between.source == "interpolated"
    assert between.time_ms == pytest.approx(3.0 * 0.75, rel=0.15)
