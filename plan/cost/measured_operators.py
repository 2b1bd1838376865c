"""Measured operators of one (kernel, engine, system), screened, and estimates of all others.

Three kinds of rows are dropped and counted: times below the hardware's limit; times that contradict
their curve by falling as the load grows; and formats whose times are copies of another's. A narrow
format that is far slower than the same operator in 16 bits was measured with an untuned kernel: its
time is capped, and also counted.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Groups
from foretune.features.roofline import row_limits_ms
from foretune.models.calibrated_roofline import CalibratedRoofline
from foretune.plan.cost.kinds import FORMAT_COLUMNS, KINDS, family_of
from foretune.plan.cost.operator_predictor import OperatorPredictor, TrainingSet

if TYPE_CHECKING:
    from scipy.spatial import KDTree

TOO_FAST = "faster than the hardware allows"
NON_MONOTONIC = "inconsistent with times at other loads"
DUPLICATED = "copied from another format"
CAPPED = ", and capped"
SLOW_FORMAT = f"slower than in 16 bits{CAPPED}"
MAX_TIME_RATIO = 2.0
"""Maximum ratio of a time to that at a larger load.

Kernel switches and tile quantization explain smaller ratios. Chosen on tables of an H100, an A100
and an L40S, most of which lose less than 0.6 % of their rows. Screening does not change predictor
errors; at 1.5, errors grow, as valid rows are dropped.
"""
MAX_FORMAT_RATIO = 2.0
"""Maximum ratio of a time to that in 16 bits; beyond it, the time in 16 bits is used."""
QUANTIZE_MS = 0.015
"""Additional time to convert the inputs, most of the time of the smallest operators."""
WIDE_FORMAT = "bf16"
MIN_EQUAL_SHARE = 0.5
"""Share of equal times in two formats above which one is a copy."""
MIN_SHARED_ROWS = 20
EQUAL_TOLERANCE = 1e-9


class RejectedRows(NamedTuple):
    """Number of rows dropped from a table, or capped, by reason."""

    kernel: str
    system: str
    engine: str
    reason: str
    rows: int


def describe_rejected(rejected: Sequence[RejectedRows]) -> str:
    """Return the dropped and the capped rows by reason in one line; empty if none."""
    counts: dict[str, dict[str, int]] = {}
    for one in rejected:
        rows_by_kernel = counts.setdefault(one.reason, {})
        rows_by_kernel[one.kernel] = rows_by_kernel.get(one.kernel, 0) + one.rows
    dropped: list[str] = []
    capped: list[str] = []
    for reason, rows_by_kernel in counts.items():
        kernels = ", ".join(f"{kernel} {rows:,}" for kernel, rows in rows_by_kernel.items())
        part = f"{sum(rows_by_kernel.values()):,} {reason.removesuffix(CAPPED)} ({kernels})"
        (capped if reason.endswith(CAPPED) else dropped).append(part)
    parts = [f"left out of measured tables: {'; '.join(dropped)}"] if dropped else []
    return "; ".join([*parts, *(f"capped: {part}" for part in capped)])


def non_monotonic_rows(rows: pd.DataFrame, load: str, others: Sequence[str]) -> np.ndarray:
    """Return the rows that contradict their curve.

    Rows are dropped until no time exceeds a time at a larger load `MAX_TIME_RATIO` times; the row
    with most conflicts goes first. ``load`` is the column along which times should grow; rows of a
    curve agree in the ``others``.
    """
    rejected = np.zeros(len(rows), dtype=bool)
    curves = rows.groupby(list(others), sort=False, dropna=False).ngroup().to_numpy()
    order = np.lexsort((-rows[load].to_numpy(dtype=float), curves))  # the largest load first
    ms = pd.Series(rows["time_ms"].to_numpy(dtype=float)[order])
    sorted_curves = curves[order]
    min_at_larger_load = ms.groupby(sorted_curves).cummin().groupby(sorted_curves).shift(1)
    for curve in np.unique(sorted_curves[(ms > MAX_TIME_RATIO * min_at_larger_load).to_numpy()]):
        here = order[sorted_curves == curve][::-1]
        times = rows["time_ms"].to_numpy(dtype=float)[here]
        conflicts = np.triu(times[:, None] > MAX_TIME_RATIO * times[None, :], 1)
        while conflicts.any():
            worst = int(np.argmax(conflicts.sum(axis=0) + conflicts.sum(axis=1)))
            rejected[here[worst]] = True
            conflicts[worst, :] = conflicts[:, worst] = False
    return rejected


def duplicated_formats(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> list[str]:
    """Return formats whose rows are copies of another format's.

    If two formats are equal, the one with fewer rows is returned. ``columns`` identify an operator
    apart from its format.
    """
    found: list[str] = []
    names = formats.value_counts().index if formats.nunique() > 1 else ()
    times = {name: rows[formats == name].set_index(list(columns))["time_ms"] for name in names}
    for one, other in combinations(names, 2):
        both = pd.concat([times[one], times[other]], axis=1, join="inner").to_numpy(dtype=float)
        equal = np.abs(both[:, 0] / both[:, 1] - 1.0) < EQUAL_TOLERANCE
        if len(both) >= MIN_SHARED_ROWS and equal.mean() >= MIN_EQUAL_SHARE and other not in found:
            found.append(str(other))
    return found


def capped_times(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> np.ndarray:
    """Return times, slow formats' capped as in `WIDE_FORMAT`; ``columns`` identify an operator."""
    ms = rows["time_ms"].to_numpy(dtype=float)
    wide = rows["time_ms"].where(formats == WIDE_FORMAT)
    wide_ms = wide.groupby([rows[c] for c in columns], dropna=False).transform("min").to_numpy()
    return np.where(ms > MAX_FORMAT_RATIO * wide_ms + QUANTIZE_MS, wide_ms, ms)


MIN_ROWS = 8
"""Minimum rows of a format for predicting operators in it."""
MIN_ROOFLINE_SHARE = 0.3
"""A time below this share of the roofline is an error in the table."""
LAUNCH_MS = 0.002
"""Time of an empty operator replayed from a graph."""
MIN_MEASURED_MS = LAUNCH_MS / 4
"""Shorter times in tables are not measurements."""
EXACT_DISTANCE = 1e-6
"""A measurement within this many octaves counts as that of the operator itself."""
SPLIT_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of parts that an operator beyond the measured range may be split into."""
MAX_TABLE_GAP = 0.75
"""Octaves between neighboring measurements inside a table; nearer points count as equal."""


class MeasuredOperators:
    """Measurements of one kernel with one engine on one system.

    If several implementations of an operator were measured, the fastest is kept, as engines choose
    it. Impossible rows are dropped or capped, and counted by reason in ``dropped``. With
    ``shared_predictor``, one predictor learns all formats, which suits tables used for most of
    them.
    """

    def __init__(
        self, kernel: str, rows: pd.DataFrame, name: str, shared_predictor: bool = True
    ) -> None:
        self.kernel, self.name, self._shared_predictor = kernel, name, shared_predictor
        self.family = family_of(kernel)
        self._rows_by_key: dict[str, pd.DataFrame] = {}
        self._trees: dict[str, KDTree] = {}
        self.dropped: dict[str, int] = {}
        kind = KINDS[kernel]
        self._row_keys = kind.keys(rows)
        counts = self._row_keys[rows["time_ms"] > MIN_MEASURED_MS].value_counts()
        self._frequent_keys = [str(key) for key, count in counts.items() if count >= MIN_ROWS]
        self._rows = rows

    @cached_property
    def keys(self) -> list[str]:
        """Formats with enough measurements, most rows first."""
        timed_keys = (
            set(self.runs.loc[self.runs["time_ms"].notna(), "key"]) if self._frequent_keys else ()
        )
        return [key for key in self._frequent_keys if key in timed_keys]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The fastest measurement of every operator, with formats ``key`` and measured power."""
        kind = KINDS[self.kernel]
        rows = kind.fill_missing(self._rows)
        del self._rows  # tables are large
        rows = rows.assign(key=self._row_keys)
        columns = [*kind.axes, *kind.exact]
        # The work may depend on sizes that are constant in the table.
        sizes = [c for c in columns_of(rows, "problem") if c not in columns]
        same = ["device", *columns_of(rows, "device")]
        same += [c for c in sizes if rows[c].nunique(dropna=False) == 1]
        shared = {column: rows[column].bfill().iloc[0] for column in same}
        rows = rows[rows["key"].isin(self._frequent_keys)].assign(**shared)
        timed = rows[rows["time_ms"] > MIN_MEASURED_MS]
        possible = self._physically_possible(timed)
        fastest = timed[possible].sort_values("time_ms", kind="stable").drop_duplicates(columns)
        found = fastest[self._plausible_rows(fastest)][[*columns, "key", "time_ms"]].sort_index()
        found = self._without_slow_formats(found)
        self._count_dropped(TOO_FAST, int((~possible).sum()))
        if "power_w" in rows:
            limit = shared.get("device.power_limit_w", np.inf)
            sound = (rows["power_w"] > 0) & (rows["power_w"] <= limit)
            metered = rows.loc[sound, [*columns, "key", "power_w"]].drop_duplicates(columns)
            found = found.merge(metered, "outer", [*columns, "key"])
        return found.assign(kernel=self.kernel, status="ok", **shared).reset_index(drop=True)

    def _plausible_rows(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows are consistent with their curve and not copied from another format."""
        kind = KINDS[self.kernel]
        format_columns = [c for c in kind.exact if c in FORMAT_COLUMNS]
        plausible = np.full(len(rows), True)
        if format_columns:
            columns = [c for c in (*kind.axes, *kind.exact) if c not in format_columns]
            formats = rows[format_columns].astype(str)
            joined = formats[format_columns[0]].str.cat(
                [formats[c] for c in format_columns[1:]], "/"
            )
            plausible = ~joined.isin(duplicated_formats(rows, joined, columns)).to_numpy()
            self._count_dropped(DUPLICATED, int((~plausible).sum()))
        if kind.load_axis:
            others = [c for c in (*kind.axes, *kind.exact, "source") if c in rows]
            others.remove(kind.load_axis)
            contradictory = plausible.copy()
            contradictory[plausible] = non_monotonic_rows(rows[plausible], kind.load_axis, others)
            plausible &= ~contradictory
            self._count_dropped(NON_MONOTONIC, int(contradictory.sum()))
        return plausible

    def _without_slow_formats(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with capped times, for formats of weights alone."""
        kind = KINDS[self.kernel]
        if [c for c in kind.exact if c in FORMAT_COLUMNS] != [FORMAT_COLUMNS[0]]:
            return rows
        columns = [c for c in (*kind.axes, *kind.exact) if c != FORMAT_COLUMNS[0]]
        capped = capped_times(rows, rows[FORMAT_COLUMNS[0]].astype(str), columns)
        self._count_dropped(SLOW_FORMAT, int((capped < rows["time_ms"]).sum()))
        return rows.assign(time_ms=capped)

    def _count_dropped(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def _physically_possible(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows are not far below the roofline; all of a format with few others."""
        min_ms = MIN_ROOFLINE_SHARE * row_limits_ms(self.family, rows).max(axis=1)
        slow_enough = ~(rows["time_ms"].to_numpy(dtype=float) < min_ms)
        enough = pd.Series(slow_enough).groupby(rows["key"].to_numpy()).transform("sum") >= MIN_ROWS
        return slow_enough | ~enough.to_numpy()

    def predictor_name(self, key: str) -> str:
        """Return the name of the predictor of formats ``key``."""
        return self.name if self._shared_predictor else f"{self.name}-{key}"

    def training_set(self, predictor_name: str) -> TrainingSet:
        """Return the training set of a predictor."""
        keys = [key for key in self.keys if self.predictor_name(key) == predictor_name]
        rows = self.runs[self.runs["key"].isin(keys)].drop(columns="key")
        return TrainingSet(predictor_name, rows.reset_index(drop=True), self.family)

    def estimate(
        self, key: str, rows: pd.DataFrame, limits: np.ndarray, predictor: OperatorPredictor
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log times of operators as if in formats ``key``, watts, and distances.

        Watts are NaN if not measured for such operators; distances are octaves to the nearest
        measurement.

        Args:
            key: formats with measurements.
            rows: operators, filled by `OperatorKind.fill_missing`.
            limits: log compute and memory roofline times in their real formats (rows, 2).
            predictor: of their `predictor_name`.
        """
        known, kind = self._rows_of(key), KINDS[self.kernel]
        reference = known.iloc[0]
        rows, parts = self._split_large(key, rows)
        limits = limits - np.log(parts)[:, None]
        same = [c for c in known if c.startswith(("device", "kernel")) or c in kind.exact]
        queries = rows.assign(**{column: reference[column] for column in same})
        predicted = predictor.predict(kind.round_up_to_tiles(queries))
        log_ms = np.log(predicted["time_ms"].to_numpy())
        distance, nearest = self._tree(key).query(kind.coordinates(queries))
        exact = distance < EXACT_DISTANCE
        log_ms = np.where(exact, np.log(known["time_ms"].to_numpy())[nearest], log_ms)
        watts = predicted.get("power_w", pd.Series(np.nan, predicted.index)).to_numpy()
        log_ms = log_ms + np.log(parts) + self._limit_correction(key, queries, limits)
        return log_ms, watts, distance

    def _split_large(self, key: str, rows: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Return operators beyond the measured range in equal parts, and the number of parts."""
        kind, parts = KINDS[self.kernel], np.ones(len(rows))
        if not kind.splits:
            return rows, parts
        size = rows[kind.load_axis].to_numpy(dtype=float)
        tree, min_gap = self._tree(key), np.full(len(rows), np.inf)
        for count in SPLIT_COUNTS:
            divided = rows.assign(**{kind.load_axis: np.maximum(size / count, 1.0)})
            gap = np.maximum(tree.query(kind.coordinates(divided))[0], MAX_TABLE_GAP)
            nearer = (gap < min_gap - EXACT_DISTANCE) & (size >= count)
            parts, min_gap = np.where(nearer, count, parts), np.minimum(gap, min_gap)
        return rows.assign(**{kind.load_axis: np.maximum(size / parts, 1.0)}), parts

    def _limit_correction(
        self, key: str, queries: pd.DataFrame, limits: np.ndarray
    ) -> np.ndarray | float:
        """Return the log ratio of times at other roofline ``limits``, at equal efficiency."""
        reference_limits = np.log(row_limits_ms(self.family, queries))
        if np.allclose(reference_limits, limits, equal_nan=True) or not np.isfinite(limits).all():
            return 0.0
        known = self._rows_of(key)
        measured = np.log(row_limits_ms(self.family, known))
        log_ms = np.log(known["time_ms"].to_numpy())
        here, there = (
            Groups(codes=np.zeros(count, dtype=np.int64), names=["all"])
            for count in (len(known), len(limits))
        )
        roofline = CalibratedRoofline().fit(measured, log_ms, here)
        return roofline.log_value(limits, there) - roofline.log_value(reference_limits, there)

    def _rows_of(self, key: str) -> pd.DataFrame:
        if key not in self._rows_by_key:
            here = (self.runs["key"] == key) & self.runs["time_ms"].notna()
            self._rows_by_key[key] = self.runs[here].reset_index(drop=True)
        return self._rows_by_key[key]

    def _tree(self, key: str) -> "KDTree":
        from scipy.spatial import KDTree

        if key not in self._trees:
            self._trees[key] = KDTree(KINDS[self.kernel].coordinates(self._rows_of(key)))
        return self._trees[key]
