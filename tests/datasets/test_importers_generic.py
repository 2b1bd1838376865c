"""The generic importer: any table, with a mapping."""

import pandas as pd
import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError, UsageError

HERE = {"kernel": "gemm", "device": "NVIDIA H200"}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "m,n,latency us,latency_ns,dtype,when\n"
        "64,128,1500,1500000,fp16,2026-01-01T00:00:00\n"
        "32,128,n/a,,fp32,2026-01-01T00:00:01\n"
    )
    return path


def imported(path, **mapping):
    names = {name.replace("__", "."): source for name, source in mapping.items()}
    return import_runs(path, "generic", mapping=names, **HERE)


def test_read_maps_and_scales_columns(table, survives):
    done = imported(
        table,
        time_ms="latency us*0.001",
        problem__M="m",
        problem__N="n",
        config__format="dtype",
        recorded_at="when",
    )
    assert done.rejected == {"time is not a number": 1}
    row = done.runs.iloc[0]
    assert (row["kernel"], row["device"], row["status"]) == ("gemm", "NVIDIA H200", "ok")
    assert (row["time_ms"], row["problem.M"], row["config.format"]) == (1.5, 64, "fp16")
    assert (row["recorded_at"], row["source"]) == ("2026-01-01T00:00:00", "generic mine.csv")
    assert row["device.power_limit_w"] == 700
    survives(done)


def test_read_latin_1_keeps_numbers_and_says_so(tmp_path):
    (tmp_path / "old.csv").write_bytes("größe,latency_µs\n64,2.5\n".encode("latin-1"))
    done = imported(tmp_path / "old.csv", problem__M="größe")
    assert done.runs["time_ms"].tolist() == [0.0025]
    assert any("WINDOWS-1252" in note for note in done.notes)


def test_read_control_characters_are_refused(tmp_path):
    (tmp_path / "junk.csv").write_bytes(b"M,time_ms\n\xff\x01\x02,2.0\n")
    with pytest.raises(RunTableError, match=r"junk\.csv is not a readable table: it is not text"):
        imported(tmp_path / "junk.csv")


def test_read_divides_times(table):
    done = imported(table, time_ms="latency_ns / 1e6", problem__M="m")
    assert done.runs["time_ms"].tolist() == [1.5]


def test_read_run_table_columns_need_no_mapping(tmp_path):
    path = tmp_path / "runs.parquet"
    pd.DataFrame(
        {
            "kernel": ["a", "b"],
            "device": ["x", "y"],
            "time_ms": [1.0, 2.0],
            "config.x": [1, 2],
            "static.registers": ["32", "?"],
            "else": [0, 0],
            "error": [None, 5],
            "status": ["ok", "timeout"],
        }
    ).to_parquet(path)
    runs = import_runs(path, "generic").runs
    assert runs["kernel"].tolist() == ["a", "b"]
    assert "else" not in runs
    assert runs["static.registers"].tolist()[0] == 32
    assert runs["error"].tolist()[1] in ("5", "5.0")
    assert runs["time_ms"].isna().tolist() == [False, True]  # what failed has no time


def test_read_given_names_replace_columns(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("kernel,device,time_ms,config.x\na,x,1.0,1\n")
    runs = import_runs(path, "generic", **HERE).runs
    assert (runs["kernel"][0], runs["device"][0]) == ("gemm", "NVIDIA H200")


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, r"time_ms has no source: add --map time_ms=COLUMN\*FACTOR; .*latency us"),
        ({"time_ms": "latency_ns"}, r"column describes what was run: add --map problem\.M=COL"),
        ({"time_ms": "speed", "problem.M": "m"}, "has no column 'speed': it has m, n"),
        ({"time_ms": "speed*2", "problem.M": "m"}, "has no column 'speed': it has m, n"),
        ({"time_ms": "latency_ns*x", "problem.M": "m"}, "has no column 'x': it has m, n"),
        ({"time_ms": "latency_ns*", "problem.M": "m"}, "is not an expression"),
        ({"time_ms": "latency n", "problem.M": "m"}, "no such column: it has m, n"),
        ({"M": "m", "time_ms": "latency_ns"}, "'M' is not a run-table column"),
        ({"problem.": "m", "time_ms": "latency_ns"}, "'problem.' is not a run-table column"),
    ],
)
def test_read_wrong_mapping_is_refused(table, mapping, message):
    with pytest.raises(UsageError, match=message):
        import_runs(table, "generic", mapping=mapping, **HERE)


@pytest.mark.parametrize("missing", ["kernel", "device"])
def test_read_without_kernel_or_device_is_refused(table, missing):
    given = {k: v for k, v in HERE.items() if k != missing}
    mapping = {"time_ms": "latency_ns", "problem.M": "m"}
    with pytest.raises(UsageError, match=f"{missing} has no source: add --map {missing}=COLUMN"):
        import_runs(table, "generic", mapping=mapping, **given)


def test_read_constants_count_as_sources(table):
    mapping, same = {"time_ms": "latency_ns*1e-6"}, {"problem.M": 64, **HERE}
    runs = import_runs(table, "generic", mapping=mapping, constants=same).runs
    assert runs["problem.M"].tolist() == [64]


def test_read_evaluates_expressions(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("latency (us),m,n\n1500,64,2\n3000,32,4\n")
    mapping = {"time_ms": "latency (us)*0.001", "problem.M": "m", "problem.flops": "2*m*n"}
    runs = import_runs(path, "generic", mapping=mapping, **HERE).runs
    assert runs["time_ms"].tolist() == [1.5, 3.0]
    assert runs["problem.flops"].tolist() == [256.0, 256.0]


CUTLASS = """Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,cta_m,\
stages,Runtime
1,CUTLASS,gemm,cutlass_tensorop_h16816gemm,passed,success,universal,1024,512,256,256,3,0.5
1,CUTLASS,gemm,cutlass_tensorop_idle,not_run,success,universal,1024,512,256,128,4,0
"""


CUTLASS_COLUMNS = {
    "time_ms": "Runtime",
    "problem.M": "m",
    "problem.N": "n",
    "problem.K": "k",
    "kernel": "OperationKind",
    "config.implementation": "Operation",
}


@pytest.mark.parametrize("status", [{}, {"status": "Disposition"}], ids=["found", "mapped"])
def test_cutlass_rows_that_failed_their_check_are_not_ok(tmp_path, status):
    wrong = CUTLASS.splitlines()[1].replace("passed", "incorrect").replace(",0.5", ",0.001")
    (tmp_path / "out.gemm.csv").write_text(CUTLASS + wrong + "\n")
    mapping = {**CUTLASS_COLUMNS, **status}
    done = import_runs(tmp_path / "out.gemm.csv", "generic", device="NVIDIA H200", mapping=mapping)
    assert done.rejected == {}
    assert done.runs["kernel"].tolist() == ["gemm"] * 3
    assert done.runs["status"].tolist() == ["ok", "invalid", "wrong_result"]
    assert done.runs["time_ms"].dropna().tolist() == [0.5]
    assert done.runs[["problem.M", "problem.N", "problem.K"]].iloc[0].tolist() == [1024, 512, 256]


def test_an_unknown_status_is_refused_by_name(tmp_path):
    path = tmp_path / "out.gemm.csv"
    path.write_text(CUTLASS.replace("passed", "dubious"))
    with pytest.raises(UsageError, match="'dubious' in column 'Disposition' is no known status"):
        import_runs(path, "generic", device="NVIDIA H200", mapping=CUTLASS_COLUMNS)
    all_ok = {"status": "ok"}
    done = import_runs(
        path, "generic", device="NVIDIA H200", mapping=CUTLASS_COLUMNS, constants=all_ok
    )
    assert done.runs["time_ms"].tolist() == [0.5]


def test_read_lines_longer_than_header_are_refused(tmp_path):
    """pandas would take the first column for an index, and the second for the time."""
    path = tmp_path / "runs.csv"
    path.write_text("time_ms,problem.M,config.x\n0.5,64,1,2\n0.6,65,1,2\n")
    with pytest.raises(RunTableError, match="its lines have more cells than its header"):
        import_runs(path, "generic", **HERE)


def test_read_suffix_in_capitals(tmp_path):
    rows = pd.DataFrame({"time_ms": [0.5], "problem.M": [64]})
    rows.to_parquet(tmp_path / "A.PARQUET")
    rows.to_csv(tmp_path / "B.CSV.GZ", index=False, compression="gzip")
    assert len(import_runs(tmp_path, "generic", **HERE).runs) == 2


@pytest.mark.parametrize(
    ("column", "words", "expected"),
    [
        ("returncode", ["0", "1"], ["ok", "runtime_error"]),
        ("PASS", ["1", "0"], ["ok", "wrong_result"]),
        ("is_valid", ["True", "False"], ["ok", "invalid"]),
        ("result", ["PASSED", "FAILED"], ["ok", "runtime_error"]),
        ("timed_out", ["no", "yes"], ["ok", "timeout"]),
        ("error", ["", "CUDA error"], ["ok", "runtime_error"]),
    ],
)
def test_read_columns_that_say_how_a_run_ended(tmp_path, column, words, expected):
    path = tmp_path / "runs.csv"
    path.write_text(f"M,latency_us,{column}\n64,12.5,{words[0]}\n96,1.0,{words[1]}\n")
    done = imported(path, problem__M="M")
    assert done.runs["status"].tolist() == expected
    assert done.runs["time_ms"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("column", "words"),
    [("status", ["0", "0"]), ("check", ["OK", "NOK"]), ("result", ["passed", "dubious"])],
)
def test_read_status_that_may_mean_either_is_asked_for(tmp_path, column, words):
    path = tmp_path / "runs.csv"
    path.write_text(f"M,latency_us,{column}\n64,12.5,{words[0]}\n96,1.0,{words[1]}\n")
    with pytest.raises(UsageError, match="is no known status"):
        imported(path, problem__M="M")


def test_read_word_in_place_of_a_time_is_a_failed_run(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("M,latency_us\n64,12.5\n96,OOM\n128,timeout\n")
    done = imported(path, problem__M="M")
    assert done.runs["status"].tolist() == ["ok", "runtime_error", "timeout"]


@pytest.mark.parametrize(
    "text",
    [
        '[{"M": 64, "latency_us": 12.5}, {"M": 128, "latency_us": 20.1}]',
        '{"gpu": "x", "results": [{"M": 64, "latency_us": 12.5}, {"M": 128, "latency_us": 20.1}]}',
        '{"M": [64, 128], "latency_us": [12.5, 20.1]}',
        '{"M": 64, "latency_us": 12.5},\n{"M": 128, "latency_us": 20.1},\n',
    ],
    ids=["list", "list in an object", "columns", "lines with commas"],
)
def test_read_json_of_rows(tmp_path, text):
    path = tmp_path / "runs.json"
    path.write_text(text)
    done = imported(path, problem__M="M")
    assert done.runs["problem.M"].tolist() == [64, 128]
    assert done.runs["time_ms"].tolist() == pytest.approx([0.0125, 0.0201])


def test_read_json_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text('{"M": 64, "sizes": [1, 2]}')
    with pytest.raises(RunTableError, match="no list of objects"):
        imported(path, problem__M="M")


def test_read_parquet_with_another_name(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame({"M": [64], "latency_us": [12.5]}).to_parquet(path)
    assert imported(path, problem__M="M").runs["time_ms"].tolist() == [0.0125]


@pytest.mark.parametrize("columns", ["p99_latency_us", "min_time_us,max_time_us", "predicted_ms"])
def test_read_other_statistics_are_no_time_of_a_run(tmp_path, columns):
    path = tmp_path / "runs.csv"
    path.write_text(f"M,{columns}\n64{',2.5' * (columns.count(',') + 1)}\n")
    with pytest.raises(UsageError, match="time_ms has no source"):
        imported(path, problem__M="M")
