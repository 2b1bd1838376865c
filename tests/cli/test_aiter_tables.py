"""``foretune engine-config aiter``: what it lists, what it writes, what it refuses."""

import json

import pandas as pd
import pytest
from commands import fails

from foretune.__main__ import main
from foretune.plan.engine_files.aiter import TABLE_KINDS

MODEL = "deepseek-ai/DeepSeek-V3"
TABLE = TABLE_KINDS["a8w8_blockscale_tuned_gemm"]


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "aiter" / "configs"
    place.mkdir(parents=True)
    rows = [{"cu_num": 304, "M": m, "N": 3072, "K": 1536, "kernelId": 1, "us": 1.0}
            for m in (16, 64)]  # fmt: skip
    pd.DataFrame(rows).to_csv(place / f"{TABLE.name}.csv", index=False)
    return str(tmp_path / "aiter")


def run(capsys, *options):
    assert main(["engine-config", "aiter", MODEL, "--layout", "tp=8", *options]) == 0
    return capsys.readouterr().out


def test_rows_are_listed_and_written(tuned, capsys, tmp_path):
    said = run(capsys, "--device", "mi300x", "--tuned", tuned, "--out", "out")
    assert "there" in said
    assert "guessed" in said
    assert f"export {TABLE.variable}={tmp_path / 'out' / TABLE.name}.csv" in said
    assert all(len(line) <= 80 for line in said.splitlines() if "export" not in line)
    found = json.loads(run(capsys, "--device", "mi300x", "--tuned", tuned, "--json"))
    assert found["out"] is None
    there = [e["layer"] for e in found["layers"] if e["status"] == "there"]
    assert there == [{"N": 3072, "K": 1536}]


def test_a_gpu_without_rows(tuned, capsys):
    said = run(capsys, "--device", "mi355x", "--tuned", tuned, "--out", "out")
    assert "in no tuned table of AITER" in said
    assert "nothing to write" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--device", "h100_sxm"], "for AMD Instinct GPUs"),
        (["--device", "mi300x", "--triton", "3.5.1"], "--triton is not for aiter"),
        (["--device", "mi300x", "--measure", "--out", "out"], "only vLLM's kernels are measured"),
    ],
)
def test_what_makes_no_sense_is_refused(tuned, capsys, options, reason):
    said = fails(capsys, 2, "engine-config", "aiter", MODEL, "--tuned", tuned, *options)
    assert reason in said
