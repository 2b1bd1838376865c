"""Run-table columns as plain arrays, the form in which kernels compute costs and features."""

from collections.abc import Iterable
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
    values = column.to_numpy(dtype=object, na_value=None)
    text = isinstance(column.dtype, pd.StringDtype)  # even if there is nothing in it
    if not text and all(v is None or isinstance(v, (bool, int, float)) for v in values):
        return np.array([np.nan if v is None else float(v) for v in values])
    return as_text(values)


def as_text(values: Iterable[object]) -> np.ndarray:
    """Return values as text, the same for equal ones; gaps are empty strings."""
    return np.array([_text(v) for v in values], dtype=np.str_)


def group_arrays(rows: pd.DataFrame, group: str) -> dict[str, np.ndarray]:
    """Return the columns of a dotted group by their short names."""
    prefix = f"{group}."
    return {c.removeprefix(prefix): as_array(rows[c]) for c in rows.columns if c.startswith(prefix)}


def _text(value: object) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()  # a number in a column with gaps
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]
