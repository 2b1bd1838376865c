"""Neighbours: what measured runs just beside a row say about it.

A row's neighbours along an axis (a size of the problem; devices, by their bandwidth) are the runs
that agree with it in everything else and are next to it on that axis, one on either side. Between
them the logarithm of a time is nearly straight, so where a table of runs is dense, interpolating
beats any model; a model that sees the neighbours learns when to believe which.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import known_or
from foretune.features.arrays import OneRow, Rows, as_array
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
NAN = np.float64(np.nan)
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

    def locate(self, rows: pd.DataFrame | Rows) -> "Places":
        """Return where ``rows`` lie; the same `Places` to all who ask it of the same `Rows`."""
        rows = Rows.of(rows)
        return rows.once(self._key, lambda: self._locate(rows))

    def locate_one(self, row: OneRow) -> "Place":
        """Return where a row by itself lies, once for all who ask."""
        return row.once(self._key, lambda: self._locate_one(row))

    @property
    def _key(self) -> tuple[Hashable, ...]:
        axes = tuple((axis.column, axis.octaves, axis.span) for axis in self.axes)
        return "places", axes, tuple(self.series), tuple(self.repeated)

    def _locate_one(self, row: OneRow) -> "Place":
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

    def _locate(self, rows: Rows) -> "Places":
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
        wanted: "Places | Place",
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
        with np.load(path, allow_pickle=False) as data:
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
