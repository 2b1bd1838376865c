"""Run-table columns as NumPy arrays, for costs and features."""

import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pandas as pd

BOOLEANS = {"False": "0", "True": "1"}  # booleans are stored as 0 and 1
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
    return np.array([_text(v) for v in values], dtype=np.str_)


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
        row._arrays = {
            c: np.array([_text(v) if isinstance(v, str) else np.float64(v)])
            for c, v in cells.items()
        }
        return row

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column as `as_array` does."""
        if column not in self._arrays:
            series = self.frame[column]
            if pd.api.types.is_numeric_dtype(series):
                self._arrays[column] = as_array(series)
            else:
                cells, codes = _distinct_cells(series)
                self._arrays[column] = cells[codes]
                if cells.dtype.kind == "U":
                    self._distinct[column] = cells, codes
        return self._arrays[column]

    def distinct(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column's distinct values as text, and every row's index into them.

        The values may include some that no row has.
        """
        values = self[column]
        if column not in self._distinct:
            codes, cells = pd.factorize(values, use_na_sentinel=False)
            text = cells if cells.dtype.kind == "U" else _number_texts(cells)
            self._distinct[column] = text, codes
        return self._distinct[column]

    def text_masks(self, column: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return, for each text, which rows have it in ``column`` (numbers compare as text)."""
        distinct, codes = self.distinct(column)  # compares distinct values, not every row
        return [(distinct == text)[codes] for text in texts]

    def group(self, name: str) -> Mapping[str, Any]:
        """Return the columns of a dotted group by short name."""
        names = short_names(self.columns, name)
        return self.memoized(
            ("group", name), lambda: MappingProxyType({s: self[c] for s, c in names.items()})
        )

    def without(self, columns: Collection[str]) -> "Rows":
        """Return the same rows without ``columns``."""
        if not columns:
            return self
        rest = copy.copy(self)
        rest.columns = tuple(c for c in self.columns if c not in columns)
        rest._memo = {}
        return rest

    def with_columns(self, columns: Mapping[str, Any]) -> "Rows":
        """Return the same rows with columns added or replaced."""
        more = copy.copy(self)
        more.columns = (*self.columns, *(c for c in columns if c not in self.columns))
        more._arrays = {**self._arrays, **columns}
        more._memo = {}
        return more

    def take(self, numbers: np.ndarray) -> "Rows":
        """Return some of the rows; each column is converted only once."""
        return _SomeRows(self, numbers)

    def memoized(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, computed once per ``key``."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]


class _SomeRows(Rows):
    """A selection of other `Rows`, by row index."""

    def __init__(self, rows: Rows, numbers: np.ndarray) -> None:
        self.columns = rows.columns
        self._rows = rows
        self._numbers = numbers
        self._arrays = {}
        self._memo = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self._arrays:
            self._arrays[column] = self._rows[column][self._numbers]
        return self._arrays[column]

    def distinct(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        texts, codes = self._rows.distinct(column)
        return texts, codes[self._numbers]


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
    total = np.zeros(len(rows), dtype=np.int64)
    names = [""]
    for column in columns:
        text, number = rows.distinct(column)
        codes, seen = pd.factorize(number)  # present codes, in order of appearance
        distinct = text[seen]
        pairs = total * len(distinct) + codes
        seen, total = np.unique(pairs, return_inverse=True)
        names = [f"{names[p // len(distinct)]}/{distinct[p % len(distinct)]}" for p in seen]
    return Groups(total, [name.removeprefix("/") for name in names])


def _distinct_cells(column: "pd.Series[Any]") -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values (the last is a gap) and the code of each row.

    Converting only distinct values is fast, because even a million cells rarely have many.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        distinct = column.cat.categories
    else:
        codes, distinct = pd.factorize(column, use_na_sentinel=True)
    cells = [*distinct, None]  # the last is for gaps (code -1)
    # Empty columns have no dtype; object columns are text.
    numeric = all(v is None or isinstance(v, (bool, int, float)) for v in cells)
    if len(column) and numeric and not isinstance(column.dtype, pd.StringDtype):
        return np.array([np.nan if v is None else float(v) for v in cells]), codes
    number, texts = pd.factorize(as_text(cells))  # 1, "1" and True are equal as text
    return texts, number[codes]


def _number_texts(values: np.ndarray) -> np.ndarray:
    """Return `as_text` of floats, with a fast path for integers."""
    if (np.abs(values) < 2.0**53).all() and (values == np.floor(values)).all():
        return values.astype(np.int64).astype(np.str_)
    return as_text(values.tolist())


def _text(value: object) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()  # a number in a column with gaps
    text = str(int(value)) if whole else str(value)  # type: ignore[call-overload]
    return BOOLEANS.get(text, text)
