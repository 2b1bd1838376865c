"""Tables in JSON: lists of objects, JSON lines, and the forms that pandas writes."""

import pandas as pd
import pytest

from foretune.datasets.json_tables import read_json_table

TABLE = pd.DataFrame({"M": [64, 128], "time_ms": [1.5, 2.5]})


@pytest.mark.parametrize("form", ["columns", "index", "records", "split", "table"])
def test_read_json_table_reads_forms_of_pandas(form):
    found = read_json_table(TABLE.to_json(orient=form).encode()).table
    assert found[["M", "time_ms"]].to_dict("list") == TABLE.to_dict("list")


def test_read_json_table_one_line_is_one_row():
    found = read_json_table(b'{"M": 64, "time_ms": 1.5}\n').table
    assert found.to_dict("list") == {"M": [64], "time_ms": [1.5]}


def test_read_json_table_cut_line_is_left_out():
    found = read_json_table(b'{"M": 64, "time_ms": 1.5}\n{"M": 128, "tim')
    assert found.table.to_dict("list") == {"M": [64], "time_ms": [1.5]}
    assert found.understood == "JSON, the last line breaks off and is left out"


def test_read_json_table_damage_in_the_middle_is_refused():
    with pytest.raises(ValueError, match="damaged JSON"):
        read_json_table(b'{"M": 64}\n{"M": 1\n{"M": 128}\n')


def test_read_json_table_nested_line_is_one_row():
    found = read_json_table(b'{"id": "a", "usage": {"prompt": 9}}').table
    assert found.to_dict("list") == {"id": ["a"], "usage.prompt": [9]}


def test_read_json_table_rows_by_key_are_refused():
    with pytest.raises(ValueError, match="no list of objects"):
        read_json_table(b'{"64_1": {"time_ms": 1.5}, "128_1": {"time_ms": 2.5}}')


def test_read_json_table_values_beside_lists_are_of_all_rows():
    found = read_json_table(b'{"gpu": "A", "M": [64, 128], "time_ms": [1.5, 2.5]}').table
    assert found["gpu"].tolist() == ["A", "A"]
    assert found[["M", "time_ms"]].to_dict("list") == TABLE.to_dict("list")


def test_read_json_table_numbers_in_texts_are_numbers():
    found = read_json_table(b'{"M": "64", "name": "a"}\n{"M": "128", "name": "2"}').table
    assert found["M"].tolist() == [64, 128]
    assert found["name"].tolist() == ["a", "2"]
