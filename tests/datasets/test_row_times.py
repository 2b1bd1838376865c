"""Times of strangers' tables beside their column: `datasets/importers/row_times.py`."""

import pytest

from foretune.datasets import import_runs
from foretune.errors import UsageError

HERE = {"kernel": "gemm", "device": "NVIDIA H200"}


def imported(folder, text, name="mine.csv", **mapping):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return import_runs(path, "generic", mapping={"problem.M": "M", **mapping}, **HERE)


@pytest.mark.parametrize("column", ["unit", "Units", "duration_unit", "time_unit"])
def test_read_unit_of_each_row_counts(tmp_path, column):
    done = imported(tmp_path, f"M,duration,{column}\n64,900,us\n128,1.9,ms\n")
    assert done.runs["time_ms"].tolist() == [0.9, 1.9]


def test_read_unit_beside_a_mapped_column_counts(tmp_path):
    done = imported(tmp_path, "M,mean,unit\n64,900,us\n128,800,us\n", time_ms="mean")
    assert done.runs["time_ms"].tolist() == [0.9, 0.8]


@pytest.mark.parametrize("text", ["M,unit,time_ms\n64,KiB,1.5\n", "M,unit,time_ms\n64,s,1.5\n"])
def test_read_unit_of_something_else_does_not_count(tmp_path, text):
    assert imported(tmp_path, text).runs["time_ms"].tolist() == [1.5]


def test_read_repeats_in_a_cell_are_samples(tmp_path):
    done = imported(tmp_path, 'M,times_us\n64,"[1000, 3000, 1100]"\n128,\n')
    row = done.runs.iloc[0]
    assert row["time_ms"] == 1.1  # the median
    assert row["time_ms_samples"] == [1.0, 3.0, 1.1]
    assert done.rejected == {"time is not a number": 1}


def test_read_list_of_texts_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no list of numbers"):
        imported(tmp_path, "M,times_us\n64,\"[1000, 'x']\"\n")


@pytest.mark.parametrize("time", ["1e20", "1e10", "1000000000"])
def test_read_time_that_no_run_takes_is_a_failed_run(tmp_path, time):
    done = imported(tmp_path, f"M,time_ms\n64,1.5\n128,{time}\n")
    assert done.runs["status"].tolist() == ["ok", "runtime_error"]
    assert any("1 row failed" in note for note in done.notes)


@pytest.mark.parametrize(
    "text",
    [
        "M,metric,value\n64,time_ms,1.5\n64,gflops,100\n",
        "M,Metric Name,value\n64,mean,1.5\n64,p99,2.5\n",
    ],
)
def test_read_row_per_metric_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="has a row per metric"):
        imported(tmp_path, text, time_ms="value")


def test_read_metric_of_a_distance_is_a_parameter(tmp_path):
    text = "M,metric,time_ms\n64,cosine,1.5\n64,euclidean,2.5\n"
    assert imported(tmp_path, text).runs["time_ms"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize("column", ["GFLOPS", "speedup", "GB/s", "cycles"])
def test_read_result_mapped_to_the_time_is_refused(tmp_path, column):
    with pytest.raises(UsageError, match="is no time of a run"):
        imported(tmp_path, f"M,{column}\n64,100\n", time_ms=column)


def test_read_work_over_a_rate_is_a_time(tmp_path):
    done = imported(tmp_path, "M,GFLOPS\n64,100\n", time_ms="2e-6*M/GFLOPS")
    assert done.runs["time_ms"].tolist() == [2e-6 * 64 / 100]


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ("M,latency", "unit of latency is unknown: give --map time_ms=latency for"),
        ("M,Laufzeit [ms]", r"if Laufzeit \[ms\] is it, give --map 'time_ms=Laufzeit \[ms\]'"),
        ("M,timeMs,elapsed_sec", "has the times timeMs, elapsed_sec"),
        ("M,GFLOPS", "give --map time_ms=COLUMN for milliseconds"),
    ],
)
def test_read_without_a_time_names_the_likely_column(tmp_path, columns, hint):
    with pytest.raises(UsageError, match=hint):
        imported(tmp_path, f"{columns}\n64,1.5\n")
