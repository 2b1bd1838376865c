"""Tests the schema's rules and their messages: `datasets/schema.py`."""

import math

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import validate
from foretune.datasets.schema import columns_of
from foretune.errors import RunTableError

NAN = math.nan


def table(**columns):
    """Three good rows, the last a failure, with some columns replaced or (None) left out."""
    rows = {
        "kernel": ["toy"] * 3,
        "device": ["Toy CPU"] * 3,
        "status": ["ok", "ok", "timeout"],
        "problem.M": [64, 64, 128],
        "config.x": [1, 2, 1],
        "time_ms": [1.0, 2.0, NAN],
        "power_w": [50.0, NAN, NAN],
        "energy_mj": [50.0, NAN, NAN],
        "device.power_limit_w": [100.0] * 3,
    }
    rows.update(columns)
    return pd.DataFrame({name: values for name, values in rows.items() if values is not None})


def test_validate_returns_valid_rows_unchanged():
    runs = table()
    assert validate(runs) is runs
    assert columns_of(runs, "config") == ["config.x"]
    assert columns_of(runs, "device") == ["device.power_limit_w"]  # not the column 'device'


@pytest.mark.parametrize(
    "columns",
    [
        {"power_w": None, "energy_mj": None},
        {"device.power_limit_w": None},
        {"problem.M": None},
        {"config.x": None},
        {"config.x": [True, False, None]},
        {"config.x": ["auto", 1, None]},
        {"config.x": pd.Categorical(["a", None, "b"])},
        {"problem.M": pd.array([1, 2, None], dtype="Int64")},
        {"status": pd.Categorical(["ok", "ok", "timeout"])},
        {"kernel": np.array(["toy"] * 3, dtype=object)},
        {"error": np.array([None, None, "too slow"], dtype=object)},
        {"error": [None] * 3},
        {"static.registers": [None] * 3},
        {"power_w": [119.0, NAN, NAN]},  # for a moment above the limit of 100
        {"anything.else": [[1], {}, None]},
    ],
)
def test_validate_accepts_optional_variation(columns):
    validate(table(**columns))


@pytest.mark.parametrize("column", ["kernel", "device", "status", "time_ms"])
def test_validate_missing_required_column_is_refused(column):
    with pytest.raises(RunTableError, match=f"my.parquet: column '{column}' is missing"):
        validate(table(**{column: None}), "my.parquet")


def test_validate_without_problem_and_config_is_refused():
    with pytest.raises(RunTableError, match="what was run is unknown"):
        validate(table(**{"problem.M": None, "config.x": None}))


def test_validate_repeated_column_is_refused():
    runs = table()
    runs = pd.concat([runs, runs[["config.x"]]], axis=1)
    with pytest.raises(RunTableError, match=r"column 'config.x' occurs twice"):
        validate(runs)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("time_ms", ["1", "2", "3"], "column 'time_ms' must hold numbers"),
        ("power_w", ["a", None, None], "column 'power_w' must hold numbers"),
        ("device.cores", ["four"] * 3, "column 'device.cores' must hold numbers"),
        ("static.registers", ["a"] * 3, "column 'static.registers' must hold numbers"),
        ("counter.reads", ["a"] * 3, "column 'counter.reads' must hold numbers"),
        ("kernel", [1, 2, 3], "column 'kernel' must hold text"),
        ("kernel", np.array(["a", 2, 3], dtype=object), "column 'kernel' must hold text"),
        ("recorded_at", pd.to_datetime(["2026-01-01"] * 3), "column 'recorded_at' must hold text"),
        ("config.x", [[1], [2], [3]], "column 'config.x' must hold numbers, booleans or text"),
        ("config.x", pd.to_datetime(["2026-01-01"] * 3), "'config.x' must hold numbers, boo"),
        ("problem.M", [{}, {}, {}], "'problem.M' must hold numbers, booleans or text"),
    ],
)
def test_validate_wrong_type_is_refused(column, values, message):
    with pytest.raises(RunTableError, match=message):
        validate(table(**{column: values}))


@pytest.mark.parametrize(
    ("column", "values", "row", "message"),
    [
        ("time_ms", [1, 0, NAN], 1, "status is ok but time_ms is 0.0"),
        ("time_ms", [-1, 1, NAN], 0, "status is ok but time_ms is -1.0"),
        ("time_ms", [-1, -2, NAN], 0, r"time_ms is -1.0 \(and 1 more rows\)"),
        ("time_ms", [1, NAN, NAN], 1, "status is ok but time_ms is nan"),
        ("time_ms", [1, np.inf, NAN], 1, "time_ms is inf"),
        ("time_ms", [1, -np.inf, NAN], 1, "time_ms is -inf"),
        ("time_ms", [1, 2, 3], 2, "the run failed but time_ms is 3.0"),
        ("status", ["ok", "fine", "timeout"], 1, "status 'fine' is not one of"),
        ("status", ["ok", None, "timeout"], 1, "is not one of"),
        ("kernel", ["toy", "", "toy"], 1, "kernel is empty"),
        ("device", ["a", "b", None], 2, "device is empty"),
        ("power_w", [0, NAN, NAN], 0, "power_w is 0.0: leave it empty without a meter"),
        ("power_w", [50, -1, NAN], 1, "power_w is -1.0"),
        ("power_w", [50, np.inf, NAN], 1, "power_w is inf"),
        ("power_w", [50, 121, NAN], 1, "power_w is 121.0, far above the device's power limit"),
        ("energy_mj", [0, NAN, NAN], 0, "energy_mj is 0.0"),
        ("energy_mj", [-3, NAN, NAN], 0, "energy_mj is -3.0"),
        ("energy_mj", [np.inf, NAN, NAN], 0, "energy_mj is inf"),
    ],
)
def test_validate_names_impossible_row(column, values, row, message):
    with pytest.raises(RunTableError, match=rf"my\.parquet, row {row}: .*{message}"):
        validate(table(**{column: values}), "my.parquet")


def test_validate_counts_rows_by_position():
    runs = table(time_ms=[1, 0, NAN]).set_index(pd.Index([7, 8, 9]))
    with pytest.raises(RunTableError, match="row 1:"):
        validate(runs)


def test_validate_accepts_empty_table():
    assert len(validate(table().iloc[:0])) == 0
