"""Neighbours: what measured runs just beside a row say about it.

A row's neighbours along an axis (a size of the problem; devices, by their bandwidth) are the runs
that agree with it in everything else and are next to it on that axis, one on either side. Between
them the logarithm of a time is nearly straight, so where a table of runs is dense, interpolating
beats any model; a model that sees the neighbours learns when to believe which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from zlib import crc32

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array, as_text

LEAST_VALUES = 3
MOST_VALUES = 1 << 30
LEAST_DEVICES = 2
DEVICE_AXIS = "device.memory_gbps"
"""Where runs on several devices lie: what the same work takes elsewhere is a neighbour too."""
MOST_AXES = 8
WIDE = 8.0
"""A positive axis that spans this factor is measured in octaves."""
ONE_SIDED = 2.0
"""How much farther a neighbour on one side only counts than a pair around the row."""
SMALL_GAP = 0.05
PER_AXIS = ("value", "below", "above", "step_below", "step_above")


@dataclass(frozen=True)
class Axis:
    """A numeric run-table column along which rows have neighbours: a size, or the device's place.

    Tunable parameters are none: times jump between their values, and interpolating across them
    misled the models of every tuning space that was tried.

    Attributes:
        column: its name.
        octaves: whether it is measured in octaves, else in eighths of ``span``.
        span: of the training rows' values.
        error: typical error of interpolating along it, at a gap of one.
    """

    column: str
    octaves: bool
    span: float
    error: float = 1.0

    def position(self, values: np.ndarray) -> np.ndarray:
        """Return where ``values`` lie."""
        if self.octaves:
            return np.log2(np.maximum(values, 1e-30))
        return values / (self.span / 8.0)


class Neighbourhood:
    """Runs with a value each, and where they lie.

    Attributes:
        axes: the columns along which there are neighbours.
        series: the columns in which neighbours agree, apart from the axes.
    """

    def __init__(self, axes: Sequence[Axis], series: Sequence[str]) -> None:
        self.axes = list(axes)
        self.series = list(series)

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Self:
        """Return the axes and series that ``runs`` have, without values yet."""
        axes, series = [], ["device"]
        if (speed := _device_axis(runs)) is not None:
            axes.append((MOST_VALUES, speed))
            series = []
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            values = as_array(runs[column])
            numeric = values.dtype.kind != "U"
            distinct = np.unique(values[~np.isnan(values)]) if numeric else values
            size = numeric and column.startswith("problem.")
            if size and len(distinct) >= LEAST_VALUES:
                octaves = bool(distinct[0] > 0 and distinct[-1] / distinct[0] >= WIDE)
                axes.append((len(distinct), Axis(column, octaves, float(np.ptp(distinct)))))
            elif len(pd.unique(values)) > 1:  # what never varied need not be there later
                series.append(column)
        axes.sort(key=lambda pair: -pair[0])
        series += [axis.column for _, axis in axes[MOST_AXES:]]
        return cls([axis for _, axis in axes[:MOST_AXES]], series)

    def locate(self, rows: pd.DataFrame) -> "Places":
        """Return where ``rows`` lie."""
        positions, keys = [], []
        for axis in self.axes:
            values = as_array(rows[axis.column])
            positions.append(axis.position(values))
            keys.append(_hash(axis.column, values))
        shared = np.zeros(len(rows), dtype=np.uint64)
        for column in self.series:
            shared += _hash(column, as_array(rows[column]))
        return Places(
            np.array(positions).reshape(len(self.axes), len(rows)),
            np.array(keys, dtype=np.uint64).reshape(len(self.axes), len(rows)),
            shared,
        )

    @property
    def columns(self) -> list[str]:
        """The names of the columns that `look` returns."""
        named = [f"{axis.column}.{part}" for axis in self.axes for part in PER_AXIS]
        return [*named, "interpolation", "trust"]

    def measure_axes(self, places: "Places", values: np.ndarray) -> None:
        """Learn how well interpolation along each axis does, each row from the others."""
        for i, axis in enumerate(self.axes):
            below, step_below, above, step_above = places.beside(i, values, places)
            inside = ~np.isnan(below) & ~np.isnan(above)
            error = 1.0
            if inside.sum() >= LEAST_VALUES:
                step = (step_below + step_above)[inside]
                guess = below[inside] + (above - below)[inside] * step_below[inside] / step
                gap = 2.0 * step_below[inside] * step_above[inside] / step
                misses = np.abs(guess - values[inside]) / (gap + SMALL_GAP)
                error = float(np.median(misses)) + 1e-3
            self.axes[i] = Axis(axis.column, axis.octaves, axis.span, error)

    def look(
        self,
        known: "Places",
        values: np.ndarray,
        wanted: "Places",
        one_sided: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return what the neighbours among ``known`` say of ``wanted`` (float32, `columns`).

        Per axis: the interpolated value, the neighbours' values (all three less ``interpolation``)
        and the steps to them, NaN where there is none; then ``interpolation``, the axes' values
        weighted by how far the neighbours are and how well the axis interpolates, and ``trust``,
        the log of those weights' sum.

        Args:
            known: where runs were measured.
            values: what was measured there.
            wanted: the rows in question; a run at the very place of a row is not its neighbour.
            one_sided: rows for which neighbours above are ignored.
        """
        rows = len(wanted.shared)
        total, weight_sum = np.zeros(rows), np.zeros(rows)
        parts = []
        for i, axis in enumerate(self.axes):
            below, step_below, above, step_above = known.beside(i, values, wanted)
            if one_sided is not None:
                above, step_above = (np.where(one_sided, np.nan, v) for v in (above, step_above))
            inside = ~np.isnan(below) & ~np.isnan(above)
            step = np.where(inside, step_below + step_above, 1.0)
            value = np.where(np.isnan(below), above, below)
            value = np.where(inside, below + (above - below) * step_below / step, value)
            gap = np.where(
                inside, 2.0 * step_below * step_above / step,
                ONE_SIDED * np.fmin(step_below, step_above) + 1.0,
            )  # fmt: skip
            weight = np.where(np.isnan(value), 0.0, (axis.error * (gap + SMALL_GAP)) ** -2.0)
            weight = np.nan_to_num(weight)
            total += weight * np.nan_to_num(value)
            weight_sum += weight
            parts.append((value, below, above, step_below, step_above))
        with np.errstate(invalid="ignore", divide="ignore"):
            base, trust = total / weight_sum, np.log(weight_sum)
        result = np.empty((rows, len(self.columns)), dtype=np.float32)
        for i, (value, below, above, *steps) in enumerate(parts):
            for j, column in enumerate((value - base, below - base, above - base, *steps)):
                result[:, 5 * i + j] = column
        result[:, -2], result[:, -1] = base, np.where(np.isfinite(trust), trust, np.nan)
        return result


@dataclass(frozen=True)
class Places:
    """Where rows lie: positions and hashed keys per axis (axes, rows), and of all else (rows)."""

    positions: np.ndarray
    keys: np.ndarray
    shared: np.ndarray
    _lines: dict[int, "_Line"] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, rows: np.ndarray) -> "Places":
        return Places(self.positions[:, rows], self.keys[:, rows], self.shared[rows])

    def combination(self, axes: Sequence[int]) -> np.ndarray:
        """Return an integer per row, equal where the rows agree in the numbered axes."""
        if not axes:
            return np.zeros(len(self.shared), dtype=np.int64)
        total = self.keys[list(axes)].sum(axis=0, dtype=np.uint64)
        return pd.factorize(total)[0].astype(np.int64)

    def beside(
        self, axis: int, values: np.ndarray, wanted: "Places"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return value below, step to it, value above, step to it along ``axis``; NaN for none."""
        if len(wanted.shared) == 0 or np.isnan(self.positions[axis]).all():
            nothing = np.full(len(wanted.shared), np.nan)
            return nothing, nothing, nothing, nothing
        line = self._line(axis)
        series, wanted_at = wanted._series(axis), wanted.positions[axis]
        number = np.searchsorted(line.names, series).clip(max=len(line.names) - 1)
        found = (line.names[number] == series) & ~np.isnan(wanted_at)
        target = number * line.span + (wanted_at - line.low).clip(-line.margin, line.span / 2.0)
        below = np.searchsorted(line.at, target - 1e-9) - 1
        above = np.searchsorted(line.at, target + 1e-9, side="right")
        has_below = found & (below >= line.first[number])
        has_above = found & (above < line.last[number])
        below, above = (
            line.order[below.clip(min=0)],
            line.order[above.clip(max=len(line.order) - 1)],
        )
        at = self.positions[axis]
        return (
            np.where(has_below, values[below], np.nan),
            np.where(has_below, wanted_at - at[below], np.nan),
            np.where(has_above, values[above], np.nan),
            np.where(has_above, at[above] - wanted_at, np.nan),
        )

    def _line(self, axis: int) -> "_Line":
        """Return all rows in the order of their series, and within it along ``axis``."""
        if axis not in self._lines:
            self._lines[axis] = _Line.of(self._series(axis), self.positions[axis])
        return self._lines[axis]

    def _series(self, axis: int) -> np.ndarray:
        others = [i for i in range(len(self.keys)) if i != axis]
        total: np.ndarray = self.shared + self.keys[others].sum(axis=0, dtype=np.uint64)
        return total

    def save(self, path: Path, values: np.ndarray) -> None:
        """Write places and their values as plain arrays."""
        np.savez_compressed(
            path, positions=self.positions, keys=self.keys, shared=self.shared, values=values
        )

    @classmethod
    def load(cls, path: Path) -> tuple["Places", np.ndarray]:
        """Read what `save` wrote; arrays only, nothing that could run."""
        with np.load(path, allow_pickle=False) as data:
            return cls(data["positions"], data["keys"], data["shared"]), data["values"]


@dataclass(frozen=True)
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
    def of(cls, series: np.ndarray, positions: np.ndarray) -> "_Line":
        order = np.lexsort((positions, series))
        order = order[~np.isnan(positions[order])]
        names, first = np.unique(series[order], return_index=True)
        last = np.append(first[1:], len(order))
        at = positions[order]
        low, high = (float(at.min()), float(at.max())) if len(at) else (0.0, 0.0)
        span = 2.0 * (high - low + 1.0)
        line = np.repeat(np.arange(len(names)), last - first) * span + (at - low)
        return cls(order, names, first, last, line, low, span, (high - low + 1.0) / 2.0)


def _device_axis(runs: pd.DataFrame) -> Axis | None:
    """Return the axis along which devices lie, if there are several and each has its own place."""
    if DEVICE_AXIS not in runs or runs[DEVICE_AXIS].isna().any():
        return None
    places = runs.groupby("device", observed=True)[DEVICE_AXIS].nunique()
    if len(places) < LEAST_DEVICES or runs[DEVICE_AXIS].nunique() != len(places):
        return None
    return Axis(DEVICE_AXIS, True, float(np.ptp(runs[DEVICE_AXIS])))


def _hash(column: str, values: np.ndarray) -> np.ndarray:
    """Return an integer per value that depends on column and value alone, on every machine."""
    codes, names = pd.factorize(values, use_na_sentinel=False)
    hashed = pd.util.hash_array(as_text(names.tolist()).astype(object), categorize=False)
    factor = np.uint64(2 * crc32(column.encode()) + 1)
    result: np.ndarray = (hashed * factor)[codes]
    return result
