"""Rows of cells: tables whose header does not name the column of row numbers."""

import pytest

from foretune.datasets.importers.files import read_table
from foretune.errors import RunTableError

SQLITE = """
┌─────┬─────────┐
│  N  │ time_ms │
├─────┼─────────┤
│ 64  │ 1.5     │
│ 128 │ 2.5     │
└─────┴─────────┘
"""
RICH = """
┏━━━━━┳━━━━━━━━━┓
┃ N   ┃ time_ms ┃
┡━━━━━╇━━━━━━━━━┩
│ 64  │ 1.5     │
│ 128 │ 2.5     │
└─────┴─────────┘
"""
MYSQL = """
+-----+---------+
| N   | time_ms |
+-----+---------+
| 64  |     1.5 |
| 128 |     2.5 |
+-----+---------+
2 rows in set (0.00 sec)
"""

MARKDOWN = """
| N       | time_ms   |
|---------|----------:|
| `64`    | **1.5**   |
| *128*   | 2.5       |
"""


@pytest.mark.parametrize(
    "text",
    [
        '"N" "time_ms"\n"1" 64 1.5\n"2" 128 2.5\n',  # R's write.table
        "N\ttime_ms\n1\t64\t1.5\n2\t128\t2.5\n",  # with sep = "\t"
        "     N  time_ms\n0   64      1.5\n1  128      2.5\n",  # pandas' to_string
    ],
    ids=["R", "R, tabs", "pandas"],
)
def test_table_without_a_name_for_row_numbers_is_read(tmp_path, text):
    path = tmp_path / "runs.txt"
    path.write_text(text, encoding="utf-8")

    table = read_table(path)

    assert table["N"].tolist() == [64, 128]
    assert table["time_ms"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "text",
    [SQLITE, RICH, MYSQL, MARKDOWN],
    ids=["SQLite", "Rich", "MySQL", "Markdown"],
)
def test_drawn_table_is_read(tmp_path, text):
    path = tmp_path / "runs.txt"
    path.write_text(text, encoding="utf-8")

    table = read_table(path)

    assert table["N"].tolist() == [64, 128]
    assert table["time_ms"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "text",
    [
        "N\ttime_ms\n64\t1.5\tms\n128\t2.5\tms\n",  # a unit behind each number
        "N\ttime_ms\n1\t64\t1.5\n3\t128\t2.5\n",  # no numbers of rows
        "N,time_ms\n1,2,5\n2,3,5\n",  # unquoted decimal commas
    ],
    ids=["units", "gap", "commas"],
)
def test_table_with_longer_lines_is_refused(tmp_path, text):
    path = tmp_path / "runs.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunTableError):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("runs.toml", "[[run]]\nN = 64\n", "TOML"),
        ("runs.yaml", "- N: 64\n  time_ms: 1.5\n", "YAML"),
        ("runs.txt", "[{'N': 64, 'time_ms': 1.5}]", "literal of Python"),
        ("runs.jsonl", 'INFO start\n{"N": 64, "time_ms": 1.5}\n', "its line 'INFO start' is none"),
        ("runs.jsonl", "[{'N': 64}]", "literal of Python"),
        ("runs.log", "# nThread 1 nGpus 8 minBytes 8\n#\n", "nccl-tests"),
        ("runs.log", "#  size  count  type\n#  (B)\n  8  2  float\n", "nccl-tests"),
        ("bench.txt", "goos: linux\nBenchmarkA/64-8  100  1500000 ns/op\n", "go test -bench"),
        ("polars.txt", "shape: (1, 1)\n┌───┐\n│ N │\n└───┘\n", "Polars"),
        (
            "torch.txt",
            "----  ----\n  Name    Self CPU %\n----  ----\n  mm  50.0%\n",
            "torch.profiler",
        ),
        ("time.txt", '\tCommand being timed: "./a"\n\tUser time: 0.0\n', "GNU time"),
    ],
)
def test_read_table_names_other_text(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunTableError) as refusal:
        read_table(path)
    assert words in str(refusal.value)


def test_read_table_header_that_begins_with_a_bracket_is_no_json(tmp_path):
    path = tmp_path / "hipblaslt.csv"
    path.write_text("[0]:transA,m,us\nN,64,1500\nN,128,2500\n")
    assert read_table(path)["us"].tolist() == [1500, 2500]
