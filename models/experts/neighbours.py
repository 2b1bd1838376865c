"""Neighbours: what measured runs just beside a row say about it.

A row's neighbours along an axis (a size of the problem; devices, by their bandwidth) are the runs
that agree with it in everything else and are next to it on that axis, one on either side. Between
them the logarithm of a time is nearly straight, so where a table of runs is dense, interpolating
beats any model; a model that sees the neighbours learns when to believe which.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Self
from zlib import crc32

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import known_or
from foretune.features.arrays import OneRow, Rows, as_array
from foretune.models.experts.places import NAN, Place, Places
from foretune.models.experts.repeated_sizes import Repeated, repeated_sizes

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
WRAP = 2**64 - 1
PER_AXIS = ("value", "below", "above", "step_below", "step_above")
ALONE, MOST_COMPANY = -1, 3


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

    @property
    def key(self) -> str:
        """The column that names places along it: two devices may have the same bandwidth."""
        return "device" if self.column == DEVICE_AXIS else self.column

    def of(self, rows: Rows) -> Any:
        """Return the values of rows; NaN where a device's are not known."""
        if self.column in rows:
            return rows[self.column]
        return NAN if isinstance(rows, OneRow) else np.full(len(rows), NAN)

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
        repeated: sizes that are neither; a row in which one is another has no neighbours.
    """

    def __init__(
        self, axes: Sequence[Axis], series: Sequence[str], repeated: Sequence[Repeated] = ()
    ) -> None:
        self.axes = list(axes)
        self.series = list(series)
        self.repeated = list(repeated)

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Self:
        """Return the axes and series that ``runs`` have, without values yet."""
        axes, series = [], ["device"]
        if (speed := _device_axis(runs)) is not None:
            axes.append((MOST_VALUES, speed))
            series = []
        repeated = repeated_sizes(runs)
        left_out = {size.column for size in repeated}
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            if column in left_out:
                continue
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
        return cls([axis for _, axis in axes[:MOST_AXES]], series, repeated)

    def locate(self, rows: pd.DataFrame | Rows) -> Places:
        """Return where ``rows`` lie; the same `Places` to all who ask it of the same `Rows`."""
        rows = Rows.of(rows)
        return rows.once(self._key, lambda: self._locate(rows))

    def locate_one(self, row: OneRow) -> Place:
        """Return where a row by itself lies, once for all who ask."""
        return row.once(self._key, lambda: self._locate_one(row))

    @property
    def _key(self) -> tuple[Hashable, ...]:
        axes = tuple((axis.column, axis.octaves, axis.span) for axis in self.axes)
        return "places", axes, tuple(self.series), tuple(self.repeated)

    def _locate_one(self, row: OneRow) -> Place:
        keys = [_hash_of_text(axis.key, row.text(axis.key)) for axis in self.axes]
        shared = sum(_hash_of_text(column, row.text(column)) for column in self.series)
        shared += sum(
            _hash_of_text(size.column, "") for size in self.repeated if not size.holds(row)
        )
        everything = shared + sum(keys)
        return Place(
            [axis.position(axis.of(row)) for axis in self.axes],
            [np.uint64(everything - key & WRAP) for key in keys],
        )

    def _locate(self, rows: Rows) -> Places:
        positions = [axis.position(axis.of(rows)) for axis in self.axes]
        keys = [_hash(axis.key, rows) for axis in self.axes]
        shared = np.zeros(len(rows), dtype=np.uint64)
        for column in self.series:
            shared += _hash(column, rows)
        for size in self.repeated:
            shared[~size.holds(rows)] += np.uint64(_hash_of_text(size.column, ""))
        return Places(
            np.array(positions).reshape(len(self.axes), len(rows)),
            np.array(keys, dtype=np.uint64).reshape(len(self.axes), len(rows)),
            shared,
        )

    @property
    def columns(self) -> list[str]:
        """The names of the columns that `look` returns, but for ``bend``."""
        named = [f"{axis.column}.{part}" for axis in self.axes for part in PER_AXIS]
        return [*named, "interpolation", "trust"]

    def company(self, look: np.ndarray) -> np.ndarray:
        """Return along how many axes rows have neighbours on both sides, `MOST_COMPANY` at most.

        `ALONE` if there are none on their own device, on neither side: the device may be new.

        Args:
            look: what `look` returned.
        """
        below, above = (
            np.isfinite(look[:, i : i + len(PER_AXIS) * len(self.axes) : len(PER_AXIS)])
            for i in (1, 2)
        )
        own = [i for i, axis in enumerate(self.axes) if axis.column != DEVICE_AXIS]
        alone = ~(below | above)[:, own].any(axis=1)
        return np.where(alone, ALONE, np.minimum((below & above).sum(axis=1), MOST_COMPANY))

    def measure_axes(self, places: Places, values: np.ndarray) -> None:
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
        known: Places,
        values: np.ndarray,
        wanted: Places | Place,
        one_sided: np.ndarray | None = None,
        units: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Return what the neighbours among ``known`` say of ``wanted`` (float32, `columns`).

        Per axis: the interpolated value, the neighbours' values (all three less ``interpolation``)
        and the steps to them, NaN where there is none; then ``interpolation``, the axes' values
        weighted by how far the neighbours are and how well the axis interpolates, and ``trust``,
        the log of those weights' sum. With ``units`` a column ``bend`` stands before these two:
        how far off the unit itself would be, were it interpolated in the same way.

        Args:
            known: where runs were measured.
            values: what was measured there.
            wanted: the rows in question; a run at the very place of a row is not its neighbour.
            one_sided: rows for which neighbours above are ignored.
            units: log of what ``values`` are measured against: of ``known`` and of ``wanted``.
        """
        seen: list[tuple[Any, ...]] = []
        total, bent, weights = (np.zeros(wanted.shape) for _ in range(3))
        for i, axis in enumerate(self.axes):
            below, step_below, above, step_above = known.beside(i, values, wanted)
            if one_sided is not None:
                above, step_above = (np.where(one_sided, np.nan, x) for x in (above, step_above))
            step = step_below + step_above
            value = _between(below, above, step_below / step)
            one_side = ONE_SIDED * np.fmin(step_below, step_above) + 1.0
            gap = known_or(2.0 * step_below * step_above / step, one_side)
            weight = known_or(np.power(axis.error * (gap + SMALL_GAP), -2.0), 0.0)
            total, weights = total + weight * known_or(value, 0.0), weights + weight
            seen.append((value, below, above, step_below, step_above))
            if units is not None:
                below, _, above, _ = known.beside(i, units[0], wanted)
                if one_sided is not None:
                    above = np.where(one_sided, np.nan, above)
                unit = _between(below, above, step_below / step)
                bent = bent + weight * known_or(unit, 0.0)
        weights = np.where(weights > 0.0, weights, np.nan)
        base = total / weights
        cells = [[v - base, b - base, a - base, *steps] for v, b, a, *steps in seen]
        bend = [] if units is None else [bent / weights - units[1].reshape(wanted.shape)]
        table = np.array([*chain(*cells), *bend, base, np.log(weights)], dtype=np.float32)
        return table.reshape(len(table), -1).T


def _between(below: Any, above: Any, share: Any) -> Any:
    """Return what lies between two values; where there is one, that; NaN where there is none."""
    return known_or(known_or(below + (above - below) * share, below), above)


def _device_axis(runs: pd.DataFrame) -> Axis | None:
    """Return the axis along which devices lie, if there are several and each has its own place."""
    if DEVICE_AXIS not in runs or runs[DEVICE_AXIS].isna().any():
        return None
    places = runs.groupby("device", observed=True)[DEVICE_AXIS].nunique()
    if len(places) < LEAST_DEVICES or runs[DEVICE_AXIS].nunique() != len(places):
        return None
    return Axis(DEVICE_AXIS, True, float(np.ptp(runs[DEVICE_AXIS])))


def _hash(column: str, rows: Rows) -> np.ndarray:
    """Return an integer per row that depends on column and value alone, on every machine."""
    return rows.once(("hash", column), lambda: _hashed(column, *rows.distinct(column)))


def _hashed(column: str, distinct: np.ndarray, codes: np.ndarray) -> np.ndarray:
    few = pd.util.hash_array(distinct.astype(object), categorize=False)
    result: np.ndarray = (few * np.uint64(2 * crc32(column.encode()) + 1))[codes]
    return result


@lru_cache(maxsize=4096)
def _hash_of_text(column: str, text: str) -> int:
    return int(_hashed(column, np.array([text]), np.zeros(1, dtype=np.int64))[0])
