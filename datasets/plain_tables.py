"""Converts tables with arbitrary columns to run tables."""

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from foretune.datasets.schema import NUMBER_GROUPS, NUMBERS, TEXT, is_run_column, valid_rows
from foretune.datasets.status_words import statuses
from foretune.datasets.time_units import in_milliseconds, times_with_units
from foretune.errors import DataWarning, RunTableError, require_known
from foretune.measurement import Status
from foretune.values import counted

UNNAMED = "unnamed"
"""Kernel and device of tables that name neither."""


def run_columns(
    columns: Iterable[str],
    problem: Collection[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Map arbitrary column names to run-table columns, which are kept.

    Columns named in ``problem`` describe the problem, others the configuration; if it is empty, all
    describe the problem. ``sources`` has a column or an expression for run-table columns; columns
    used there are neither, unless ``problem`` names them.
    Raises UnknownName if there is no such column.
    """
    given = list(columns)
    require_known("column", problem, given)
    mapping = {}
    for column in given:
        is_of_problem = column in problem
        if not is_of_problem and is_used(column, sources.values()):
            continue
        group = "problem" if is_of_problem or not problem else "config"
        run_column = column if is_run_column(column) else f"{group}.{column}"
        mapping[run_column] = column
    return {**mapping, **sources}


def is_used(column: str, sources: Iterable[str]) -> bool:
    """Return whether a column is, or occurs as a word in, one of the sources."""
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)")
    return any(word.search(source) for source in sources)


def plain_runs(table: pd.DataFrame, problem: Collection[str] = ()) -> pd.DataFrame:
    """Return a table with arbitrary columns as a run table, see `run_columns`.

    The time is in a column ``time_ms``, or in the only one that names a time and its unit, such as
    ``latency_us``. Impossible rows are left out, with a warning. Raises RunTableError without a
    time, UnknownName if a column of ``problem`` is missing.
    """
    table = table.rename(columns=str)
    if "time_ms" not in table:
        times = times_with_units(table)
        if len(times) == 1:
            milliseconds, _ = in_milliseconds(table[times[0]], times[0])
            table = table.drop(columns=times).assign(time_ms=milliseconds)
    if "status" in table:
        table = table.assign(status=statuses(table["status"], "status"))
    mapping = run_columns(table.columns, problem)
    if "time_ms" not in mapping:
        has = ", ".join(table.columns)
        raise RunTableError(f"no column is named time_ms, the milliseconds of a run: it has {has}")
    names = {"kernel": UNNAMED, "device": UNNAMED, "source": "table"}
    rows = typed_runs(pd.DataFrame({c: table[s] for c, s in mapping.items()}), names)
    runs, rejected = valid_rows(rows)
    for reason, count in rejected.items():
        warnings.warn(f"{counted(count, 'row')} left out: {reason}", DataWarning, stacklevel=3)
    return runs


def typed_runs(
    rows: pd.DataFrame, defaults: Mapping[str, str], given: Mapping[str, str] = MappingProxyType({})
) -> pd.DataFrame:
    """Return rows with the schema's types; values that are not numbers become gaps.

    Missing text columns are filled with ``defaults``, rows without a status are ``ok``, and failed
    ones have no time. ``given`` texts replace a column.
    """
    typed = {}
    for column, values in rows.items():
        if column in NUMBERS or column.startswith(NUMBER_GROUPS):
            values = pd.to_numeric(values.astype(object), errors="coerce").astype(float)
        elif column in TEXT:
            text = values.astype(object)
            values = text.where(text.isna(), text.astype(str)).astype("category")
        typed[column] = values
    for column, text in {"status": Status.OK.value, **defaults, **given}.items():
        if column not in typed or column in given:
            typed[column] = pd.Categorical.from_codes(np.zeros(len(rows), np.int8), [text])
    runs = pd.DataFrame(typed)
    runs.loc[(runs["status"] != Status.OK.value).to_numpy(), "time_ms"] = np.nan
    return runs
