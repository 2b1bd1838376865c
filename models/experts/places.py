"""Places: where measured runs lie along each axis, and which are next to a row on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.decoding import read_arrays

NAN = np.float64(np.nan)


@dataclass(frozen=True)
class Places:
    """Where rows lie: positions and hashed keys per axis (axes, rows), and of all else (rows)."""

    positions: np.ndarray
    keys: np.ndarray
    shared: np.ndarray
    _lines: dict[int, "_Line"] = field(default_factory=dict, repr=False, compare=False)
    _found: "dict[_Line, _Beside]" = field(default_factory=dict, repr=False, compare=False)
    _whole: "tuple[Places, np.ndarray] | None" = field(default=None, repr=False, compare=False)

    def __getitem__(self, rows: np.ndarray) -> "Places":
        """Return some of the rows, each once: their order is found among that of all."""
        parts = self.positions[:, rows], self.keys[:, rows], self.shared[rows]
        return Places(*parts, _whole=(self, rows))

    def is_like(self, other: "Places") -> bool:
        """Return whether both are of the same rows."""
        pairs = zip(self._arrays(), other._arrays(), strict=True)
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.positions, self.keys, self.shared

    def combination(self, axes: Sequence[int]) -> np.ndarray:
        """Return an integer per row, equal where the rows agree in the numbered axes."""
        if not axes:
            return np.zeros(len(self.shared), dtype=np.int64)
        total = self.keys[list(axes)].sum(axis=0, dtype=np.uint64)
        return pd.factorize(total)[0].astype(np.int64)

    def beside(
        self, axis: int, values: np.ndarray, wanted: "Places | Place"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return value below, step to it, value above, step to it along ``axis``; NaN for none."""
        beside = wanted.on(self._line(axis), self.positions[axis], axis)
        below = wanted.values_of(values, beside.below)
        above = wanted.values_of(values, beside.above)
        return below, beside.step_below, above, beside.step_above

    @property
    def shape(self) -> tuple[int, ...]:
        """How many they are."""
        return self.shared.shape

    def values_of(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the values of numbered rows; NaN for number -1."""
        there = np.flatnonzero(rows >= 0)
        result = np.full(len(rows), np.nan)
        result[there] = values[rows[there]]
        return result

    def on(self, line: "_Line", at: np.ndarray, axis: int) -> "_Beside":
        """Return what lies beside these rows on ``line``, looked for once for all who ask."""
        if (known := self._found.get(line)) is not None:
            return known
        found = line.beside(self._series(axis), self.positions[axis], at)
        if line is not self._lines.get(axis):  # known places stay, and are seldom asked of again
            self._found[line] = found
        return found

    def _line(self, axis: int) -> "_Line":
        """Return all rows in the order of their series, and within it along ``axis``."""
        if axis not in self._lines:
            self._lines[axis] = _Line.of(
                self._order(axis), self._series(axis), self.positions[axis]
            )
        return self._lines[axis]

    def _order(self, axis: int) -> np.ndarray:
        """Return the rows by series and, within it, along ``axis``; of a part without sorting."""
        if self._whole is None:
            order = np.lexsort((self.positions[axis], self._series(axis)))
            return order[~np.isnan(self.positions[axis][order])]
        whole, rows = self._whole
        number = np.full(len(whole.shared), -1)
        number[rows] = np.arange(len(self.shared))
        order = number[whole._line(axis).order]
        return order[order >= 0]

    @cached_property
    def _everything(self) -> np.ndarray:
        total: np.ndarray = self.shared + self.keys.sum(axis=0, dtype=np.uint64)
        return total

    def _series(self, axis: int) -> np.ndarray:
        rest: np.ndarray = self._everything - self.keys[axis]
        return rest

    def save(self, path: Path, values: np.ndarray) -> None:
        """Write places and their values as plain arrays."""
        np.savez_compressed(
            path, positions=self.positions, keys=self.keys, shared=self.shared, values=values
        )

    @classmethod
    def load(cls, path: Path) -> tuple["Places", np.ndarray]:
        """Read what `save` wrote; arrays only, nothing that could run."""
        data = read_arrays(path)
        return cls(data["positions"], data["keys"], data["shared"]), data["values"]


@dataclass(frozen=True)
class Place:
    """Where a row by itself lies: as `Places`, in numbers, and the series it is in per axis."""

    positions: list[Any]
    series: list[np.uint64]
    _found: "dict[_Line, _Beside]" = field(default_factory=dict, repr=False, compare=False)
    shape = ()

    def on(self, line: "_Line", at: np.ndarray, axis: int) -> "_Beside":
        """Return what lies beside the row on ``line``, looked for once for all who ask."""
        if line not in self._found:
            self._found[line] = line.beside_one(self.series[axis], self.positions[axis], at)
        return self._found[line]

    def values_of(self, values: np.ndarray, row: int) -> Any:
        """Return the value of a numbered row; NaN for number -1."""
        return values[row] if row >= 0 else NAN


@dataclass(frozen=True)
class _Beside:
    """Per row, the numbers of the rows below and above it, -1 for none, and the steps to them."""

    below: Any
    above: Any
    step_below: Any
    step_above: Any

    @classmethod
    def nothing(cls, rows: int) -> "_Beside":
        none, far = np.full((2, rows), -1), np.full((2, rows), np.nan)
        return cls(*none, *far)


@dataclass(frozen=True, eq=False)
class _Line:
    """The rows of all series one after the other on one increasing coordinate: one search for all.

    A series takes up ``span``; its rows lie between its start and half of that, and a wanted row
    beyond them is clipped to ``margin`` before and half a span after, so it meets no other series.
    """

    order: np.ndarray
    names: np.ndarray
    first: np.ndarray
    last: np.ndarray
    at: np.ndarray
    low: float
    span: float
    margin: float

    @classmethod
    def of(cls, order: np.ndarray, series: np.ndarray, positions: np.ndarray) -> "_Line":
        names, at = series[order], positions[order]
        first = np.flatnonzero(np.append(True, names[1:] != names[:-1])[: len(order)])
        names, last = names[first], np.append(first[1:], len(order))
        low, high = (float(at.min()), float(at.max())) if len(at) else (0.0, 0.0)
        span = 2.0 * (high - low + 1.0)
        line = np.repeat(np.arange(len(names)), last - first) * span + (at - low)
        return cls(order, names, first, last, line, low, span, (high - low + 1.0) / 2.0)

    def beside(self, series: np.ndarray, wanted_at: np.ndarray, at: np.ndarray) -> _Beside:
        """Return what lies beside rows of those series at ``wanted_at``.

        Args:
            series: per row.
            wanted_at: where each row lies.
            at: where the rows of this line lie, by their numbers.
        """
        result = _Beside.nothing(len(series))
        if len(self.order) == 0:
            return result
        number = np.minimum(np.searchsorted(self.names, series), len(self.names) - 1)
        here = np.flatnonzero((self.names[number] == series) & ~np.isnan(wanted_at))
        number, wanted_at = number[here], wanted_at[here]
        within = np.minimum(np.maximum(wanted_at - self.low, -self.margin), self.span / 2.0)
        target = number * self.span + within
        below = np.searchsorted(self.at, target - 1e-9) - 1
        above = below + 1
        same = np.flatnonzero(self.at[np.minimum(above, len(self.at) - 1)] <= target + 1e-9)
        above[same] = np.searchsorted(self.at, target[same] + 1e-9, side="right")
        there = below >= self.first[number]
        rows = self.order[below[there]]
        result.below[here[there]] = rows
        result.step_below[here[there]] = wanted_at[there] - at[rows]
        there = above < self.last[number]
        rows = self.order[above[there]]
        result.above[here[there]] = rows
        result.step_above[here[there]] = at[rows] - wanted_at[there]
        return result

    def beside_one(self, series: np.uint64, wanted_at: Any, at: np.ndarray) -> _Beside:
        """Return what `beside` does of a row by itself."""
        number = int(self.names.searchsorted(series))
        if number == len(self.names) or self.names[number] != series or wanted_at != wanted_at:
            return _Beside(-1, -1, NAN, NAN)
        within = min(max(wanted_at - self.low, -self.margin), self.span / 2.0)
        target = number * self.span + within
        below = int(self.at.searchsorted(target - 1e-9)) - 1
        above = int(self.at.searchsorted(target + 1e-9, side="right"))
        row_below = self.order[below] if below >= self.first[number] else -1
        row_above = self.order[above] if above < self.last[number] else -1
        return _Beside(
            row_below,
            row_above,
            wanted_at - at[row_below] if row_below >= 0 else NAN,
            at[row_above] - wanted_at if row_above >= 0 else NAN,
        )
