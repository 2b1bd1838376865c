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
from foretune.plan.cost.network import network_ms
from foretune.plan.cost.operator_predictor import OperatorPredictor, TrainedPredictorCache
from foretune.plan.cost.product_law import LAW_KERNELS, has_law, law_ms
from foretune.plan.cost.screening import RejectedRows
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.formats import table_name
from foretune.plan.describe.system import System

Source = Literal["measured", "interpolated", "predicted", "roofline"]
SOURCES: tuple[Source, ...] = ("measured", "interpolated", "predicted", "roofline")
MEASURED, INTERPOLATED, PREDICTED, ROOFLINE = range(4)
"""Their indices."""
LOG_UNKNOWN_LIMIT = -30.0
"""Log milliseconds that stand for an unknown limit: no time at all."""
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
        links: the system's nodes and links; None if all ranks are on one node.
    """

    def __init__(
        self,
        device: Device,
        tables: OperatorTables | None,
        system: str,
        backend: str = "",
        similar_systems: Sequence[str] = (),
        predictors: TrainedPredictorCache | None = None,
        links: System | None = None,
    ) -> None:
        self.device = device
        self.system = system
        self.backend = backend
        self._tables = tables
        self._system_engines: list[tuple[str, str]] = []
        """Measured systems and engines, this system and this engine first."""
        if tables is not None:
            for name in (system, *similar_systems):
                engines = sorted(tables.backends(name), key=lambda engine: engine != backend)
                self._system_engines += [(name, engine) for engine in engines]
        self._has_law = has_law(device)
        self._links = links
        self._measured: dict[tuple[str, str, str], MeasuredOperators | None] = {}
        self._predictor_cache = predictors or TrainedPredictorCache()
        self._predictors: dict[str, OperatorPredictor] = {}

    def times(self, operators: pd.DataFrame, fastest_format: bool = False) -> OperatorTimes:
        """Return the times of operators, given as rows of a run table.

        Irrelevant columns are ignored. With ``fastest_format``, experts may run in any measured
        format of equal work (`EQUAL_COST_FORMATS`), as engines choose.
        """
        count = len(operators)
        log_ms = np.empty(count)
        bound_ms = np.empty(count)
        watts = np.full(count, np.nan)
        source = np.full(count, ROOFLINE, dtype=np.int8)

        # 1. Every operator gets a time from the roofline, and questions to measured tables.
        queries: list[_Query] = []
        for name, index in operators.groupby("kernel", sort=False).indices.items():
            kernel = str(name)
            rows = operators.iloc[index].dropna(axis=1, how="all")
            if kernel in KINDS:
                rows = KINDS[kernel].fill_missing(rows)
            limits_ms = row_limits_ms(family_of(kernel), with_specs_of(rows, self.device))
            log_limits = np.log(limits_ms)
            log_bounds = log_limits + np.log(work_share(rows))[:, None]
            bound_ms[index] = np.exp(log_bounds).max(axis=1)
            attainable = np.nan_to_num(log_bounds, nan=LOG_UNKNOWN_LIMIT)
            attainable_ms = np.exp(attainable).max(axis=1)
            log_ms[index] = np.log(LAUNCH_MS + attainable_ms / DEFAULT_EFFICIENCY)
            if kernel in LAW_KERNELS and self._has_law:
                # Between the tables of other makers' GPUs and a law of this one, the law counts.
                limits_of_work = np.exp(attainable)
                similar = SIMILAR_FORMATS
                law = law_ms(kernel, rows, limits_of_work, self.device, similar)
                log_ms[index] = np.log(law)
                source[index] = PREDICTED
            queries += self._queries(kernel, rows, log_limits, index, fastest_format)

        # 2. The predictors of all tables in question are trained together.
        self._train_predictors(queries)

        # 3. Answers replace the roofline; those of other formats only if they are faster.
        for query in queries:
            answer = self._answer(query)
            better = np.full(len(query.index), True)
            if query.only_if_faster:
                better = answer.log_ms < log_ms[query.index]
            replaced = query.index[better]
            log_ms[replaced] = answer.log_ms[better]
            source[replaced] = answer.source[better]
            watts[replaced] = answer.watts[better]

        # 4. Exchanges between nodes: no table has them.
        for row, ms in self._between_nodes(operators):
            log_ms[row] = np.log(ms)
            source[row] = PREDICTED
        return OperatorTimes(
            ms=np.exp(log_ms),
            source=np.array(SOURCES)[source],
            watts=watts,
            bound_ms=np.nan_to_num(bound_ms),
        )

    def _between_nodes(self, operators: pd.DataFrame) -> Iterator[tuple[int, float]]:
        """Yield the exchanges among more ranks than fast links join: row and milliseconds."""
        if self._links is None or "problem.devices" not in operators:
            return
        devices = operators["problem.devices"].to_numpy(dtype=float)
        for row in np.flatnonzero(devices > self._links.fast_domain_gpus):
            operator = operators.iloc[row]
            yield (
                int(row),
                network_ms(
                    kernel=str(operator["kernel"]),
                    size=float(operator["problem.message_bytes"]),
                    ranks=float(devices[row]),
                    stride=1,
                    system=self._links,
                ),
            )

    def _train_predictors(self, queries: "Sequence[_Query]") -> None:
        """Load or train the predictors that queries need."""
        tables = {query.table.predictor_name(query.key): query.table for query in queries}
        missing = [name for name in tables if name not in self._predictors]
        sets = [tables[name].training_set(name) for name in missing]
        trained = self._predictor_cache.load_or_train(sets)
        self._predictors |= dict(zip(missing, trained, strict=True))

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
            of_key = np.flatnonzero((keys == key).to_numpy())
            candidate_keys = [key]
            if fastest_format:
                candidate_keys += _equal_cost_keys(kernel, key)
            for candidate_key in candidate_keys:
                nearest = self._nearest_table(kernel, candidate_key)
                only_if_faster = candidate_key != key
                if nearest is None or (only_if_faster and not nearest.exact_match):
                    continue
                yield _Query(
                    table=nearest.table,
                    key=nearest.key,
                    exact_match=nearest.exact_match,
                    only_if_faster=only_if_faster,
                    rows=rows.iloc[of_key],
                    limits=limits[of_key],
                    index=index[of_key],
                )

    def has_measurements(self, kernel: str, leading_key: str) -> bool:
        """Return whether a kernel was measured here with this first exact column."""
        for system, engine in self._system_engines:
            if system != self.system:
                continue
            table = self._table(kernel, system, engine)
            if table and any(key.split("/")[0] == leading_key for key in table.keys):
                return True
        return False

    def _nearest_table(self, kernel: str, key: str) -> "_NearestTable | None":
        """Return the nearest measurements to formats ``key``; None if there are none.

        Other engines' measurements of the same format precede this engine's of others.
        """

        def distance(other: str) -> list[int]:
            parts = zip(key.split("/"), other.split("/"), strict=True)
            return [_format_distance(wanted, known) for wanted, known in parts]

        candidate_kernels = (kernel, *SIMILAR_KERNELS.get(kernel, ()))
        other_formats = (False,) if KINDS[kernel].strict else (False, True)
        by_law = self._has_law and kernel in LAW_KERNELS
        for candidate_kernel, allow_other, (system, engine) in product(
            candidate_kernels, other_formats, self._system_engines
        ):
            if by_law and system != self.system:
                continue
            table = self._table(candidate_kernel, system, engine)
            if table is None:
                continue
            best = min(table.keys, key=distance)
            if allow_other or best == key:
                same_engine = not self.backend or engine == self.backend
                same_source = system == self.system and same_engine
                exact = same_source and best == key and candidate_kernel == kernel
                return _NearestTable(table=table, key=best, exact_match=exact)
        return None

    def _table(self, kernel: str, system: str, backend: str) -> MeasuredOperators | None:
        """Return the measurements of a kernel; None if no format has enough."""
        key = (kernel, system, backend)
        if key not in self._measured:
            self._measured[key] = self._read_table(*key)
        return self._measured[key]

    def _read_table(self, kernel: str, system: str, backend: str) -> MeasuredOperators | None:
        rows = self._tables.rows(kernel, system, backend) if self._tables else None
        if rows is None:
            return None
        name = f"{kernel}-{system}-{backend}"
        # Only this engine's tables are asked about most of their formats.
        shared = not self.backend or backend == self.backend
        table = MeasuredOperators(kernel, rows, name, shared_predictor=shared)
        return table if table.keys else None

    def _answer(self, query: "_Query") -> "_Answer":
        predictor = self._predictors[query.table.predictor_name(query.key)]
        estimate = query.table.estimate(query.key, query.rows, query.limits, predictor)
        if not query.exact_match:
            unknown = np.full(len(query.rows), np.nan)
            predicted = np.full(len(query.rows), PREDICTED)
            return _Answer(log_ms=estimate.log_ms, source=predicted, watts=unknown)
        is_near = estimate.distance < MAX_INTERPOLATION_DISTANCE
        not_measured = np.where(is_near, INTERPOLATED, PREDICTED)
        source = np.where(estimate.distance < EXACT_DISTANCE, MEASURED, not_measured)
        return _Answer(log_ms=estimate.log_ms, source=source, watts=estimate.watts)


@dataclass(frozen=True)
class _NearestTable:
    """Measurements, the formats among them to use, and whether these are those asked for."""

    table: MeasuredOperators
    key: str
    exact_match: bool


@dataclass(frozen=True)
class _Answer:
    """Answers to a query, one entry per operator."""

    log_ms: np.ndarray
    source: np.ndarray  # index in `SOURCES`
    watts: np.ndarray


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
    weights, _, other_columns = key.partition("/")
    if kernel != "moe" or weights not in EQUAL_COST_FORMATS:
        return []
    return [f"{other}/{other_columns}" for other in EQUAL_COST_FORMATS if other != weights]


def _format_distance(wanted: str, other: str) -> int:
    if wanted == other:
        return 0
    similar = SIMILAR_FORMATS.get(wanted, [])
    return 1 + (similar.index(other) if other in similar else len(similar))
