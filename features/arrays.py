"""Run-table columns as plain arrays, the form in which kernels compute costs and features."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


def as_array(column: "pd.Series[Any]") -> np.ndarray:
    """Return a column as numbers (float64) or text (fixed-width), never as objects.

    A text column with gaps gets empty strings in them, a numeric one NaN.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, cells = column.cat.codes.to_numpy(), [*column.cat.categories, None]
        return _plain(cells)[codes]  # code -1, a gap, is the last
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    # A million cells seldom hold more than a few different values: only those are looked at.
    codes, distinct = pd.factorize(column, use_na_sentinel=True)
    cells = [*distinct, None]
    if column.dtype == object and not _are_numbers(cells) and any(v in (0, 1) for v in distinct):
        return as_text(column)  # True and 1 are equal, so that of both only one is distinct
    text = isinstance(column.dtype, pd.StringDtype)  # even if there is nothing in it
    return (as_text if text else _plain)(cells)[codes]


def as_text(values: Iterable[object]) -> np.ndarray:
    """Return values as text, the same for equal ones; gaps are empty strings."""
    return np.array([_text(v) for v in values], dtype=np.str_)


class Columns(Mapping[str, np.ndarray]):
    """The columns of a dotted group by their short names, converted when they are asked for."""

    def __init__(self, rows: pd.DataFrame, group: str) -> None:
        prefix = f"{group}."
        self._rows = rows
        self._names = {c.removeprefix(prefix): c for c in rows.columns if c.startswith(prefix)}
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = as_array(self._rows[self._names[name]])
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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


def _plain(cells: list[Any]) -> np.ndarray:
    """Return cells, None for a gap, as numbers if they all are, else as text."""
    if _are_numbers(cells):
        return np.array([np.nan if v is None else float(v) for v in cells])
    return as_text(cells)


def _are_numbers(cells: list[Any]) -> bool:
    return all(v is None or isinstance(v, (bool, int, float)) for v in cells)


def _text(value: object) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()  # a number in a column with gaps
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]
