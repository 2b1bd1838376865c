"""Run-table columns as NumPy arrays, for costs and features.

`Rows` wraps a run table. A column is float64 or fixed-width text, never objects, and is converted
once. Text is compared by distinct values: a million cells rarely have many.
"""

import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pandas as pd

BOOLEANS = {"False": "0", "True": "1"}
"""Text of a boolean -> its text in run tables, where booleans are 0 and 1."""
GAP = ""
"""Text of a gap."""
MAX_EXACT_INTEGER = 2.0**53
"""Below it, every integer is a float64."""

T = TypeVar("T")


def as_array(column: "pd.Series[Any]") -> np.ndarray:
    """Return a column as float64 or fixed-width text, never as objects.

    Gaps become NaN or empty text.
    """
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    cells, codes = _distinct_cells(column)
    return cells[codes]


def as_text(values: Iterable[object]) -> np.ndarray:
    """Return values as text, equal for equal values; gaps are "", True is "1"."""
    return np.array([_text(value) for value in values], dtype=np.str_)


class Rows:
    """Run-table rows with each column converted once and cached."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.columns = tuple(frame.columns.tolist())
        self._arrays: dict[str, np.ndarray] = {}
        self._distinct: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._memo: dict[Hashable, Any] = {}

    @classmethod
    def from_table(cls, rows: "pd.DataFrame | Rows") -> "Rows":
        """Wrap a run table; return `Rows` unchanged."""
        return rows if isinstance(rows, Rows) else cls(rows)

    @classmethod
    def from_cells(cls, cells: Mapping[str, Any]) -> "Rows":
        """Return one row, without the cost of a table."""
        row = cls(pd.DataFrame(index=[0]))
        row.columns = tuple(cells)
        for column, value in cells.items():
            cell = _text(value) if isinstance(value, str) else np.float64(value)
            row._arrays[column] = np.array([cell])
        return row

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column as `as_array` does."""
        if column not in self._arrays:
            self._arrays[column] = self._convert(column)
        return self._arrays[column]

    def _convert(self, column: str) -> np.ndarray:
        series = self.frame[column]
        if pd.api.types.is_numeric_dtype(series):
            return as_array(series)
        cells, codes = _distinct_cells(series)
        if cells.dtype.kind == "U":
            self._distinct[column] = (cells, codes)
        return cells[codes]

    def distinct(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column's distinct values as text, and every row's index into them.

        The values may include some that no row has.
        """
        values = self[column]  # for text, this finds the distinct values, too
        if column not in self._distinct:
            codes, cells = pd.factorize(values, use_na_sentinel=False)
            texts = cells if cells.dtype.kind == "U" else _number_texts(cells)
            self._distinct[column] = (texts, codes)
        return self._distinct[column]

    def text_masks(self, column: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return, for each text, which rows have it in ``column`` (numbers compare as text)."""
        distinct, codes = self.distinct(column)
        # Compare each distinct value once instead of every row.
        return [(distinct == text)[codes] for text in texts]

    def group(self, name: str) -> Mapping[str, Any]:
        """Return the columns of a dotted group by short name."""

        def read_group() -> Mapping[str, Any]:
            full_names = short_names(self.columns, name)
            return MappingProxyType({short: self[full] for short, full in full_names.items()})

        return self.memoized(("group", name), read_group)

    def without(self, columns: Collection[str]) -> "Rows":
        """Return the same rows without ``columns``."""
        if not columns:
            return self
        narrowed = copy.copy(self)
        narrowed.columns = tuple(c for c in self.columns if c not in columns)
        narrowed._memo = {}
        return narrowed

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> "Rows":
        """Return the same rows with columns added or replaced."""
        return _WithColumns(self, columns)

    def take(self, indices: np.ndarray) -> "Rows":
        """Return the rows at ``indices``; each column is converted only once."""
        return _SomeRows(self, indices)

    def memoized(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, computed once per ``key``."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]


class _SomeRows(Rows):
    """A selection of other `Rows`, by row index."""

    def __init__(self, rows: Rows, indices: np.ndarray) -> None:
        self.columns = rows.columns
        self._rows = rows
        self._indices = indices
        self._arrays = {}
        self._memo = {}

    def __len__(self) -> int:
        return len(self._indices)

    def _convert(self, column: str) -> np.ndarray:
        return self._rows[column][self._indices]

    def distinct(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        texts, codes = self._rows.distinct(column)
        return texts, codes[self._indices]


class _WithColumns(Rows):
    """Other `Rows` with columns added or replaced."""

    def __init__(self, rows: Rows, columns: Mapping[str, np.ndarray]) -> None:
        added = [column for column in columns if column not in rows.columns]
        self.columns = (*rows.columns, *added)
        self._rows = rows
        self._given = columns
        self._arrays = dict(columns)
        self._distinct = {}
        self._memo = {}

    def __len__(self) -> int:
        return len(self._rows)

    def _convert(self, column: str) -> np.ndarray:
        return self._rows[column]

    def distinct(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        if column in self._given:
            return super().distinct(column)
        return self._rows.distinct(column)


@lru_cache(maxsize=256)
def short_names(columns: tuple[str, ...], group: str) -> dict[str, str]:
    """Return short name -> full name of a dotted group's columns."""
    prefix = f"{group}."
    return {c.removeprefix(prefix): c for c in columns if c.startswith(prefix)}


@dataclass(frozen=True)
class Groups:
    """Group of every row: ``codes`` index ``names``."""

    codes: np.ndarray
    names: list[str]

    def __getitem__(self, rows: np.ndarray) -> "Groups":
        return Groups(self.codes[rows], self.names)


def groups_of(rows: pd.DataFrame | Rows, columns: Sequence[str]) -> Groups:
    """Group rows by ``columns``, compared as text."""
    rows = Rows.from_table(rows)
    group_codes = np.zeros(len(rows), dtype=np.int64)
    group_names = [""]
    for column in columns:
        # Codes of the values that occur, in order of appearance: `distinct` may list others.
        all_texts, text_codes = rows.distinct(column)
        value_codes, occurring = pd.factorize(text_codes)
        texts = all_texts[occurring]

        # Every pair of a group so far and a value gets one number; those that occur are the new
        # groups.
        pair_numbers = group_codes * len(texts) + value_codes
        pairs, group_codes = np.unique(pair_numbers, return_inverse=True)
        group_names = [
            f"{group_names[pair // len(texts)]}/{texts[pair % len(texts)]}" for pair in pairs
        ]
    return Groups(group_codes, [name.removeprefix("/") for name in group_names])


def _distinct_cells(column: "pd.Series[Any]") -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values (the last is a gap) and the code of each row.

    Converting only distinct values is fast, because even a million cells rarely have many.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        distinct = column.cat.categories
    else:
        codes, distinct = pd.factorize(column, use_na_sentinel=True)
    cells = [*distinct, None]  # the code of a gap is -1: the last one

    # A column is numeric if all its values are; one without rows has no type, and is text.
    are_numbers = all(cell is None or isinstance(cell, (bool, int, float)) for cell in cells)
    is_text = len(column) == 0 or isinstance(column.dtype, pd.StringDtype)
    if are_numbers and not is_text:
        numbers = [np.nan if cell is None else float(cell) for cell in cells]
        return np.array(numbers), codes

    # 1, "1" and True are distinct cells, but the same text.
    text_of_cell, texts = pd.factorize(as_text(cells))
    return texts, text_of_cell[codes]


def _number_texts(values: np.ndarray) -> np.ndarray:
    """Return `as_text` of floats, with a fast path for integers."""
    are_exact = (np.abs(values) < MAX_EXACT_INTEGER).all()
    if are_exact and (values == np.floor(values)).all():
        return values.astype(np.int64).astype(np.str_)
    return as_text(values.tolist())


def _text(value: object) -> str:
    """Return the text of a cell; equal values of different types have the same."""
    is_nan = value is not pd.NA and value != value
    if value is None or value is pd.NA or is_nan:
        return GAP
    # An integer in a column with gaps is read as a float.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value)
    return BOOLEANS.get(text, text)
