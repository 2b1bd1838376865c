"""Text tables of anybody: the same table in many dialects is read right, or refused."""

import csv
import io
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretune.datasets import import_runs
from foretune.datasets.text_tables import Dialect, read_text_table
from foretune.errors import ForetuneError, RunTableError, UsageError

GEMM = {"kernel": "gemm", "device": "NVIDIA H200"}
SIZES = {"problem.M": "M", "config.tile": "tile"}

UNITS_PER_MS = {"ns": 1e6, "us": 1e3, "ms": 1.0, "s": 1e-3}
SEPARATORS = (",", ";", "\t", "|")


def read(tmp_path, text, encoding="utf-8", **options):
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode(encoding))
    return read_text_table(path, Dialect(**options))


@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_separator_is_found(tmp_path, separator):
    found = read(tmp_path, "M,tile,time_ms\n64,a,0.5\n".replace(",", separator))
    assert found.table.to_dict("list") == {"M": [64], "tile": ["a"], "time_ms": [0.5]}


def test_a_comma_in_the_header_is_no_separator(tmp_path):
    found = read(tmp_path, "M;latency (us, median)\n64;12,5\n")
    assert found.table["latency (us, median)"].tolist() == [12.5]
    assert found.understood == "separator ;, decimal comma"


@pytest.mark.parametrize(
    "end", ["\n25", "\nOOM\n96;0,7\n"], ids=["a file that breaks off", "a short line"]
)
def test_a_short_line_does_not_hide_the_separator(tmp_path, end):
    found = read(tmp_path, f"M;time (ms, mean)\n64;0,5\n128;0,7{end}")
    assert found.table.columns.tolist() == ["M", "time (ms, mean)"]
    assert found.table["time (ms, mean)"].tolist()[:2] == [0.5, 0.7]


def test_a_separator_that_no_line_tells_is_asked_for(tmp_path):
    with pytest.raises(UsageError, match="its separator may be , or ;: give --separator"):
        read(tmp_path, "M;time (ms, mean)\n64\n128\n")


def test_the_separator_that_excel_writes_counts(tmp_path):
    found = read(tmp_path, "sep=;\r\nM;time_ms\r\n64;12,5\r\n")
    assert found.table.to_dict("list") == {"M": [64], "time_ms": [12.5]}


def test_an_ordinary_table_needs_no_word(tmp_path):
    assert read(tmp_path, "M,time_ms\n64,1.5\n").understood == ""
    # Without points between the thousands of 4096, the other point is that of decimals.
    found = read(tmp_path, "M,time_ms\n4096,1.234\n")
    assert found.table["time_ms"].tolist() == [1.234]


def test_utf_16_is_read(tmp_path):
    found = read(tmp_path, "M\tGröße\n64\t1,5\n", encoding="utf-16")
    assert found.table.to_dict("list") == {"M": [64], "Größe": [1.5]}
    assert found.understood == "separator tab, decimal comma, UTF-16"


def test_thousands_are_told_from_decimals_by_other_cells(tmp_path):
    found = read(tmp_path, "M;time_us\n1.024;1.234,5\n64;2.000\n")
    assert found.table.to_dict("list") == {"M": [1024, 64], "time_us": [1234.5, 2000]}


@pytest.mark.parametrize(
    "text", ["M;time_us\n64;1.234\n", "M,time_us\n64,1.234\n", 'M,time_us\n64,"1,234"\n']
)
def test_a_mark_that_nothing_tells_is_asked_for(tmp_path, text):
    with pytest.raises(UsageError, match=r"give --decimal \. or --decimal ,"):
        read(tmp_path, text)
    values = {read(tmp_path, text, decimal=d).table["time_us"][0] for d in ".,"}
    assert values == {1.234, 1234}


def test_an_appended_run_may_have_another_order(tmp_path):
    found = read(tmp_path, "M,tile,time_ms\n64,a,0.5\ntime_ms,M,tile\n0.25,128,b\n")
    assert found.table["M"].tolist() == [64, 128]
    assert found.table["time_ms"].tolist() == [0.5, 0.25]
    assert found.understood == "2 tables, one after the other"


@pytest.mark.parametrize("second", ["M,tile,time_us", "rows,block,latency_us"])
def test_an_appended_run_with_other_columns_is_refused(tmp_path, second):
    with pytest.raises(RunTableError, match=r"a second header, .* other columns than the first"):
        read(tmp_path, f"M,tile,time_ms\n64,a,0.5\n{second}\n128,b,250\n")


def test_a_line_of_units_belongs_to_the_header(tmp_path):
    found = read(tmp_path, "M,time\n,us\n64,12.5\n")
    assert found.table.to_dict("list") == {"M": [64], "time [us]": [12.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "a Git LFS pointer"),
        ("M,time_ms\n<<<<<<< HEAD\n64,1\n=======\n64,2\n>>>>>>> b\n", "conflict markers of Git"),
        ("results of today\nM,time_ms\n64,1\n128,2\n", "its first line, 'results of today'"),
        ("M,x,x\n64,1,2\n", "two of its columns are called 'x'"),
        ("", "it is empty"),
        ('{"a": 1}\n{"a": 2}\n', "JSON lines"),
        ('[{"a": 1}]', "it is JSON"),
        ('{"traceEvents": []}', "give --format torch-profiler"),
        ('{"i": [], "r": [], "v": "v0.6"}\n', "tuning records of TVM"),
        ("SQLite format 3\0", "an SQLite database"),
        ("PAR1", "a Parquet file"),
        ("<html>", "HTML"),
        ("64,1.5\n128,2.5\n", "its first line has numbers"),
    ],
)
def test_what_is_no_text_table_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "tile     time_ms\nmy tile  0.5\nb        1.25\n",
        "tile\ttime_ms\nmy tile\t0,5\nb\t1,25\n",
        "| tile | time_ms |\n|---|---|\n| my tile | 0.5 |\n| b | 1.25 |\n",
        "  tile   | time_ms\n---------+---------\n my tile | 0.5\n b | 1.25\n(2 rows)\n",
        "# host: x\ntile,time_ms\nmy tile,0.5\n# half\nb,1.25\n",
        "# tile,time_ms\nmy tile,0.5\nb,1.25\n",
        "tile,time_ms,\nmy tile,0.5,\nb,1.25,\n",
        "tile,time_ms\nmy tile,0.5\nb,1.25\nTotal,1.75\n",
        "tile,time_ms\nmy tile,0.5\nb,1.25\nmean,0.875\n",
        "tile,time_ms\nmy tile,0.5\nb,1.25\n,1.75\n",
        "tile,time_ms\nmy tile,0.5\nb,1.25\nc",
    ],
    ids=[
        *("aligned", "tabs", "Markdown", "psql", "comments", "commented header"),
        *("last separator", "total", "mean", "sum without a word", "cut off"),
    ],
)
def test_a_drawn_or_commented_table_is_read(tmp_path, text):
    found = read(tmp_path, text)
    assert found.table.to_dict("list") == {"tile": ["my tile", "b"], "time_ms": [0.5, 1.25]}


def test_an_appended_run_may_repeat_its_line_of_units(tmp_path):
    found = read(tmp_path, "M,time\n-,us\n64,1.5\ntime,M\nus,-\n2.5,128\n")
    assert found.table.to_dict("list") == {"M": [64, 128], "time [us]": [1.5, 2.5]}
    with pytest.raises(RunTableError, match="a second line of units"):
        read(tmp_path, "M,time\n-,us\n64,1.5\nM,time\n-,ms\n128,2.5\n")


def test_a_total_does_not_hide_an_ambiguous_number(tmp_path):
    with pytest.raises(UsageError, match=r"1\.000 may be 1\.000 or 1000"):
        read(tmp_path, '"time_us","M"\n"230","1.000"\n"323","64"\n"553","Total"\n')


def test_a_kernel_called_like_a_summary_is_a_run(tmp_path):
    found = read(tmp_path, "kernel,M,time_ms\nmin,64,0.5\nmax,64,0.75\nmean,64,0.4\n")
    assert found.table["kernel"].tolist() == ["min", "max", "mean"]


def test_tile_sizes_are_no_grouped_thousands(tmp_path):
    found = read(tmp_path, 'tile;block;time_ms\n64 128 256;"64,128";1,5\n16 32;"8,8,8";2,5\n')
    assert found.table["tile"].tolist() == ["64 128 256", "16 32"]
    assert found.table["block"].tolist() == ["64,128", "8,8,8"]
    assert found.table["time_ms"].tolist() == [1.5, 2.5]


def test_one_or_several_spaces_are_asked_for(tmp_path):
    with pytest.raises(UsageError, match="one or several spaces"):
        read(tmp_path, "a b  time_ms\n1 2  0.5\n")


def written(number, mark, group):
    """Return a number in a dialect: its thousands grouped, and its mark."""
    whole, _, decimals = number.partition(".")
    if group:
        whole = f"{int(whole):,}".replace(",", group)
    return f"{whole}{mark}{decimals}" if decimals else whole


@st.composite
def dialects(draw):
    """Return a file's text, its encoding, and the rows (size, tile, milliseconds) that it holds."""
    mark = draw(st.sampled_from(".,"))
    group = draw(st.sampled_from(["", "," if mark == "." else ".", " ", "'"]))
    separator = draw(st.sampled_from(SEPARATORS))
    unit = draw(st.sampled_from(sorted(UNITS_PER_MS)))
    place = draw(st.sampled_from(["name", "brackets", "cells", "second line", "nowhere"]))
    order = draw(st.permutations(["M", "tile", "time"]))
    decimals = draw(st.integers(0, 4))
    runs = draw(st.integers(1, 2))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))

    name = {"name": f"time_{unit}", "brackets": f"time [{unit}]"}.get(place, "time")
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=separator, quoting=quoting)
    truth = []
    for run in range(runs):
        columns = order if run == 0 else draw(st.permutations(order))
        writer.writerow([name if c == "time" else c for c in columns])
        if place == "second line":
            writer.writerow([unit if c == "time" else "" for c in columns])
        for _ in range(draw(st.integers(1, 4))):
            size = draw(st.sampled_from([1, 64, 1000, 1024, 12288, 1048576]))
            time = f"{draw(st.floats(0.01, 9999.0)):.{decimals}f}"
            tile = draw(st.sampled_from(["a", "b", "64x64"]))
            cells = {
                "M": written(str(size), mark, group),
                "tile": tile,
                "time": written(time, mark, group) + (f" {unit}" if place == "cells" else ""),
            }
            writer.writerow([cells[c] for c in columns])
            truth.append((size, tile, float(time) / UNITS_PER_MS[unit]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    return buffer.getvalue(), encoding, truth


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=dialects())
def test_no_dialect_is_read_wrong(tmp_path, drawn):
    text, encoding, truth = drawn
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode(encoding))
    try:
        imported = import_runs(path, "generic", mapping=SIZES, **GEMM)
    except ForetuneError:
        return  # refused, which is fine
    right = [row for row in truth if row[2] > 0]  # times of zero are left out
    assert len(imported.runs) == len(right)
    for (_, row), (size, tile, time_ms) in zip(imported.runs.iterrows(), right, strict=True):
        assert (row["problem.M"], row["config.tile"]) == (size, tile)
        assert math.isclose(row["time_ms"], time_ms, rel_tol=1e-9)
