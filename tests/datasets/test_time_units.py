"""Units of time in names of columns and in cells."""

import pandas as pd
import pytest

from foretune.datasets.time_units import (
    in_milliseconds,
    times_of_runs,
    times_with_units,
    unit_in_name,
)
from foretune.errors import UsageError


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("latency_us", "us"),
        ("runtime [ms]", "ms"),
        ("Avg (ns)", "ns"),
        ("AverageNs", "Ns"),
        ("LATENCY_US", "US"),
        ("time.s", "s"),
        ("duration_seconds", "seconds"),
        ("latency", None),
        ("waves_s", None),
        ("TFLOP/s", None),
        ("GB per s", None),
        ("status", None),
        ("bonus", None),
    ],
)
def test_unit_in_name_is_its_last_word(name, unit):
    assert unit_in_name(name) == unit


def test_times_of_runs_are_not_other_times():
    columns = ["M", "latency_us", "compile_time_s", "cpu_time_ms", "time", "total_time_ns"]
    assert times_of_runs(columns) == ["latency_us"]


def test_in_milliseconds_takes_the_unit_of_the_name():
    values, unit = in_milliseconds(pd.Series([1500, 20.0]), "latency_us")
    assert unit == "us"
    assert values.tolist() == pytest.approx([1.5, 0.02])


def test_in_milliseconds_takes_the_units_of_cells():
    cells = pd.Series(["12.5us", "1.2 ms", "3000 ns", None, "OOM"])
    values, unit = in_milliseconds(cells, "latency")
    assert unit == "ms and ns and us"
    assert values.tolist()[:3] == pytest.approx([0.0125, 1.2, 0.003])
    assert values.isna().tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["12.5us", "1.2"], "with a unit .'12.5us'. and without one"),
        (["12.5us", "3 furlongs"], "'3 furlongs', whose unit is unknown"),
        (["12.5 ± 0.1", "1.2"], "'12.5 ± 0.1', which is not a number"),
        (["1.2.3", "1.2"], "'1.2.3', which is not a number"),
    ],
)
def test_in_milliseconds_refuses_what_is_half_a_number(cells, message):
    with pytest.raises(UsageError, match=message):
        in_milliseconds(pd.Series(cells), "latency")


@pytest.mark.parametrize(
    "name",
    [
        *("log_time_ms", "sqrt_time_ms", "inverse_time_ms", "1/time_ms", "normalized_time_ms"),
        *("time_delta_ms", "latency_budget_ms", "time_per_1000_iters_ms"),
    ],
)
def test_function_of_a_time_is_no_time_of_a_run(name):
    assert times_with_units(pd.DataFrame({"n": [64], name: [12.5]})) == []


@pytest.mark.parametrize("name", ["time_us_mean", "latency_us_p50", "time (us) avg"])
def test_unit_before_an_average_counts(name):
    table = pd.DataFrame({"n": [64], name: [12.5]})
    assert times_with_units(table) == [name]
    assert in_milliseconds(table[name], name)[0].tolist() == [0.0125]


def test_time_of_one_of_many_iterations_counts():
    assert times_with_units(pd.DataFrame({"time_per_iteration_us": [12.5]}))
