"""Positions of measured runs along each axis, and the adjacent runs of a row.

A *series* is the runs that differ in one axis only. Runs are compared by hashes: the sum of the
hashes of all columns but the axis is the key of its series.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.support.files import read_arrays

NO_RUN = -1
"""Index of a missing run."""
SAME_COORDINATE = 1e-9
"""Coordinates that are this close are equal."""


@dataclass(frozen=True)
class AdjacentRuns:
    """The runs next to each row along one axis (rows,); NaN if there is none.

    ``below`` and ``above`` are their values, ``step_below`` and ``step_above`` the distances.
    """

    below: np.ndarray
    step_below: np.ndarray
    above: np.ndarray
    step_above: np.ndarray


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

    def adjacent(self, axis: int, values: np.ndarray, wanted: "AxisPositions") -> AdjacentRuns:
        """Return the runs next to the rows ``wanted`` along ``axis``; ``values`` are the runs'."""
        if axis not in self._line_cache:
            self._line_cache[axis] = _Line(self._series_keys(axis), self.coordinates[axis])
        line = self._line_cache[axis]
        below, above = line.adjacent(wanted._series_keys(axis), wanted.coordinates[axis])
        padded = np.append(values, np.nan)  # the last one is for `NO_RUN`, which is -1
        return AdjacentRuns(
            below=padded[below.rows],
            step_below=below.steps,
            above=padded[above.rows],
            step_above=above.steps,
        )

    @cached_property
    def _total_keys(self) -> np.ndarray:
        return self.shared + self.keys.sum(axis=0, dtype=np.uint64)

    def _series_keys(self, axis: int) -> np.ndarray:
        return self._total_keys - self.keys[axis]

    def save(self, path: Path, values: np.ndarray) -> None:
        """Write positions and values as arrays."""
        np.savez_compressed(
            path, positions=self.coordinates, keys=self.keys, shared=self.shared, values=values
        )

    @classmethod
    def load(cls, path: Path) -> tuple["AxisPositions", np.ndarray]:
        """Read positions and values."""
        arrays = read_arrays(path)
        positions = cls(arrays["positions"], arrays["keys"], arrays["shared"])
        return positions, arrays["values"]


@dataclass(frozen=True)
class _Neighbors:
    """For each row, the index of the next run on one side (`NO_RUN` for none), and the step."""

    rows: np.ndarray
    steps: np.ndarray


class _Line:
    """All series concatenated on one increasing coordinate, so that one search finds all neighbors.

    Each series occupies ``span``; its rows lie in the first half. A wanted row is clipped to at
    most ``margin`` before and half a span after, so it never reaches another series.
    """

    def __init__(self, series_keys: np.ndarray, coordinates: np.ndarray) -> None:
        self.run_coordinates = coordinates

        # Runs by series, then by coordinate; those without a coordinate are left out.
        order = np.lexsort((coordinates, series_keys))
        self.order = order[~np.isnan(coordinates[order])]
        sorted_keys = series_keys[self.order]
        sorted_coordinates = coordinates[self.order]

        # Series ``i`` has the runs from ``first[i]`` to ``last[i]``, exclusive.
        starts_series = np.append(True, sorted_keys[1:] != sorted_keys[:-1])[: len(sorted_keys)]
        self.first = np.flatnonzero(starts_series)
        self.last = np.append(self.first[1:], len(sorted_keys))
        self.series_keys = sorted_keys[self.first]

        ends = sorted_coordinates if len(sorted_coordinates) else np.zeros(1)
        self.low = float(ends.min())
        extent = float(ends.max()) - self.low + 1.0
        self.span = 2.0 * extent
        self.margin = extent / 2.0
        series = np.repeat(np.arange(len(self.series_keys)), self.last - self.first)
        self.coordinates = series * self.span + (sorted_coordinates - self.low)

    def adjacent(
        self, series_keys: np.ndarray, wanted: np.ndarray
    ) -> tuple[_Neighbors, _Neighbors]:
        """Return the runs below and above rows with these series and coordinates ``wanted``."""
        n_rows = len(series_keys)
        below = _Neighbors(np.full(n_rows, NO_RUN), np.full(n_rows, np.nan))
        above = _Neighbors(np.full(n_rows, NO_RUN), np.full(n_rows, np.nan))
        if len(self.order) == 0:
            return below, above

        # Rows whose series has runs, and the number of that series.
        series = np.searchsorted(self.series_keys, series_keys)
        series = np.minimum(series, len(self.series_keys) - 1)
        is_known = (self.series_keys[series] == series_keys) & ~np.isnan(wanted)
        known_rows = np.flatnonzero(is_known)
        series = series[known_rows]
        coordinates = wanted[known_rows]

        # Where they are on the line, and the runs around that place.
        within_series = np.minimum(
            np.maximum(coordinates - self.low, -self.margin), self.span / 2.0
        )
        target = series * self.span + within_series
        run_below = np.searchsorted(self.coordinates, target - SAME_COORDINATE) - 1
        run_above = run_below + 1
        # A run at the same place is not a neighbor: take the next one above it.
        last_run = len(self.coordinates) - 1
        coordinate_above = self.coordinates[np.minimum(run_above, last_run)]
        same_place = np.flatnonzero(coordinate_above <= target + SAME_COORDINATE)
        run_above[same_place] = np.searchsorted(
            self.coordinates, target[same_place] + SAME_COORDINATE, side="right"
        )

        sides = (
            (below, run_below, run_below >= self.first[series]),
            (above, run_above, run_above < self.last[series]),
        )
        for neighbors, runs, in_series in sides:
            found_rows = known_rows[in_series]
            found_runs = self.order[runs[in_series]]
            neighbors.rows[found_rows] = found_runs
            steps = np.abs(coordinates[in_series] - self.run_coordinates[found_runs])
            neighbors.steps[found_rows] = steps
        return below, above
