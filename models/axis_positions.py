"""Positions of measured runs along each axis, and the adjacent runs of a row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.support.files import read_arrays


@dataclass(frozen=True)
class AxisPositions:
    """Coordinates and hashed keys of rows per axis (axes, rows); hashes of other columns (rows)."""

    coordinates: np.ndarray
    keys: np.ndarray
    shared: np.ndarray
    _line_cache: dict[int, "_Line"] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, rows: np.ndarray) -> "AxisPositions":
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
        if axis not in self._line_cache:
            self._line_cache[axis] = _Line(self._group_keys(axis), self.coordinates[axis])
        (below, step_below), (above, step_above) = self._line_cache[axis].adjacent(
            wanted._group_keys(axis), wanted.coordinates[axis]
        )
        padded = np.append(values, np.nan)  # index -1 is for none
        return padded[below], step_below, padded[above], step_above

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


class _Line:
    """All series concatenated on one increasing coordinate, so that one search finds all neighbors.

    Each series occupies ``span``; its rows lie in the first half. A wanted row is clipped to at
    most ``margin`` before and half a span after, so it never reaches another series.
    """

    def __init__(self, group_keys: np.ndarray, coordinates: np.ndarray) -> None:
        order = np.lexsort((coordinates, group_keys))
        self.order, self.rows = order[~np.isnan(coordinates[order])], coordinates
        names, along = group_keys[self.order], coordinates[self.order]
        self.first = np.flatnonzero(np.append(True, names[1:] != names[:-1])[: len(names)])
        self.names, self.last = names[self.first], np.append(self.first[1:], len(names))
        ends = along if len(along) else np.zeros(1)
        self.low, extent = float(ends.min()), float(ends.max()) - float(ends.min()) + 1.0
        self.span, self.margin = 2.0 * extent, extent / 2.0
        series = np.repeat(np.arange(len(self.names)), self.last - self.first)
        self.coordinates = series * self.span + (along - self.low)

    def adjacent(
        self, group_keys: np.ndarray, wanted: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the runs (-1 for none) below and above rows of the series, and the steps to them.

        ``wanted`` are the rows' coordinates, ``group_keys`` their series.
        """
        n = len(group_keys)
        result = [(np.full(n, -1), np.full(n, np.nan)) for _ in ("below", "above")]
        if len(self.order) == 0:
            return result
        number = np.minimum(np.searchsorted(self.names, group_keys), len(self.names) - 1)
        here = np.flatnonzero((self.names[number] == group_keys) & ~np.isnan(wanted))
        number, wanted = number[here], wanted[here]
        within = np.minimum(np.maximum(wanted - self.low, -self.margin), self.span / 2.0)
        target = number * self.span + within
        below = np.searchsorted(self.coordinates, target - 1e-9) - 1
        above = below + 1
        after = self.coordinates[np.minimum(above, len(self.coordinates) - 1)]
        same = np.flatnonzero(after <= target + 1e-9)
        above[same] = np.searchsorted(self.coordinates, target[same] + 1e-9, side="right")
        nearest = ((below, below >= self.first[number]), (above, above < self.last[number]))
        for (index, step), (adjacent, there) in zip(result, nearest, strict=True):
            rows = self.order[adjacent[there]]
            index[here[there]] = rows
            step[here[there]] = np.abs(wanted[there] - self.rows[rows])
        return result
