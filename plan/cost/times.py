"""Operator times: measured, interpolated, predicted, or from the roofline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from foretune.datasets.runs import with_specs_of
from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.kinds import KINDS, family_of, work_share
from foretune.plan.cost.measured_operators import (
    EXACT_DISTANCE,
    LAUNCH_MS,
    MeasuredOperators,
)
from foretune.plan.cost.operator_predictor import OperatorPredictor, TrainedPredictorCache
from foretune.plan.cost.screening import RejectedRows
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.formats import table_name

Source = Literal["measured", "interpolated", "predicted", "roofline"]
SOURCES: tuple[Source, ...] = ("measured", "interpolated", "predicted", "roofline")
MAX_INTERPOLATION_DISTANCE = 1.0
"""Maximum octaves to the nearest measurement for a time to count as interpolated."""
DEFAULT_EFFICIENCY = 0.7
"""Assumed share of peak rates without measurements."""
SIMILAR_FORMATS = {
    table_name(row["name"]): row["similar"].split()
    for row in shipped_rows("formats.csv")
    if row["similar"]
}
"""Format -> formats whose efficiency it borrows if unmeasured, nearest first."""
SIMILAR_KERNELS = {"mamba2": ("gdn",), "kda": ("gdn",)}
"""Kernel -> kernels with equal work on equal sizes, whose efficiency it borrows if unmeasured.
Engines' tables have Mamba-2's convolutions, but not its state update."""

EQUAL_COST_FORMATS = ("fp8", "fp8_block")
"""Expert formats with equal work. The tables include untuned kernels of one, up to three times
slower than the other's, which no engine would choose."""


@dataclass(frozen=True)
class OperatorTimes:
    """Times of operators, one entry per row."""

    ms: np.ndarray
    source: np.ndarray  # one of `SOURCES`
    watts: np.ndarray  # mean power; NaN if not measured here for such operators
    bound_ms: np.ndarray  # roofline time; 0 if unknown


class OperatorTimer:
    """Predicts operator times with one engine on one system; always returns an answer.

    Tables are read, and predictors trained, on first use.

    Args:
        device: its rates determine the roofline.
        tables: measured operators, or None.
        system: its short name in ``tables``.
        backend: the engine; others on the same system fill its gaps.
        similar_systems: systems to borrow efficiency from if this one was not measured.
        predictors: cache of predictors; None takes the user's.
    """

    def __init__(
        self,
        device: Device,
        tables: OperatorTables | None,
        system: str,
        backend: str = "",
        similar_systems: Sequence[str] = (),
        predictors: TrainedPredictorCache | None = None,
    ) -> None:
        self.device, self.system, self.backend = device, system, backend
        self._tables = tables
        self._system_engines = [
            (name, engine)
            for name in ((system, *similar_systems) if tables else ())
            for engine in sorted(
                tables.backends(name) if tables else (), key=lambda e: e != backend
            )
        ]
        self._measured: dict[tuple[str, str, str], MeasuredOperators | None] = {}
        self._predictor_cache = predictors or TrainedPredictorCache()
        self._predictors: dict[str, OperatorPredictor] = {}

    def times(self, operators: pd.DataFrame, fastest_format: bool = False) -> OperatorTimes:
        """Return the times of operators, given as rows of a run table.

        Irrelevant columns are ignored. With ``fastest_format``, experts may run in any measured
        format of equal work (`EQUAL_COST_FORMATS`), as engines choose.
        """
        n = len(operators)
        log_ms, bound, watts = np.empty(n), np.empty(n), np.full(n, np.nan)
        source = np.full(n, 3, dtype=np.int8)
        queries: list[_Query] = []
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all")
            if kernel in KINDS:
                rows = KINDS[str(kernel)].fill_missing(rows)
            here = with_specs_of(rows, self.device)
            limits = np.log(row_limits_ms(family_of(str(kernel)), here))
            log_bounds = limits + np.log(work_share(rows))[:, None]
            bound[index] = np.exp(log_bounds).max(axis=1)
            attainable_ms = np.exp(np.nan_to_num(log_bounds, nan=-30.0)).max(axis=1)
            log_ms[index] = np.log(LAUNCH_MS + attainable_ms / DEFAULT_EFFICIENCY)
            queries += self._queries(str(kernel), rows, limits, index, fastest_format)
        tables = {q.table.predictor_name(q.key): q.table for q in queries}
        missing = [name for name in tables if name not in self._predictors]
        sets = [tables[name].training_set(name) for name in missing]
        trained = self._predictor_cache.load_or_train(sets)
        self._predictors |= dict(zip(missing, trained, strict=True))
        for query in queries:
            index = query.index
            answer = self._answer(query)
            better = np.full(len(index), True)
            if query.only_if_faster:
                better = answer[0] < log_ms[index]
            columns: tuple[np.ndarray, ...] = log_ms, source, watts
            for values, new in zip(columns, answer, strict=True):
                values[index[better]] = new[better]
        return OperatorTimes(np.exp(log_ms), np.array(SOURCES)[source], watts, np.nan_to_num(bound))

    @property
    def rejected_rows(self) -> list[RejectedRows]:
        """Rows dropped from the tables read so far."""
        return [
            RejectedRows(*key, reason, rows)
            for key, table in self._measured.items()
            if table is not None
            for reason, rows in table.dropped.items()
        ]

    def _queries(
        self,
        kernel: str,
        rows: pd.DataFrame,
        limits: np.ndarray,
        index: np.ndarray,
        fastest_format: bool,
    ) -> "Iterator[_Query]":
        """Yield the queries about operators of one kernel, one per format."""
        if kernel not in KINDS:
            return
        keys = KINDS[kernel].keys(rows)
        for key in map(str, keys.unique()):
            here = np.flatnonzero((keys == key).to_numpy())
            for candidate_key in (key, *(_equal_cost_keys(kernel, key) if fastest_format else ())):
                table, known, exact_match = self._nearest_table(kernel, candidate_key)
                only_if_faster = candidate_key != key
                if table is not None and (exact_match or not only_if_faster):
                    subset = rows.iloc[here]
                    yield _Query(
                        table, known, exact_match, only_if_faster, subset, limits[here], index[here]
                    )

    def has_measurements(self, kernel: str, leading_key: str) -> bool:
        """Return whether a kernel was measured here with this first exact column."""
        here = (pair for pair in self._system_engines if pair[0] == self.system)
        tables = (self._table(kernel, *pair) for pair in here)
        keys = (key for table in tables if table for key in table.keys)
        return any(key.split("/")[0] == leading_key for key in keys)

    def _nearest_table(self, kernel: str, key: str) -> tuple[MeasuredOperators | None, str, bool]:
        """Return the nearest measurements to formats ``key``, their formats, and if they match.

        Other engines' measurements of the same format precede this engine's of others.
        """

        def distance(other: str) -> list[int]:
            parts = zip(key.split("/"), other.split("/"), strict=True)
            return [_format_distance(a, b) for a, b in parts]

        levels = (0,) if KINDS[kernel].strict else (0, 1)
        for candidate_kernel, allow_similar, pair in product(
            (kernel, *SIMILAR_KERNELS.get(kernel, ())), levels, self._system_engines
        ):
            table = self._table(candidate_kernel, *pair)
            if table is None:
                continue
            best = min(table.keys, key=distance)
            if allow_similar or best == key:
                same_source = pair[0] == self.system and pair[1] == (self.backend or pair[1])
                return table, best, same_source and best == key and candidate_kernel == kernel
        return None, "", False

    def _table(self, kernel: str, system: str, backend: str) -> MeasuredOperators | None:
        """Return the measurements of a kernel; None if no format has enough."""
        key = (kernel, system, backend)
        if key not in self._measured:
            rows = self._tables.rows(*key) if self._tables else None
            shared = backend == (self.backend or backend)  # one predictor of all formats
            table = None if rows is None else MeasuredOperators(kernel, rows, "-".join(key), shared)
            self._measured[key] = table if table and table.keys else None
        return self._measured[key]

    def _answer(self, query: "_Query") -> tuple[np.ndarray, ...]:
        """Return log times, source indices, and watts."""
        table, key, exact_match = query.table, query.key, query.exact_match
        predictor = self._predictors[table.predictor_name(key)]
        log_ms, watts, distance = table.estimate(key, query.rows, query.limits, predictor)
        near = np.where(distance < MAX_INTERPOLATION_DISTANCE, 1, 2)
        source = np.where(exact_match, np.where(distance < EXACT_DISTANCE, 0, near), 2)
        return log_ms, source, np.where(exact_match, watts, np.nan)


@dataclass(frozen=True)
class _Query:
    """Operators of one kernel in one format, and the measurements to use."""

    table: MeasuredOperators
    key: str
    exact_match: bool  # whether measurements have the same format, engine and system
    only_if_faster: bool  # the answer is used only for operators that it makes faster
    rows: pd.DataFrame
    limits: np.ndarray
    index: np.ndarray


def _equal_cost_keys(kernel: str, key: str) -> list[str]:
    """Return formats that an engine may run in place of ``key`` if faster."""
    kind, _, rest = key.partition("/")
    if kernel != "moe" or kind not in EQUAL_COST_FORMATS:
        return []
    return [f"{other}/{rest}" for other in EQUAL_COST_FORMATS if other != kind]


def _format_distance(wanted: str, other: str) -> int:
    if wanted == other:
        return 0
    similar = SIMILAR_FORMATS.get(wanted, [])
    return 1 + (similar.index(other) if other in similar else len(similar))
