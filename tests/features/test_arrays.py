"""A run table's columns as arrays: `features/arrays.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.features.arrays import Rows, as_array, groups_of

TABLE = pd.DataFrame(
    {
        "problem.size": [4, 8, 8, 1 << 60],
        "problem.share": [0.5, np.nan, 2.0, -1.0],
        "config.flag": [True, False, True, True],
        "config.maybe": pd.array([1, None, 3, 1], dtype="Int64"),
        "config.text": ["a", "b", "", "a"],
        "config.gaps": pd.Series(["a", None, "c", "a"], dtype=object),
        "config.mixed": pd.Series(["auto", 1, 0.5, "auto"], dtype=object),
        "config.switch": pd.Series(["auto", True, False, True], dtype=object),
        "config.kind": pd.Categorical(["x", None, "y", "x"], categories=["y", "unused", "x"]),
        "config.either": pd.Categorical([1, "auto", 2, 1]),
        "config.number": pd.Categorical([16, 32, 16, 16]),
        "device": pd.Series(["d", "e", "d", "d"], dtype="string"),
    }
)


@pytest.mark.parametrize("column", TABLE)
def test_rows_columns_are_arrays(column):
    rows = Rows(TABLE)
    np.testing.assert_array_equal(rows[column], as_array(TABLE[column]))
    assert rows[column] is rows[column]  # converted once


@pytest.mark.parametrize(
    "column", [c for c in TABLE if c not in ("config.gaps", "config.mixed", "config.switch")]
)
@pytest.mark.parametrize("row", range(len(TABLE)))
def test_rows_one_row_reads_as_among_others(column, row):
    alone = Rows(TABLE.iloc[[row]])
    together = Rows(TABLE)
    np.testing.assert_array_equal(alone[column], together[column][[row]])
    assert alone[column].dtype.kind == together[column].dtype.kind


@pytest.mark.parametrize("column", TABLE)
@pytest.mark.parametrize("row", range(len(TABLE)))
def test_as_text_values(column, row):
    text, codes = Rows(TABLE).distinct(column)
    own, [code] = Rows(TABLE.iloc[[row]]).distinct(column)
    assert text[codes[row]] == own[code]


@pytest.mark.parametrize("row", range(len(TABLE)))
def test_as_text_cells(row):
    texts = ["True", "1", "8", "0.5", "a", "auto", "x", str(1 << 60), ""]
    alone = Rows(TABLE.iloc[[row]])
    for column in TABLE:
        together = [written[row] for written in Rows(TABLE).text_masks(column, texts)]
        assert [mask.item() for mask in alone.text_masks(column, texts)] == together


def test_distinct_equal_texts_are_one_value():
    column = pd.Series(["auto", True, 1, "1", "True", 1.0, "auto"], dtype=object)
    for values in (column, column.astype("category")):
        groups = groups_of(pd.DataFrame({"config.switch": values}), ["config.switch"])
        assert [groups.names[code] for code in groups.codes] == ["auto", *["1"] * 5, "auto"]
        assert len(groups.names) == 2


def test_as_text_whole_numbers():
    values = [3.0, -0.0, 12345678.0, 2.0**52, -7.0]
    for extra in ([], [0.5], [1e300], [np.nan], [np.inf]):
        text, codes = Rows(pd.DataFrame({"x": [*values, *extra]})).distinct("x")
        each = [Rows(pd.DataFrame({"x": [v]})).distinct("x")[0][0] for v in [*values, *extra]]
        assert text[codes].tolist() == each
    assert each[:5] == ["3", "0", "12345678", str(2**52), "-7"]


def test_without_leaves_columns_out():
    rows = Rows(TABLE)
    rest = rows.without(["config.flag", "config.text"])
    assert "config.flag" in rows
    assert "config.flag" not in rest
    assert list(rest.group("config")) == [
        "maybe",
        "gaps",
        "mixed",
        "switch",
        "kind",
        "either",
        "number",
    ]
    assert rows.without([]) is rows


def test_memoized_is_computed_once():
    rows = Rows(TABLE)
    made = []

    def make():
        made.append(1)
        return len(made)

    assert [rows.memoized("it", make), rows.memoized("it", make)] == [1, 1]
    assert rows.without(["device"]).memoized("it", make) == 2  # of other columns


def test_from_table_of_rows_is_the_same():
    rows = Rows(TABLE)
    assert Rows.from_table(rows) is rows
    assert len(Rows.from_table(TABLE)) == len(rows) == len(TABLE)


@pytest.mark.parametrize("row", range(len(TABLE)))
def test_groups_of_one_row(row):
    columns = ["config.text", "config.kind", "problem.size"]
    together = groups_of(TABLE, columns)
    alone = groups_of(TABLE.iloc[[row]], columns)
    assert alone.names == [together.names[together.codes[row]]]
    assert alone.codes == [0]


def test_with_columns_replaced_column_has_its_own_distinct_values():
    rows = Rows(pd.DataFrame({"device.cores": [1.0, np.nan], "device": ["d", "e"]}))
    rows.distinct("device.cores")

    filled = rows.with_columns({"device.cores": np.array([1.0, 8.0]), "device.l2_kib": np.ones(2)})
    texts, codes = filled.distinct("device.cores")
    assert texts[codes].tolist() == ["1", "8"]
    assert "device.l2_kib" in filled
    texts, codes = rows.distinct("device.cores")
    assert texts[codes].tolist() == ["1", ""]


def test_with_columns_of_some_rows():
    rows = Rows(TABLE).take(np.array([2, 0]))
    changed = rows.with_columns({"problem.size": np.array([5.0, 6.0])})
    texts, codes = changed.distinct("problem.size")
    assert texts[codes].tolist() == ["5", "6"]
    assert changed["config.text"].tolist() == ["", "a"]
