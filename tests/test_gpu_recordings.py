"""Tests the tables that benchmarks/gpu prints of an H100's recorded answers."""

import importlib
import json
from pathlib import Path

import pytest

from foretune.datasets import load
from foretune.datasets.runs import write_runs

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
H100 = BENCHMARKS / "gpu" / "h100"


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return what a stage prints of its recorded file, and the cells of its table."""

    def run(stage):
        for folder in (BENCHMARKS, BENCHMARKS / "gpu"):
            monkeypatch.syspath_prepend(str(folder))
        recorded = H100 / f"{stage}.jsonl"
        before = recorded.read_bytes()
        module = importlib.import_module({"gate": "known_gains"}.get(stage, stage))
        monkeypatch.setattr("sys.argv", [stage, "--minutes", "0", "--out", str(recorded)])
        module.main()
        assert recorded.read_bytes() == before
        text = capsys.readouterr().out
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return text, [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]

    return run


def test_gate_recording_has_no_false_win_and_finds_gains_of_3_percent(printed):
    text, table = printed("gate")
    assert "NVIDIA H100" in text
    assert text.endswith(
        "False wins: 0 of 116 comparisons of equals, 0 open. 3 %: 40 of 40 found.\n"
    )
    assert [row["false wins"] for row in table] == ["0 of 58"] * 2
    assert [row["1% found"] for row in table] == ["0 of 4", "2 of 4"]
    assert [row["3% found"] for row in table] == ["20 of 20"] * 2
    assert [row["10% found"] for row in table] == ["4 of 4"] * 2


def test_libraries_recording_results_equal_stock_triton(printed):
    text, table = printed("libraries")
    assert "LibTuner: tuned by Triton" in text
    assert {row["library"] for row in table} == {"fla", "liger", "flag_gems", "unsloth"}
    assert [row["equal"] for row in table] == ["yes"] * 17


def test_smoke_recording_all_items_pass(printed):
    _, table = printed("smoke")
    assert [row["result"] for row in table] == ["PASS"] * 13


@pytest.fixture
def tables(monkeypatch):
    """The module that reads recordings as calls of kernels."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    for folder in (BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("recorded_tables")


def test_recorded_tables_lists_keep_all_times(tables, tmp_path):
    rows = [json.loads(line) for line in (H100 / "autotune.jsonl").read_text().splitlines()]
    stock = [row for row in rows if row["tuner"] == "triton.autotune"]
    assert len(stock) == 28
    of_kernel = {row["kernel"]: row for row in stock}
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(json.dumps(of_kernel[name]) for name in ("gemm", "norm")))
    found = tables.read(few)
    assert set(found) == {"triton_gemm", "triton_norm"}
    for name, recorded in (("gemm", found["triton_gemm"][0]), ("norm", found["triton_norm"][0])):
        times = sorted(one["time_ms"] for one in of_kernel[name]["times"])
        assert sorted(recorded.time_ms) == times
        assert recorded.is_product == (name == "gemm")
        assert recorded.call.device.name == "NVIDIA H100 80GB HBM3"
    assert found["triton_gemm"][0].learned.columns.values.shape[0] == 40


def test_recorded_tables_shipped_table_gives_its_products(tables, tmp_path):
    runs = load("nvidia-h100-80gb")
    few = runs[runs["problem.seq_len"].eq(1024) | runs["problem.R"].eq(1024)]
    assert set(few["kernel"]) == {"triton_attention", "triton_softmax", "triton_norm"}
    write_runs(tmp_path / "few.parquet", few)
    found = tables.read(tmp_path / "few.parquet")
    assert set(found) == {"triton_attention"}
    for recorded in found["triton_attention"]:
        assert len(recorded.configs) >= 4
        assert recorded.learned.relative_speed.max() == 1.0
