"""Measured operators of one (kernel, engine, system), and estimates of all others.

Tables are screened first, see `foretune.plan.cost.screening`.
"""

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Groups
from foretune.features.roofline import row_limits_ms
from foretune.models.calibrated_roofline import CalibratedRoofline
from foretune.plan.cost.kinds import FORMAT_COLUMNS, KINDS, family_of
from foretune.plan.cost.operator_predictor import OperatorPredictor, TrainingSet
from foretune.plan.cost.screening import (
    DUPLICATED,
    NON_MONOTONIC,
    SLOW_FORMAT,
    TOO_FAST,
    capped_times,
    duplicated_formats,
    non_monotonic_rows,
)

if TYPE_CHECKING:
    from scipy.spatial import KDTree

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


class Estimate(NamedTuple):
    """Estimates of operators, one entry per row."""

    log_ms: np.ndarray  # log of milliseconds
    watts: np.ndarray  # NaN if not measured for such operators
    distance: np.ndarray  # octaves to the nearest measurement


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
        self.kernel = kernel
        self.name = name
        self.family = family_of(kernel)
        self.dropped: dict[str, int] = {}
        self._kind = KINDS[kernel]
        self._shared_predictor = shared_predictor
        self._rows_by_key: dict[str, pd.DataFrame] = {}
        self._trees: dict[str, KDTree] = {}
        self._rows = rows
        self._row_keys = self._kind.keys(rows)
        counts = self._row_keys[rows["time_ms"] > MIN_MEASURED_MS].value_counts()
        self._frequent_keys = [str(key) for key, count in counts.items() if count >= MIN_ROWS]

    @cached_property
    def keys(self) -> list[str]:
        """Formats with enough measurements, most rows first."""
        if not self._frequent_keys:
            return []
        timed_keys = set(self.runs.loc[self.runs["time_ms"].notna(), "key"])
        return [key for key in self._frequent_keys if key in timed_keys]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The fastest measurement of every operator, with formats ``key`` and measured power."""
        rows = self._kind.fill_missing(self._rows).assign(key=self._row_keys)
        del self._rows  # tables are large
        columns = [*self._kind.axes, *self._kind.exact]

        # The work may depend on sizes that are constant in the table.
        sizes = [column for column in columns_of(rows, "problem") if column not in columns]
        constant_sizes = [column for column in sizes if rows[column].nunique(dropna=False) == 1]
        same = ["device", *columns_of(rows, "device"), *constant_sizes]
        shared = {column: rows[column].bfill().iloc[0] for column in same}
        rows = rows[rows["key"].isin(self._frequent_keys)].assign(**shared)

        # Of several implementations, the fastest counts, if its time is plausible.
        timed = rows[rows["time_ms"] > MIN_MEASURED_MS]
        possible = self._physically_possible(timed)
        fastest_first = timed[possible].sort_values("time_ms", kind="stable")
        fastest = fastest_first.drop_duplicates(columns)
        plausible = fastest[self._plausible_rows(fastest)]
        kept = plausible[[*columns, "key", "time_ms"]].sort_index()
        capped = self._without_slow_formats(kept)
        self._count_dropped(TOO_FAST, int((~possible).sum()))

        # Power may come from other rows than times.
        if "power_w" in rows:
            limit = shared.get("device.power_limit_w", np.inf)
            valid = (rows["power_w"] > 0) & (rows["power_w"] <= limit)
            metered = rows.loc[valid, [*columns, "key", "power_w"]].drop_duplicates(columns)
            capped = capped.merge(metered, "outer", [*columns, "key"])
        return capped.assign(kernel=self.kernel, status="ok", **shared).reset_index(drop=True)

    def _plausible_rows(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows are consistent with their curve and not copied from another format."""
        kind = self._kind
        plausible = np.full(len(rows), True)

        format_columns = [column for column in kind.exact if column in FORMAT_COLUMNS]
        if format_columns:
            columns = [c for c in (*kind.axes, *kind.exact) if c not in format_columns]
            texts = rows[format_columns].astype(str)
            first, *others = format_columns
            formats = texts[first].str.cat([texts[column] for column in others], "/")
            copies = duplicated_formats(rows, formats, columns)
            plausible = ~formats.isin(copies).to_numpy()
            self._count_dropped(DUPLICATED, int((~plausible).sum()))

        if kind.load_axis:
            curve = [c for c in (*kind.axes, *kind.exact, "source") if c in rows]
            curve.remove(kind.load_axis)
            contradictory = plausible.copy()
            contradictory[plausible] = non_monotonic_rows(rows[plausible], kind.load_axis, curve)
            plausible &= ~contradictory
            self._count_dropped(NON_MONOTONIC, int(contradictory.sum()))
        return plausible

    def _without_slow_formats(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with capped times, for formats of weights alone."""
        kind = self._kind
        weight_format = FORMAT_COLUMNS[0]
        format_columns = [column for column in kind.exact if column in FORMAT_COLUMNS]
        if format_columns != [weight_format]:
            return rows
        columns = [c for c in (*kind.axes, *kind.exact) if c != weight_format]
        capped = capped_times(rows, rows[weight_format].astype(str), columns)
        self._count_dropped(SLOW_FORMAT, int((capped < rows["time_ms"]).sum()))
        return rows.assign(time_ms=capped)

    def _count_dropped(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def _physically_possible(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows are not far below the roofline; all of a format with few others."""
        min_ms = MIN_ROOFLINE_SHARE * row_limits_ms(self.family, rows).max(axis=1)
        slow_enough = ~(rows["time_ms"].to_numpy(dtype=float) < min_ms)
        kept_of_format = pd.Series(slow_enough).groupby(rows["key"].to_numpy()).transform("sum")
        enough = (kept_of_format >= MIN_ROWS).to_numpy()
        return slow_enough | ~enough

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
    ) -> Estimate:
        """Return estimates of operators as if in formats ``key``.

        Args:
            key: formats with measurements.
            rows: operators, filled by `OperatorKind.fill_missing`.
            limits: log compute and memory roofline times in their real formats (rows, 2).
            predictor: of their `predictor_name`.
        """
        known = self._rows_of(key)

        # An operator beyond the measured range counts as several equal ones within it.
        part_rows, parts = self._split_large(key, rows)
        part_limits = limits - np.log(parts)[:, None]

        # The predictor knows formats and devices of the table only.
        reference = known.iloc[0]
        same = [c for c in known if c.startswith(("device", "kernel")) or c in self._kind.exact]
        queries = part_rows.assign(**{column: reference[column] for column in same})
        predicted = predictor.predict(self._kind.round_up_to_tiles(queries))
        predicted_log_ms = np.log(predicted["time_ms"].to_numpy())

        # Measured operators have their measured time.
        distance, nearest = self._tree(key).query(self._kind.coordinates(queries))
        measured_log_ms = np.log(known["time_ms"].to_numpy())[nearest]
        part_log_ms = np.where(distance < EXACT_DISTANCE, measured_log_ms, predicted_log_ms)

        # At equal efficiency, the real formats have other times.
        correction = self._limit_correction(key, queries, part_limits)
        log_ms = part_log_ms + np.log(parts) + correction
        unknown_watts = pd.Series(np.nan, predicted.index)
        watts = predicted.get("power_w", unknown_watts).to_numpy()
        return Estimate(log_ms, watts, distance)

    def _split_large(self, key: str, rows: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Return operators beyond the measured range in equal parts, and the number of parts."""
        kind = self._kind
        parts = np.ones(len(rows))
        if not kind.splits:
            return rows, parts

        # As few parts as bring an operator nearest to a measurement.
        size = rows[kind.load_axis].to_numpy(dtype=float)
        tree = self._tree(key)
        min_gap = np.full(len(rows), np.inf)
        for count in SPLIT_COUNTS:
            divided = rows.assign(**{kind.load_axis: np.maximum(size / count, 1.0)})
            gap = np.maximum(tree.query(kind.coordinates(divided))[0], MAX_TABLE_GAP)
            nearer = (gap < min_gap - EXACT_DISTANCE) & (size >= count)
            parts = np.where(nearer, count, parts)
            min_gap = np.minimum(gap, min_gap)
        return rows.assign(**{kind.load_axis: np.maximum(size / parts, 1.0)}), parts

    def _limit_correction(
        self, key: str, queries: pd.DataFrame, limits: np.ndarray
    ) -> np.ndarray | float:
        """Return the log ratio of times at other roofline ``limits``, at equal efficiency."""
        reference_limits = np.log(row_limits_ms(self.family, queries))
        unchanged = np.allclose(reference_limits, limits, equal_nan=True)
        if unchanged or not np.isfinite(limits).all():
            return 0.0

        known = self._rows_of(key)
        known_limits = np.log(row_limits_ms(self.family, known))
        known_log_ms = np.log(known["time_ms"].to_numpy())
        roofline = CalibratedRoofline().fit(known_limits, known_log_ms, _one_group(len(known)))
        group = _one_group(len(limits))
        return roofline.log_value(limits, group) - roofline.log_value(reference_limits, group)

    def _rows_of(self, key: str) -> pd.DataFrame:
        """Return the measurements in formats ``key``."""
        if key not in self._rows_by_key:
            timed = (self.runs["key"] == key) & self.runs["time_ms"].notna()
            self._rows_by_key[key] = self.runs[timed].reset_index(drop=True)
        return self._rows_by_key[key]

    def _tree(self, key: str) -> "KDTree":
        """Return the coordinates of the measurements in formats ``key`` for nearest neighbors."""
        from scipy.spatial import KDTree

        if key not in self._trees:
            self._trees[key] = KDTree(self._kind.coordinates(self._rows_of(key)))
        return self._trees[key]


def _one_group(count: int) -> Groups:
    return Groups(codes=np.zeros(count, dtype=np.int64), names=["all"])
