"""Run-table columns as plain arrays, the form in which kernels compute costs and features."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


def as_array(column: "pd.Series[Any]") -> np.ndarray:
    """Return a column as numbers (float64) or text (fixed-width), never as objects.

    A text column with gaps gets empty strings in them, a numeric one NaN.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        values = as_array(pd.Series([*column.cat.categories, None], dtype=object))
        return values[codes]  # code -1, a gap, is the last
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    # A million cells seldom hold more than a few different values: only those are looked at.
    codes, distinct = pd.factorize(column, use_na_sentinel=True)
    cells = [*distinct, None]  # code -1, a gap, is the last
    text = isinstance(column.dtype, pd.StringDtype)  # even if there is nothing in it
    if not text and all(v is None or isinstance(v, (bool, int, float)) for v in cells):
        return np.array([np.nan if v is None else float(v) for v in cells])[codes]
    if column.dtype == object and any(v in (0, 1) for v in distinct):
        return as_text(column)  # True and 1 are equal, so that of both only one is distinct
    return as_text(cells)[codes]


def as_text(values: Iterable[object]) -> np.ndarray:
    """Return values as text, the same for equal ones; gaps are empty strings."""
    return np.array([_text(v) for v in values], dtype=np.str_)


def group_arrays(rows: pd.DataFrame, group: str) -> dict[str, np.ndarray]:
    """Return the columns of a dotted group by their short names."""
    prefix = f"{group}."
    return {c.removeprefix(prefix): as_array(rows[c]) for c in rows.columns if c.startswith(prefix)}


@dataclass(frozen=True)
class Groups:
    """Which group each row belongs to.

    Attributes:
        codes: one integer per row, an index into ``names``.
        names: of the groups.
    """

    codes: np.ndarray
    names: list[str]


def groups_of(rows: pd.DataFrame, columns: Sequence[str]) -> Groups:
    """Return the groups of rows that agree in ``columns``, whatever these hold, as text."""
    total, names = np.zeros(len(rows), dtype=np.int64), [""]
    for column in columns:
        codes, values = pd.factorize(as_array(rows[column]), use_na_sentinel=False)
        distinct = as_text(values.tolist())
        pairs = total * len(distinct) + codes
        seen, total = np.unique(pairs, return_inverse=True)
        names = [f"{names[p // len(distinct)]}/{distinct[p % len(distinct)]}" for p in seen]
    return Groups(total, [name.removeprefix("/") for name in names])


def _text(value: object) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()  # a number in a column with gaps
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]
