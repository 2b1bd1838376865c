"""Small tables that a user gives to a plan: prices, qualities, losses of layers.

They are read like any other table: separator, decimal mark and encoding are found, names of columns
may have any case, and JSON is a table, too.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import RunTableError, UsageError

if TYPE_CHECKING:
    import pandas as pd


def user_rows(
    path: str | os.PathLike[str], what: str, columns: Sequence[str]
) -> list[dict[str, str]]:
    """Return the rows of a user's table of ``what``, as texts; cells that a row lacks are empty.

    Raises RunTableError if it cannot be read, lacks a column, or has a number that may be read in
    two ways.
    """
    from foretune.datasets.decimal_marks import COMMA, POINT
    from foretune.datasets.importers.files import read_table
    from foretune.datasets.text_tables import Dialect

    file = Path(path)
    try:
        table = read_table(file, columns)
    except UsageError as e:
        # Beside commas between cells, the point in 2.125 is no mark of thousands.
        table = None
        with suppress(RunTableError):
            table = read_table(file, columns, Dialect(separator=COMMA, decimal=POINT))
        if table is None or len(table.columns) < len(columns):
            reason = str(e).partition(": give --")[0]
            raise RunTableError(f"{reason}: write commas between cells, and decimal points") from e

    plain = {str(name).strip().lower(): name for name in table}
    missing = [name for name in columns if name not in plain]
    if missing:
        raise RunTableError(
            f"{path} has no column {missing[0]!r}, so it is no table of {what}: expected "
            f"{', '.join(columns)}"
        )
    texts = {name: _texts(table[column]) for name, column in plain.items()}
    return [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]


def _texts(column: "pd.Series[Any]") -> list[str]:
    """Return a column's cells as they stand in a table; gaps among texts are empty."""
    if column.dtype.kind != "f":
        return ["" if cell is None or cell != cell else str(cell) for cell in column]
    # A gap makes whole numbers floats.
    return [str(int(cell)) if cell.is_integer() else str(cell) for cell in column.astype(float)]
