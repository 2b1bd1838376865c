"""Positions of measured runs along each axis, and the adjacent runs of a row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.files import read_arrays


@dataclass(frozen=True)
class AxisPositions:
    """Coordinates and hashed keys of rows per axis (axes, rows); hashes of other columns (rows)."""

    coordinates: np.ndarray
    keys: np.ndarray
    shared: np.ndarray
    _line_cache: dict[int, "_Line"] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, rows: np.ndarray) -> "AxisPositions":
        """Return some rows."""
        return AxisPositions(self.coordinates[:, rows], self.keys[:, rows], self.shared[rows])

    def combination(self, axes: Sequence[int]) -> np.ndarray:
        """Return an integer per row, equal for rows that agree on ``axes``."""
        if not axes:
            return np.zeros(len(self.shared), dtype=np.int64)
        total = self.keys[list(axes)].sum(axis=0, dtype=np.uint64)
        return pd.factorize(total)[0].astype(np.int64)

    def adjacent(
        self, axis: int, values: np.ndarray, wanted: "AxisPositions"
    ) -> tuple[Any, Any, Any, Any]:
        """Return values and steps along ``axis``: below, step, above, step; NaN if missing."""
        line, asked = self._line(axis), wanted.coordinates[axis]
        found = line.adjacent(wanted._group_keys(axis), asked, self.coordinates[axis])
        padded = np.append(values, np.nan)  # index -1 is for none
        return padded[found.below], found.step_below, padded[found.above], found.step_above

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, as a shape."""
        return self.shared.shape

    def _line(self, axis: int) -> "_Line":
        if axis not in self._line_cache:
            self._line_cache[axis] = _Line.from_groups(
                self._group_keys(axis), self.coordinates[axis]
            )
        return self._line_cache[axis]

    @cached_property
    def _total_keys(self) -> np.ndarray:
        return self.shared + self.keys.sum(axis=0, dtype=np.uint64)

    def _group_keys(self, axis: int) -> np.ndarray:
        return self._total_keys - self.keys[axis]

    def save(self, path: Path, values: np.ndarray) -> None:
        """Write positions and values as arrays."""
        np.savez_compressed(
            path, positions=self.coordinates, keys=self.keys, shared=self.shared, values=values
        )

    @classmethod
    def load(cls, path: Path) -> tuple["AxisPositions", np.ndarray]:
        """Read positions and values."""
        data = read_arrays(path)
        return cls(data["positions"], data["keys"], data["shared"]), data["values"]


@dataclass(frozen=True)
class _Adjacent:
    """Per row, the indices of the runs below and above (-1 for none), and the steps to them."""

    below: Any
    above: Any
    step_below: Any
    step_above: Any


@dataclass(frozen=True, eq=False)
class _Line:
    """All series concatenated on one increasing coordinate, so that one search finds all neighbors.

    Each series occupies ``span``; its rows lie in the first half. A wanted row is clipped to at
    most ``margin`` before and half a span after, so it never reaches another series.
    """

    order: np.ndarray
    names: np.ndarray
    first: np.ndarray
    last: np.ndarray
    coordinates: np.ndarray
    low: float
    span: float
    margin: float

    @classmethod
    def from_groups(cls, group_keys: np.ndarray, row_coordinates: np.ndarray) -> "_Line":
        order = np.lexsort((row_coordinates, group_keys))
        order = order[~np.isnan(row_coordinates[order])]
        names, coordinates = group_keys[order], row_coordinates[order]
        first = np.flatnonzero(np.append(True, names[1:] != names[:-1])[: len(order)])
        names, last = names[first], np.append(first[1:], len(order))
        low, high = (
            (float(coordinates.min()), float(coordinates.max())) if len(coordinates) else (0.0, 0.0)
        )
        span = 2.0 * (high - low + 1.0)
        line = np.repeat(np.arange(len(names)), last - first) * span + (coordinates - low)
        return cls(order, names, first, last, line, low, span, (high - low + 1.0) / 2.0)

    def adjacent(
        self, group_keys: np.ndarray, wanted: np.ndarray, row_coordinates: np.ndarray
    ) -> _Adjacent:
        """Return the runs adjacent to rows at coordinates ``wanted`` of the series ``group_keys``.

        ``row_coordinates`` are the coordinates of the line's rows by index.
        """
        shape = 2, len(group_keys)
        result = _Adjacent(*np.full(shape, -1), *np.full(shape, np.nan))
        if len(self.order) == 0:
            return result
        number = np.minimum(np.searchsorted(self.names, group_keys), len(self.names) - 1)
        here = np.flatnonzero((self.names[number] == group_keys) & ~np.isnan(wanted))
        number, wanted = number[here], wanted[here]
        within = np.minimum(np.maximum(wanted - self.low, -self.margin), self.span / 2.0)
        target = number * self.span + within
        below = np.searchsorted(self.coordinates, target - 1e-9) - 1
        above = below + 1
        same = np.flatnonzero(
            self.coordinates[np.minimum(above, len(self.coordinates) - 1)] <= target + 1e-9
        )
        above[same] = np.searchsorted(self.coordinates, target[same] + 1e-9, side="right")
        there = below >= self.first[number]
        rows = self.order[below[there]]
        result.below[here[there]] = rows
        result.step_below[here[there]] = wanted[there] - row_coordinates[rows]
        there = above < self.last[number]
        rows = self.order[above[there]]
        result.above[here[there]] = rows
        result.step_above[here[there]] = row_coordinates[rows] - wanted[there]
        return result
