"""Features from the nearest measured runs along each axis."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, Self
from zlib import crc32

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import nan_to
from foretune.features.arrays import Rows, as_array
from foretune.models.axis_positions import AxisPositions

SAMPLE_ROWS = 16  # rows (up to twice as many) that rule out nearly all unrelated pairs
RATIO_TOLERANCE = 1e-9  # rounding tolerance of ratios


@dataclass(frozen=True)
class RepeatedSize:
    """A size that is ``ratio`` times another, or times a product of two, in every training row."""

    column: str
    factors: tuple[str, ...]
    ratio: float

    def holds(self, rows: Rows | Mapping[str, np.ndarray]) -> Any:
        """Return whether each row has this relation."""
        return np.abs(_ratio(rows, self.column, self.factors) / self.ratio - 1.0) < RATIO_TOLERANCE


def repeated_sizes(runs: pd.DataFrame) -> list[RepeatedSize]:
    """Return the problem sizes (positive numbers that vary) that are multiples of others."""
    sizes = _sizes(runs)
    sample = {name: values[:: max(1, len(runs) // SAMPLE_ROWS)] for name, values in sizes.items()}
    found: dict[str, RepeatedSize] = {}
    for column in sizes:
        others = [name for name in sizes if name != column and name not in found]
        for factors in [*combinations(others, 1), *combinations(others, 2)]:
            size = RepeatedSize(column, factors, float(_ratio(sample, column, factors)[0]))
            if size.holds(sample).all() and size.holds(sizes).all():
                found[column] = size
                break
    return list(found.values())


def _sizes(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    columns = {name: as_array(runs[name]) for name in columns_of(runs, "problem")}
    numbers = {name: values for name, values in columns.items() if values.dtype.kind != "U"}
    return {
        name: values for name, values in numbers.items() if values.min() > 0.0 and np.ptp(values)
    }


def _ratio(rows: Rows | Mapping[str, np.ndarray], column: str, factors: tuple[str, ...]) -> Any:
    product: Any = 1.0
    for factor in factors:
        product = product * rows[factor]
    with np.errstate(divide="ignore", invalid="ignore"):
        return rows[column] / product


MIN_VALUES = 3
MAX_VALUES = 1 << 30
MIN_DEVICES = 2
DEVICE_AXIS = "device.memory_gbps"  # axis along which the same work on other devices is a neighbor
MAX_AXES = 8
MIN_OCTAVES_FACTOR = 8.0  # positive axes that span this factor are measured in octaves
ONE_SIDED_PENALTY = 2.0  # distance penalty for one-sided neighbors
SMALL_GAP = 0.05
INTERPOLATION = -2  # the column of `NeighborIndex.neighbor_features` with the interpolation
AXIS_FEATURES = ("value", "below", "above", "step_below", "step_above")
MAX_TWO_SIDED_AXES = 3


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
        axes, group_columns = [], ["device"]
        if (device_axis := _device_axis(runs)) is not None:
            axes.append((MAX_VALUES, device_axis))
            group_columns = []
        repeated = repeated_sizes(runs)
        left_out = {size.column for size in repeated}
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            if column in left_out:
                continue
            values = as_array(runs[column])
            numeric = values.dtype.kind != "U"
            distinct = np.unique(values[~np.isnan(values)]) if numeric else values
            size = numeric and column.startswith("problem.")
            if size and len(distinct) >= MIN_VALUES:
                octaves = bool(distinct[0] > 0 and distinct[-1] / distinct[0] >= MIN_OCTAVES_FACTOR)
                axes.append((len(distinct), Axis(column, octaves, float(np.ptp(distinct)))))
            elif len(pd.unique(values)) > 1:  # constant columns are not needed
                group_columns.append(column)
        axes.sort(key=lambda pair: -pair[0])
        group_columns += [axis.column for _, axis in axes[MAX_AXES:]]
        return cls([axis for _, axis in axes[:MAX_AXES]], group_columns, repeated)

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
        step, count = len(AXIS_FEATURES), len(self.axes)
        below, above = (
            np.isfinite(neighbors[:, AXIS_FEATURES.index(side) : step * count : step])
            for side in ("below", "above")
        )
        return np.asarray(np.minimum((below & above).sum(axis=1), MAX_TWO_SIDED_AXES))

    def measure_axes(self, positions: AxisPositions, values: np.ndarray) -> None:
        """Measure how well interpolation along each axis predicts each row from the others."""
        for i, axis in enumerate(self.axes):
            below, step_below, above, step_above = positions.adjacent(i, values, positions)
            inside = ~np.isnan(below) & ~np.isnan(above)
            error = 1.0
            if inside.sum() >= MIN_VALUES:
                step = (step_below + step_above)[inside]
                interpolated = below[inside] + (above - below)[inside] * step_below[inside] / step
                gap = 2.0 * step_below[inside] * step_above[inside] / step
                misses = np.abs(interpolated - values[inside]) / (gap + SMALL_GAP)
                error = float(np.median(misses)) + 1e-3
            self.axes[i] = Axis(axis.column, axis.octaves, axis.span, error)

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
        total, weights = np.zeros((2, len(wanted.shared)))
        for i, axis in enumerate(self.axes):
            below, step_below, above, step_above = known.adjacent(i, values, wanted)
            if one_sided is not None:
                above, step_above = (np.where(one_sided, np.nan, x) for x in (above, step_above))
            step = step_below + step_above
            between = below + (above - below) * (step_below / step)
            value = nan_to(nan_to(between, below), above)  # the only neighbor, if there is one
            one_side = ONE_SIDED_PENALTY * np.fmin(step_below, step_above) + 1.0
            gap = nan_to(2.0 * step_below * step_above / step, one_side)
            weight = nan_to(np.power(axis.error * (gap + SMALL_GAP), -2.0), 0.0)
            total, weights = total + weight * nan_to(value, 0.0), weights + weight
            axis_features.append((value, below, above, step_below, step_above))
        weights = np.where(weights > 0.0, weights, np.nan)
        base = total / weights
        cells = [[v - base, b - base, a - base, *steps] for v, b, a, *steps in axis_features]
        table = np.array([*chain(*cells), base, np.log(weights)], dtype=np.float32)
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
