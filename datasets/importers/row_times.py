"""What a stranger's table says about its times beside their column.

A unit may stand in a column of its own (``duration,unit``), a cell may hold all repeats
(``[1.2, 1.3]``), and a tuner may write a huge time for a run that failed. A table with a row per
metric, or a rate in place of a time, has no time of a run in each row: it is refused.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.column_roles import RESULT_WORDS, UNIT_WORDS, names_a_result
from foretune.datasets.time_units import (
    MS_PER_UNIT,
    TIME_WORDS,
    is_other_time,
    names_the_time_of_a_run,
    unit_in_name,
    words_of,
)
from foretune.errors import UsageError

UNIT_COLUMN = "time_unit"
"""A column, in lower case, that must have a unit of time for each row: Google Benchmark's."""
METRIC_COLUMNS = (
    *("metric", "metrics", "metric_name", "measure", "measurement", "measurement_name"),
    *("variable", "counter", "statistic", "stat", "quantity", "kpi"),
)
"""Columns, in lower case and with ``_`` between words, that say what a row's value is."""
STATISTICS = {
    "mean",
    "median",
    "average",
    "avg",
    "std",
    "stddev",
    "min",
    "max",
    "p50",
    "p90",
    "p99",
}
"""Words, beside those of times and results, that such columns have."""

FAILED_MS = 1e9
"""Milliseconds that no run takes (twelve days): tuners write 1e9, 1e10 or 1e20 for a failure."""

_LIST = re.compile(r"\s*\[.*\]\s*", re.DOTALL)


def row_units(table: pd.DataFrame, column: str | None, where: Path) -> "pd.Series[str] | None":
    """Return each row's unit of time, if a column has them beside ``column``, the times.

    A row that failed may have none: it is empty. Raises UsageError for an unknown unit in a column
    that must have one.
    """
    for name in table.columns:
        is_certain = name.strip().lower() == UNIT_COLUMN
        if not is_certain and (column is None or not UNIT_WORDS & words_of(name)):
            continue
        units = table[name].astype(object).fillna("").map(str).str.strip()
        unknown = sorted(set(units) - {"", *MS_PER_UNIT})
        if unknown and is_certain:
            raise UsageError(f"{where}: {unknown[0]!r} in {name} is no unit of time")
        if unknown or (units == "").all():
            continue
        # ``size,unit,time_ms``: the time has its own unit.
        if is_certain or unit_in_name(str(column)) is None:
            return units
    return None


def repeats_in_cells(values: "pd.Series[Any]", name: str) -> "pd.Series[Any] | None":
    """Return the list of repeats in each cell; None if cells hold no lists.

    Raises UsageError for a list that holds something else than numbers.
    """
    cells = values.astype(object)
    is_list = cells.map(lambda cell: isinstance(cell, str) and bool(_LIST.fullmatch(cell)))
    if not is_list.any():
        return None
    return cells.map(lambda cell: _numbers(cell, name))


def is_failure(times_ms: "pd.Series[Any]") -> "pd.Series[bool]":
    """Return which times are so long that they stand for runs that failed."""
    numbers = pd.to_numeric(times_ms, errors="coerce")
    return np.isfinite(numbers) & (numbers >= FAILED_MS)


def require_one_metric(table: pd.DataFrame, where: Path) -> None:
    """Raise UsageError for a table with a row per metric: it has no time in most rows."""
    for name in table.columns:
        plain = name.strip().lower().replace(" ", "_")
        if plain not in METRIC_COLUMNS:
            continue
        metrics = sorted({str(cell) for cell in table[name].dropna()})
        known = [metric for metric in metrics if _is_metric(metric)]
        if len(metrics) > 1 and known:
            raise UsageError(
                f"{where} has a row per metric ({name}: {', '.join(metrics[:4])}): keep the rows "
                "of the time, or write a column per metric"
            )


def require_a_time(column: str, where: Path) -> None:
    """Raise UsageError if a column that the user maps to the time is a rate or another result."""
    words = words_of(column)
    is_time = unit_in_name(column) is not None or bool(words & set(TIME_WORDS))
    if (names_a_result(column) or "cycles" in words) and not is_time:
        raise UsageError(
            f"{where}: column {column!r} is no time of a run: map another column, or an expression "
            "that makes a time of it, like --map 'time_ms=2e-6*M*N*K/gflops'"
        )


def time_hint(columns: Iterable[str]) -> str:
    """Return which ``--map`` may give the time of a run, by the columns' names."""
    named = [column for column in columns if not is_other_time(column)]
    with_unit = [column for column in named if unit_in_name(column) is not None]
    timed = [column for column in named if names_the_time_of_a_run(column)]
    without_unit = [column for column in timed if column not in with_unit]
    if len(without_unit) == 1:
        name = without_unit[0]
        return (
            f"the unit of {name} is unknown: give --map time_ms={name} for milliseconds, "
            f"'time_ms={name}*0.001' for microseconds, 'time_ms={name}*1000' for seconds"
        )
    if len(with_unit) == 1:
        return f"if {with_unit[0]} is it, give --map 'time_ms={with_unit[0]}'"
    return (
        "give --map time_ms=COLUMN for milliseconds, 'time_ms=COLUMN*0.001' for microseconds, "
        "'time_ms=COLUMN*1000' for seconds"
    )


def _is_metric(text: str) -> bool:
    words = words_of(text)
    known = {*TIME_WORDS, *RESULT_WORDS, *STATISTICS}
    return bool(words & known) or text.strip().lower() in known or unit_in_name(text) is not None


def _numbers(cell: Any, name: str) -> list[float] | None:
    """Return the numbers in a cell with a list; None for another cell."""
    if not isinstance(cell, str) or not _LIST.fullmatch(cell):
        return None
    try:
        numbers = [float(number) for number in json.loads(cell)]
    except (TypeError, ValueError) as e:
        raise UsageError(
            f"column {name!r} has a cell {cell[:30]!r}, which is no list of numbers: write the "
            "median of each row"
        ) from e
    return numbers if numbers and all(map(math.isfinite, numbers)) else None
