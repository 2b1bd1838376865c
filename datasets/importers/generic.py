"""Any CSV or Parquet table, with a mapping from run-table columns to sources.

A source is a column (``m``) or an expression over columns (``latency_us*0.001``, ``2*m*n*k``).
Columns that already have a run-table name (``problem.M``, ``time_ms``) need no mapping.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers import drop_invalid_rows
from foretune.datasets.importers.columns import constant, is_run_column
from foretune.datasets.importers.files import Request, read_table
from foretune.datasets.schema import NUMBER_GROUPS, NUMBERS, PLAIN_GROUPS, TEXT
from foretune.errors import DataWarning, RunTableError, SpaceError, UsageError, require_known
from foretune.expression import Expression
from foretune.measurement import Status


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the mapped rows of a table.

    Rows without a status are ``ok``; the time of failed rows is dropped.
    """
    return _mapped(read_table(path), request, path)


def _mapped(table: pd.DataFrame, request: Request, path: Path) -> pd.DataFrame:
    sources = {c: c for c in table.columns if is_run_column(c)} | dict(request.mapping)
    given = {n: v for n, v in (("kernel", request.kernel), ("device", request.device)) if v}
    _check({*sources, *given, *request.constants}, table, path)
    rows = pd.DataFrame({c: _values(c, s, table, path) for c, s in sources.items()})
    rows = rows.assign(**{n: constant(v, len(table)) for n, v in given.items()})
    if "status" not in rows:
        rows["status"] = constant(Status.OK.value, len(rows))
    if "source" not in rows:
        rows["source"] = constant(f"generic {path.name}", len(rows))
    rows.loc[(rows["status"] != Status.OK.value).to_numpy(), "time_ms"] = np.nan
    return rows


UNNAMED = "unnamed"  # kernel and device of tables that name neither


def run_columns(
    columns: Iterable[str],
    problem: Collection[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Map arbitrary column names to run-table columns, which are kept.

    Columns named in ``problem`` describe the problem, others the configuration; if it is empty, all
    describe the problem. ``sources`` has a column or an expression for columns that are neither.
    Raises UnknownName if there is no such column.
    """
    columns = list(columns)
    require_known("column", problem, columns)
    named = {}
    for c in columns:
        word = re.compile(rf"(?<!\w){re.escape(c)}(?!\w)")
        if not any(word.search(source) for source in sources.values()):
            group = "problem" if c in problem or not problem else "config"
            named[c if is_run_column(c) else f"{group}.{c}"] = c
    return {**named, **sources}


def plain_runs(table: pd.DataFrame, problem: Collection[str] = ()) -> pd.DataFrame:
    """Return the run table of a table with anybody's columns, see `run_columns`.

    Rows that cannot be right are left out, with a warning. Raises RunTableError without a column
    ``time_ms``, UnknownName if a column of ``problem`` is missing.
    """
    table = table.rename(columns=str)
    mapping = run_columns(table.columns, problem)
    if "time_ms" not in mapping:
        has = ", ".join(table.columns)
        raise RunTableError(f"no column is named time_ms, the milliseconds of a run: it has {has}")
    kernel, device = (None if name in mapping else UNNAMED for name in ("kernel", "device"))
    read = drop_invalid_rows(_mapped(table, Request(kernel, device, mapping), Path("the table")))
    for reason, count in read.rejected.items():
        warnings.warn(f"{count} rows are left out: {reason}", DataWarning, stacklevel=3)
    return read.runs


def _check(sources: set[str], table: pd.DataFrame, path: Path) -> None:
    if unknown := sorted(c for c in sources if not is_run_column(c)):
        raise UsageError(
            f"{unknown[0]!r} is no run-table column: there are {', '.join((*NUMBERS, *TEXT))}, "
            "and all that start with problem., config., device., static., counter. or simulated."
        )
    has = ", ".join(map(str, table.columns))
    for needed in ("time_ms", "kernel", "device"):
        if needed not in sources:
            hint = "COLUMN*FACTOR" if needed == "time_ms" else "COLUMN"
            raise UsageError(
                f"{needed} has no source: add --map {needed}={hint}; {path} has the columns {has}"
            )
    if not any(c.startswith(PLAIN_GROUPS) for c in sources):
        raise UsageError(
            f"no column tells what was run: add --map problem.M=COLUMN; {path} has {has}"
        )


def _values(column: str, source: str, table: pd.DataFrame, path: Path) -> "pd.Series[object]":
    values = _source(source, table, path)
    if column in NUMBERS or column.startswith(NUMBER_GROUPS):
        return pd.to_numeric(values.astype(object), errors="coerce").astype(float)
    if column in TEXT:
        text = values.astype(object)
        return text.where(text.isna(), text.astype(str)).astype("category")
    return values


def _source(source: str, table: pd.DataFrame, path: Path) -> "pd.Series[object]":
    if source in table:
        return table[source]
    text, named = source, {str(column): column for column in table.columns}
    for i, column in enumerate(sorted(named, key=len, reverse=True)):
        if not column.isidentifier() and column in text:  # e.g. "latency (us)"
            text, named[f"column_{i}_"] = text.replace(column, f"column_{i}_"), column
    try:
        rule = Expression(text, "source")
        if missing := sorted(rule.names - set(named)):
            has = ", ".join(map(str, table.columns))
            raise UsageError(f"{path} has no column {missing[0]!r}: it has {has}")
        columns = {name: _numbers(table[named[name]]) for name in rule.names}
        return pd.Series(rule.evaluate({**columns, "": np.empty(len(table))}))
    except SpaceError as e:
        raise UsageError(str(e)) from e


def _numbers(column: "pd.Series[Any]") -> np.ndarray:
    return pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=float)
