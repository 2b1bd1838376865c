"""Features from the nearest measured runs along each axis."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Self
from zlib import crc32

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import nan_to
from foretune.features.arrays import Rows, as_array
from foretune.models.axis_positions import AxisPositions
from foretune.models.repeated_sizes import RepeatedSize, repeated_sizes

MIN_VALUES = 3
"""Minimum distinct values of an axis."""
MIN_DEVICES = 2
"""Minimum devices for an axis of devices."""
DEVICE_AXIS = "device.memory_gbps"
"""Axis along which the same work on other devices is a neighbor."""
DEVICE_AXIS_RANK = 1 << 30
"""The axis of devices counts as having this many values, so it comes first."""
MAX_AXES = 8
"""Maximum number of axes; those with the most values are kept."""
MIN_OCTAVES_FACTOR = 8.0
"""Positive axes that span this factor are measured in octaves."""
ONE_SIDED_PENALTY = 2.0
"""Distance penalty for one-sided neighbors."""
SMALL_GAP = 0.05
"""Added to every gap between neighbors."""
INTERPOLATION = -2
"""The column of `NeighborIndex.neighbor_features` with the interpolation."""
AXIS_FEATURES = ("value", "below", "above", "step_below", "step_above")
"""The columns of each axis."""
MAX_TWO_SIDED_AXES = 3
"""More axes with neighbors on both sides count as this many."""


@dataclass(frozen=True)
class Axis:
    """A numeric column along which rows have neighbors: a problem size, or the device's bandwidth.

    Tunable parameters are not axes: times jump between their values, and interpolation misled the
    models of every search space tried. An axis is measured in ``octaves``, else in eighths of
    ``span``, the range of the training values. ``error`` is the typical interpolation error along
    it, at a gap of one.
    """

    column: str
    octaves: bool
    span: float
    error: float = 1.0

    @property
    def key(self) -> str:
        """The column that identifies positions; two devices may have the same bandwidth."""
        return "device" if self.column == DEVICE_AXIS else self.column

    def coordinates(self, rows: Rows) -> np.ndarray:
        """Return the coordinates of rows; NaN if a device's are unknown."""
        values = rows[self.column] if self.column in rows else np.full(len(rows), np.nan)
        if self.octaves:
            return np.log2(np.maximum(values, 1e-30))
        return values / (self.span / 8.0)


@dataclass
class NeighborIndex:
    """Finds neighbors of rows among measured runs.

    Neighbors have equal ``group_columns``, and differ along one axis. ``repeated`` sizes follow
    from others and are ignored; a row that contradicts one has no neighbors.
    """

    axes: list[Axis]
    group_columns: list[str]
    repeated: Sequence[RepeatedSize] = ()

    @classmethod
    def from_runs(cls, runs: pd.DataFrame) -> Self:
        """Return the axes and series of ``runs``, without values."""
        ranked_axes: list[tuple[int, Axis]] = []
        group_columns = ["device"]
        device_axis = _device_axis(runs)
        if device_axis is not None:
            ranked_axes.append((DEVICE_AXIS_RANK, device_axis))
            group_columns = []

        repeated = repeated_sizes(runs)
        left_out = {size.column for size in repeated}
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            if column in left_out:
                continue
            values = as_array(runs[column])
            is_number = values.dtype.kind != "U"
            distinct = np.unique(values[~np.isnan(values)]) if is_number else values
            is_size = is_number and column.startswith("problem.")
            if is_size and len(distinct) >= MIN_VALUES:
                octaves = bool(distinct[0] > 0 and distinct[-1] / distinct[0] >= MIN_OCTAVES_FACTOR)
                axis = Axis(column, octaves, span=float(np.ptp(distinct)))
                ranked_axes.append((len(distinct), axis))
            elif len(pd.unique(values)) > 1:  # constant columns are not needed
                group_columns.append(column)

        # The axes with the most values are kept; along the others, rows must be equal.
        ranked_axes.sort(key=lambda pair: -pair[0])
        axes = [axis for _, axis in ranked_axes]
        group_columns += [axis.column for axis in axes[MAX_AXES:]]
        return cls(axes[:MAX_AXES], group_columns, repeated)

    def locate(self, rows: pd.DataFrame | Rows) -> AxisPositions:
        """Return the positions of ``rows`` (cached in the `Rows`)."""
        rows = Rows.from_table(rows)
        return rows.memoized(self._key, lambda: self._locate(rows))

    @property
    def _key(self) -> tuple[Hashable, ...]:
        axes = tuple((axis.column, axis.octaves, axis.span) for axis in self.axes)
        return "places", axes, tuple(self.group_columns), tuple(self.repeated)

    def _locate(self, rows: Rows) -> AxisPositions:
        coordinates = [axis.coordinates(rows) for axis in self.axes]
        keys = [_hash(axis.key, *rows.distinct(axis.key)) for axis in self.axes]
        shared = np.zeros(len(rows), dtype=np.uint64)
        for column in self.group_columns:
            shared += _hash(column, *rows.distinct(column))
        for size in self.repeated:
            shared[~size.holds(rows)] += np.uint64(_text_hash(size.column, ""))
        return AxisPositions(
            np.array(coordinates).reshape(len(self.axes), len(rows)),
            np.array(keys, dtype=np.uint64).reshape(len(self.axes), len(rows)),
            shared,
        )

    @property
    def columns(self) -> list[str]:
        """The columns of `neighbor_features`."""
        named = [f"{axis.column}.{part}" for axis in self.axes for part in AXIS_FEATURES]
        return [*named, "interpolation", "trust"]

    def two_sided_axes(self, neighbors: np.ndarray) -> np.ndarray:
        """Return the number of axes with neighbors on both sides, at most `MAX_TWO_SIDED_AXES`."""
        has_neighbor = {}
        for side in ("below", "above"):
            first = AXIS_FEATURES.index(side)
            end = len(AXIS_FEATURES) * len(self.axes)
            has_neighbor[side] = np.isfinite(neighbors[:, first : end : len(AXIS_FEATURES)])
        two_sided = has_neighbor["below"] & has_neighbor["above"]
        return np.asarray(np.minimum(two_sided.sum(axis=1), MAX_TWO_SIDED_AXES))

    def measure_axes(self, positions: AxisPositions, values: np.ndarray) -> None:
        """Measure how well interpolation along each axis predicts each row from the others."""
        for i, axis in enumerate(self.axes):
            adjacent = positions.adjacent(i, values, positions)
            two_sided = ~np.isnan(adjacent.below) & ~np.isnan(adjacent.above)
            error = 1.0
            if two_sided.sum() >= MIN_VALUES:
                below = adjacent.below[two_sided]
                step_below = adjacent.step_below[two_sided]
                step_above = adjacent.step_above[two_sided]
                step = step_below + step_above
                difference = adjacent.above[two_sided] - below
                interpolated = below + difference * step_below / step
                gap = 2.0 * step_below * step_above / step
                misses = np.abs(interpolated - values[two_sided]) / (gap + SMALL_GAP)
                error = float(np.median(misses)) + 1e-3
            self.axes[i] = replace(axis, error=error)

    def neighbor_features(
        self,
        known: AxisPositions,
        values: np.ndarray,
        wanted: AxisPositions,
        one_sided: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the neighbor features of ``wanted`` among ``known`` (float32, `columns`).

        Per axis: the interpolated value, the neighbors' values (all three less ``interpolation``)
        and the steps to them; NaN if there are none. Then ``interpolation``, the mean of the axes'
        values weighted by distance and axis error, and ``trust``, the log of the weights' sum. A
        run at the position of a row is not its neighbor; rows ``one_sided`` ignore upper neighbors.
        """
        axis_features: list[tuple[Any, ...]] = []
        total = np.zeros(len(wanted.shared))
        weights = np.zeros(len(wanted.shared))
        for i, axis in enumerate(self.axes):
            adjacent = known.adjacent(i, values, wanted)
            below = adjacent.below
            above = adjacent.above
            step_below = adjacent.step_below
            step_above = adjacent.step_above
            if one_sided is not None:
                above = np.where(one_sided, np.nan, above)
                step_above = np.where(one_sided, np.nan, step_above)

            # The value on the line between both neighbors, or that of the only neighbor.
            step = step_below + step_above
            between = below + (above - below) * (step_below / step)
            value = nan_to(nan_to(between, below), above)

            # Its weight falls with the square of its expected error, which grows with the gap.
            one_sided_gap = ONE_SIDED_PENALTY * np.fmin(step_below, step_above) + 1.0
            gap = nan_to(2.0 * step_below * step_above / step, one_sided_gap)
            weight = nan_to(np.power(axis.error * (gap + SMALL_GAP), -2.0), 0.0)
            total = total + weight * nan_to(value, 0.0)
            weights = weights + weight
            axis_features.append((value, below, above, step_below, step_above))

        weights = np.where(weights > 0.0, weights, np.nan)
        interpolation = total / weights
        columns = [
            [value - interpolation, below - interpolation, above - interpolation, *steps]
            for value, below, above, *steps in axis_features
        ]
        table = np.array([*chain(*columns), interpolation, np.log(weights)], dtype=np.float32)
        return table.reshape(len(table), -1).T


def _device_axis(runs: pd.DataFrame) -> Axis | None:
    """Return the axis of devices, if there are several with distinct bandwidths."""
    if DEVICE_AXIS not in runs or runs[DEVICE_AXIS].isna().any():
        return None
    distinct = runs.groupby("device", observed=True)[DEVICE_AXIS].nunique()
    if len(distinct) < MIN_DEVICES or runs[DEVICE_AXIS].nunique() != len(distinct):
        return None
    return Axis(DEVICE_AXIS, True, float(np.ptp(runs[DEVICE_AXIS])))


def _hash(column: str, distinct: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return a platform-independent integer per row, from column and value (`Rows.distinct`)."""
    hashes = pd.util.hash_array(distinct.astype(object), categorize=False)
    return (hashes * np.uint64(2 * crc32(column.encode()) + 1))[codes]


@lru_cache(maxsize=4096)
def _text_hash(column: str, text: str) -> int:
    return int(_hash(column, np.array([text]), np.zeros(1, dtype=np.int64))[0])
