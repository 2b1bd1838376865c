"""``foretune import`` as its users meet it."""

import json

import pytest

from foretune.cli import main
from foretune.datasets import read_runs

TABLE = "us,m,dtype\n1500,64,fp16\n0,32,fp16\n"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(TABLE)
    return [
        "import",
        "mine.csv",
        "--format",
        "generic",
        "--map",
        "time_ms=us*0.001",
        "--map",
        "problem.M=m",
        "--map",
        "kernel==gemm",
        "--map",
        "problem.N==7",
        "--device",
        "NVIDIA H200",
        "--out",
        "runs.parquet",
    ]


def test_import_json_counts_rows_by_reason(table, capsys):
    assert main([*table, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "schema_version": 1,
        "rows": 1,
        "rejected": 1,
        "reasons": {"time is zero": 1},
        "kernels": {"gemm": 1},
        "skipped": [],
        "out": "runs.parquet",
    }
    row = read_runs("runs.parquet").iloc[0]
    assert (row["time_ms"], row["problem.M"], row["problem.N"]) == (1.5, 64, 7)


def test_import_prints_rows_and_reasons(table, capsys):
    assert main(table) == 0
    out = capsys.readouterr().out
    assert "runs.parquet: 1 rows, 1 rejected" in out
    assert "1 rejected: time is zero" in out
    assert "gemm" in out


def test_import_names_skipped_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text('{"key": [1], "configs_timings": [[{"kwargs": {}}, 1.5]]}')
    for name in ("a.autotune.json", "b.autotune.json"):
        (tmp_path / name).write_text((tmp_path / "a.json").read_text() if name[0] == "a" else "{}")
    command = ["import", ".", "--format", "triton", "--device", "NVIDIA H200", "--out", "r.parquet"]
    assert main(command) == 0
    assert "skipped: b.autotune.json is not an autotuning cache" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == ["b.autotune.json"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--map", "time_ms"], 2, "--map 'time_ms' is not of the form COLUMN=VALUE"),
        (["--map", "=3"], 2, "--map '=3' is not of the form COLUMN=VALUE"),
        (["--map", "problem.K=k"], 2, "mine.csv has no column 'k': it has us, m, dtype"),
        (["--format", "excel"], 2, "unknown format 'excel'"),
        (["--format", "t4"], 2, "format 't4' has fixed columns"),
        (["nowhere"], 1, "nowhere does not exist: give a file or a folder"),
        (["--out", "mine.csv/x.parquet"], 1, "cannot write"),
    ],
)
def test_import_wrong_use_is_one_line(table, capsys, more, code, message):
    assert main([*table, *more]) == code
    err = capsys.readouterr().err.strip().splitlines()
    assert err[-1].startswith("foretune: ")
    assert message in err[-1]


def test_import_folder_refuses_own_output(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("kernel,device,problem.M,time_ms\ng,d,1,0.5\n")
    out = str(tmp_path / "runs.parquet")
    command = ["import", str(tmp_path), "--format", "generic", "--out", out]
    assert main(command) == 0
    assert main(command) == 2
    assert "runs.parquet is an input file" in capsys.readouterr().err
    assert len(read_runs(out)) == 1
