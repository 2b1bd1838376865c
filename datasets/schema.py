"""The run table's schema, version 1, and the checks that every row must pass.

One row is one measurement; columns are wide and dotted (``problem.M``, ``config.BLOCK_M``).
"""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pandas as pd

from foretune.errors import RunTableError
from foretune.measurement import RowFault, Status, row_faults

SCHEMA_VERSION = 1
"""Version that is written; later ones cannot be read."""
REQUIRED = ("kernel", "device", "status", "time_ms")
TEXT = ("kernel", "device", "status", "error", "source", "recorded_at", "environment")
NUMBERS = ("time_ms", "power_w", "energy_mj", "compile_s", "relative_error")
SAMPLES = "time_ms_samples"
PLAIN_GROUPS = ("problem.", "config.")
"""Groups of columns with numbers, booleans or text."""
NUMBER_GROUPS = ("device.", "static.", "counter.", "simulated.")
"""Groups of columns with numbers."""


def columns_of(runs: pd.DataFrame, group: str) -> list[str]:
    """Return the columns of a dotted group, e.g. ``columns_of(runs, "config")``."""
    return [c for c in runs.columns if c.startswith(f"{group}.")]


def is_run_column(column: str) -> bool:
    """Return whether ``column`` is a valid run-table column."""
    if column in NUMBERS or column in TEXT:
        return True
    group, _, name = column.partition(".")
    return f"{group}." in (*PLAIN_GROUPS, *NUMBER_GROUPS) and name != ""


def validate(runs: pd.DataFrame, name: str = "run table", first: int = 0) -> pd.DataFrame:
    """Return ``runs`` unchanged; raise RunTableError if a column or row is invalid, with a reason.

    ``name`` is the table's name, ``first`` the number of the first row within it.
    """
    for problem in _column_problems(runs):
        raise RunTableError(f"{name}: {problem}")
    for fault in _row_faults(runs):
        rows = np.flatnonzero(fault.rows)
        if len(rows) == 0:
            continue
        value = np.asarray(fault.values, dtype=object)[rows[0]]
        reason = fault.message.format(value)
        if len(rows) > 1:
            reason += f" (and {len(rows) - 1} more rows)"
        raise RunTableError(f"{name}, row {first + int(rows[0])}: {reason}")
    return runs


def _column_problems(runs: pd.DataFrame) -> Iterator[str]:
    """Yield what is wrong with the columns: their names and types."""
    for column in REQUIRED:
        if column not in runs:
            yield f"column {column!r} is missing: a run table needs {', '.join(REQUIRED)}"
    repeated = sorted(set(runs.columns[runs.columns.duplicated()]))
    if repeated:
        yield f"column {repeated[0]!r} occurs twice"
    if not columns_of(runs, "config") and not columns_of(runs, "problem"):
        yield "what was run is unknown: there is no 'config.…' or 'problem.…' column"
    for column in runs.columns:
        values = runs[column]
        if column.startswith(PLAIN_GROUPS) and not _is_plain(values):
            yield f"column {column!r} must hold numbers, booleans or text, not {values.dtype}"
        if column in TEXT and not _is_text(values):
            yield f"column {column!r} must hold text, not {values.dtype}"
        if column == SAMPLES and not all(map(_are_numbers, values.dropna())):
            yield f"column {column!r} must hold lists of numbers"
        is_number = column in NUMBERS or column.startswith(NUMBER_GROUPS)
        if is_number and not (pd.api.types.is_numeric_dtype(values) or values.isna().all()):
            yield f"column {column!r} must hold numbers, not {values.dtype}"


def valid_rows(rows: pd.DataFrame, name: str = "run table") -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the valid rows, and how many are left out by reason, a row under its first fault.

    Raises RunTableError if the rows break the schema in another way.
    """
    is_valid = np.ones(len(rows), dtype=bool)
    rejected = {}
    for fault in _row_faults(rows):
        is_faulty = is_valid & np.asarray(fault.rows, dtype=bool)
        if is_faulty.any():
            rejected[fault.name] = int(is_faulty.sum())
            is_valid &= ~is_faulty
    valid = rows[is_valid].reset_index(drop=True) if rejected else rows
    return validate(_drop_unused(valid), name), rejected


def _drop_unused(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop unused categories and empty text columns, which a file would not keep."""
    texts = [c for c in rows.columns if isinstance(rows[c].dtype, pd.CategoricalDtype)]
    empty = [c for c in texts if len(rows) and rows[c].isna().all()]
    used = {c: rows[c].cat.remove_unused_categories() for c in texts if c not in empty}
    return rows.assign(**used).drop(columns=empty)


def _row_faults(runs: pd.DataFrame) -> Iterator[RowFault]:
    """Yield every rule for rows, and the rows that break it."""
    status = runs["status"].astype(object)
    known = sorted(each.value for each in Status)
    unknown = f"is not one of {', '.join(known)}"
    yield RowFault(f"status {unknown}", f"status {{!r}} {unknown}", ~status.isin(known), status)

    rows = SimpleNamespace(
        status=status,
        kernel=_texts(runs, "kernel"),
        device=_texts(runs, "device"),
        time_ms=_floats(runs, "time_ms"),
        power_w=_floats(runs, "power_w"),
        energy_mj=_floats(runs, "energy_mj"),
    )
    yield from row_faults(rows, _floats(runs, "device.power_limit_w"))


def _texts(runs: pd.DataFrame, column: str) -> pd.Series:
    """Return a text column; "" in place of empty cells."""
    return runs[column].astype(object).where(runs[column].notna(), "")


def _floats(runs: pd.DataFrame, column: str) -> np.ndarray:
    """Return a column of numbers; NaN if there is none."""
    if column not in runs:
        return np.full(len(runs), np.nan)
    return runs[column].astype(float).to_numpy()


def _is_text(values: pd.Series) -> bool:
    return bool(
        pd.api.types.is_string_dtype(values.dropna())
        or isinstance(values.dtype, pd.CategoricalDtype)
        or values.isna().all()
    )


def _are_numbers(samples: object) -> bool:
    if isinstance(samples, np.ndarray):
        if samples.ndim == 1 and samples.dtype.kind in "iuf":
            return True
        # An empty array may be of any type.
        samples = samples.tolist()
    if not isinstance(samples, (list, tuple)):
        return False
    return all(isinstance(sample, (int, float)) for sample in samples)


def _is_plain(values: pd.Series) -> bool:
    """Return whether a column holds numbers, booleans or text."""
    is_category = isinstance(values.dtype, pd.CategoricalDtype)
    cells = pd.Series(values.cat.categories) if is_category else values
    if cells.dtype == object:
        return all(isinstance(v, (str, bool, int, float, np.generic)) for v in cells.dropna())
    return pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_string_dtype(cells)
