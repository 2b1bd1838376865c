"""Any CSV or Parquet table, with a mapping from run-table columns to sources.

A source is a column (``m``) or an expression over columns (``latency_us*0.001``, ``2*m*n*k``).
Columns that already have a run-table name (``problem.M``, ``time_ms``) need no mapping.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import Request, read_table
from foretune.datasets.plain_tables import typed_runs
from foretune.datasets.schema import NUMBERS, PLAIN_GROUPS, TEXT, is_run_column
from foretune.errors import SpaceError, UsageError
from foretune.support.expression import Expression


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the mapped rows of a table; rows without a status are ``ok``."""
    table = read_table(path)
    source_of = {column: column for column in table.columns if is_run_column(column)}
    source_of |= request.mapping
    given = {}
    if request.kernel:
        given["kernel"] = request.kernel
    if request.device:
        given["device"] = request.device
    _check({*source_of, *given, *request.constants}, table, path)
    rows = pd.DataFrame(
        {column: _source(source, table, path) for column, source in source_of.items()}
    )
    return typed_runs(rows, {"source": f"generic {path.name}"}, given)


def _check(sources: set[str], table: pd.DataFrame, path: Path) -> None:
    """Raise UsageError if a column is unknown, or a needed one has no source."""
    unknown = sorted(column for column in sources if not is_run_column(column))
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not a run-table column: there are {', '.join((*NUMBERS, *TEXT))}, "
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
            f"no column describes what was run: add --map problem.M=COLUMN; {path} has {has}"
        )


def _source(source: str, table: pd.DataFrame, path: Path) -> "pd.Series[object]":
    """Return a column of the table, or the values of an expression over its columns."""
    if source in table:
        return table[source]

    # An expression cannot name a column like "latency (us)": give it another name there. Longer
    # ones come first, because they may contain others.
    text = source
    named = {str(column): column for column in table.columns}
    for i, column in enumerate(sorted(named, key=len, reverse=True)):
        if not column.isidentifier() and column in text:
            alias = f"column_{i}_"
            text = text.replace(column, alias)
            named[alias] = column

    has = f"it has {', '.join(named)}"
    try:
        expression = Expression(text, "source")
        missing = sorted(expression.names - set(named))
        if missing:
            raise UsageError(f"{path} has no column {missing[0]!r}: {has}")
        columns = {name: _numbers(table[named[name]]) for name in expression.names}
        # An expression without columns has as many rows, too.
        return pd.Series(expression.evaluate({**columns, "": np.empty(len(table))}))
    except SpaceError as e:
        raise UsageError(f"{e}; {path} has no such column: {has}") from e


def _numbers(column: "pd.Series[Any]") -> np.ndarray:
    return pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=float)
