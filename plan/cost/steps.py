"""Time and energy of a step: the operators of one rank, summed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.plan.cost.attention import attention_operators
from foretune.plan.cost.decoder import mixed_operators, of_mixture, phase_of
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.power import OperatorPower
from foretune.plan.cost.screening import RejectedRows
from foretune.plan.cost.sparse_attention import attention_modules
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import SOURCES, OperatorTimer
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System

PARTS = ("projections", "attention", "experts", "communication", "rest")
"""Parts of a step's time; columns of `StepTimer.times`."""
_PART_OF = {
    row["kernel"]: PARTS.index(row["part"])
    for row in shipped_rows("kinds.csv", "foretune.plan.cost")
}
_REST = len(PARTS) - 1
SMALLEST_SUM = 1e-9
"""Divides shares of a step that takes no time or energy."""
MAX_SIMILAR_SYSTEMS = 2
"""Maximum number of measured systems from which a system without measurements borrows."""


@dataclass(frozen=True)
class Step:
    """One step of a deployment in which all requests have the same lengths.

    ``draft`` is the drafter's step, which runs ``draft_steps`` times before this one.
    """

    model: ModelDescription
    layout: Layout
    formats: Formats
    part: Part
    draft: "Step | None" = None
    draft_steps: int = 0

    def operators(self) -> list[Operator]:
        """Return the operators of one rank, with attention as the sum of its parts."""
        own = mixed_operators(self.model, self.layout, self.formats, [self.part])
        drafts = self.draft.operators() if self.draft else []
        return own + [replace(op, count=self.draft_steps * op.count) for op in drafts]


class StepTimer:
    """Predicts time and energy of steps; each operator is looked up once."""

    def __init__(self, operator_timer: OperatorTimer) -> None:
        self.operator_timer = operator_timer
        self._power = OperatorPower(operator_timer.device, operator_timer.system)
        self._index_of_key: dict[tuple[object, ...], int] = {}
        self._estimates: dict[str, np.ndarray] = {}
        """Estimates of the operators so far, one array per column; see `_estimate`."""
        self._index_of_object: dict[int, tuple[Operator, int]] = {}

    def operators(self, step: Step) -> list[Operator]:
        """Return the operators of one rank in a step, see `mixed_operators`."""
        if step.draft:
            return step.operators()
        return self.mixed_operators(step.model, step.layout, step.formats, [step.part])

    def mixed_operators(
        self, model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
    ) -> list[Operator]:
        """Return the operators of one rank, with attention in one piece if measured that way."""
        shares = formats.pure_parts
        if len(shares) > 1:
            return of_mixture(shares, lambda pure: self.mixed_operators(model, layout, pure, parts))
        operators = mixed_operators(model, layout, formats, parts)
        modules = attention_modules(model, layout, formats, parts)
        if not modules or not all(
            self.operator_timer.has_measurements(m.kernel, str(m.problem["shape"])) for m in modules
        ):
            return operators
        pieces = attention_operators(model, layout, formats, parts, phase_of(parts))
        # Operators are cached, so equal ones are the same object.
        inside = {id(operator) for operator in pieces}
        return [op for op in operators if id(op) not in inside] + modules

    def times(self, steps: Sequence[Step | Sequence[Operator]]) -> pd.DataFrame:
        """Return milliseconds and energy per step or list of operators, one row each.

        Columns: those of `PARTS`; ``total``; ``guessed``, the share of ``total`` that is
        extrapolated; ``compute_bound``, a share of ``total``; ``bound``, the roofline milliseconds;
        ``energy_mj`` of one rank's GPU, NaN without a known power limit; ``energy_guessed``, the
        share of energy whose power was not measured on this system.
        """
        operators_of_steps = [
            self.operators(step) if isinstance(step, Step) else step for step in steps
        ]
        operators = [operator for each in operators_of_steps for operator in each]
        indices = self._lookup_indices(operators)
        estimates = {name: values[indices] for name, values in self._estimates.items()}

        # Per operator: its step, its part, and all its runs' time and energy.
        step_of = np.repeat(np.arange(len(steps)), [len(each) for each in operators_of_steps])
        part = np.array([_PART_OF.get(operator.kernel, _REST) for operator in operators])
        count = np.array([operator.count for operator in operators], dtype=float)
        ms = count * estimates["ms"]
        mj = ms * estimates["watts"]

        def sum_of_steps(values: np.ndarray) -> np.ndarray:
            return np.bincount(step_of, values, len(steps))

        # Per step: sums, and shares of them.
        ms_of_parts = np.zeros((len(steps), len(PARTS)))
        np.add.at(ms_of_parts, (step_of, part.astype(int)), ms)
        total_ms = ms_of_parts.sum(axis=1)
        total_mj = sum_of_steps(mj)
        time_divisor = np.maximum(total_ms, SMALLEST_SUM)
        energy_divisor = np.maximum(total_mj, SMALLEST_SUM)
        return pd.DataFrame(ms_of_parts, columns=list(PARTS)).assign(
            total=total_ms,
            guessed=sum_of_steps(ms * estimates["extrapolated"]) / time_divisor,
            compute_bound=sum_of_steps(ms * estimates["compute_bound"]) / time_divisor,
            bound=sum_of_steps(count * estimates["bound_ms"]),
            energy_mj=total_mj,
            energy_guessed=1.0 - sum_of_steps(mj * estimates["metered"]) / energy_divisor,
        )

    def _lookup_indices(self, operators: Sequence[Operator]) -> np.ndarray:
        """Return each operator's index in the estimates, adding new operators."""
        new: list[Operator] = []
        indices = np.empty(len(operators), dtype=np.int64)
        for i, operator in enumerate(operators):
            # The same objects recur: their address is faster than their hash.
            cached = self._index_of_object.get(id(operator))
            if cached is None or cached[0] is not operator:
                key = (operator.kernel, operator.problem, operator.config)
                index = self._index_of_key.get(key)
                if index is None:
                    index = self._index_of_key[key] = len(self._index_of_key)
                    new.append(operator)
                cached = self._index_of_object[id(operator)] = (operator, index)
            indices[i] = cached[1]
        if new:
            for name, values in self._estimate(operator_table(new)).items():
                self._estimates[name] = np.r_[self._estimates.get(name, ()), values]
        return indices

    def _estimate(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """Return times and powers of operators; ``metered``: whether measured on this system."""
        times = self.operator_timer.times(table, fastest_format=True)
        modeled = self._power.watts(table, times.ms)
        metered = np.isfinite(times.watts)
        clipped = np.clip(times.watts, self._power.active_idle_w, self._power.limit_w)
        return {
            "ms": times.ms,
            "extrapolated": np.isin(times.source, SOURCES[2:]),
            "compute_bound": modeled.compute_bound,
            "watts": np.where(metered, clipped, modeled.watts),
            "metered": modeled.measured | metered,
            "bound_ms": times.bound_ms,
        }


def operator_table(operators: Sequence[Operator]) -> pd.DataFrame:
    """Return operators as rows of a run table."""
    return pd.DataFrame(
        [
            {"kernel": operator.kernel}
            | {f"problem.{name}": value for name, value in operator.problem.items()}
            | {f"config.{name}": value for name, value in operator.config.items()}
            for operator in operators
        ]
    )


class StepTimerFactory:
    """Returns the step timer of a system and an engine.

    A system without measurements borrows from those with the most similar GPUs. Without ``tables``,
    times are rooflines. Without ``predictors``, the user's cache is used and no progress is shown.
    """

    def __init__(
        self, tables: OperatorTables | None, predictors: TrainedPredictorCache | None = None
    ) -> None:
        self._tables = tables
        self.predictors = predictors or TrainedPredictorCache()
        self._timers: dict[tuple[str, str], StepTimer] = {}

    def __call__(self, system: System, backend: str) -> StepTimer:
        """Return the timer of ``backend`` on ``system``."""
        key = system.name, backend
        if key not in self._timers:
            similar = self._similar_systems(system)
            operator_timer = OperatorTimer(
                system.device,
                self._tables,
                system.name,
                backend,
                similar_systems=similar,
                predictors=self.predictors,
                links=system,
            )
            self._timers[key] = StepTimer(operator_timer)
        return self._timers[key]

    @property
    def has_tables(self) -> bool:
        """Whether times come from measured tables; if not, they are rooflines."""
        return self._tables is not None

    def measured_versions(self, system: str, backend: str) -> list[str]:
        """Return the versions of an engine whose operators were measured, oldest first."""
        return self._tables.versions(system, backend) if self._tables else []

    @property
    def rejected_rows(self) -> list[RejectedRows]:
        """Rows dropped from the measured tables read so far."""
        timers = (timer.operator_timer for timer in self._timers.values())
        return [one for timer in timers for one in timer.rejected_rows]

    def _similar_systems(self, system: System) -> list[str]:
        """Return measured systems, the most similar GPU first; empty if this one is measured."""
        if self._tables is None or system.name in self._tables.systems:
            return []
        measured = [(name, find_system(name)) for name in self._tables.systems]
        measured.sort(key=lambda pair: _dissimilarity(system, pair[1]))
        return [name for name, _ in measured[:MAX_SIMILAR_SYSTEMS]]


def _dissimilarity(system: System, other: System) -> tuple[bool, bool, float]:
    mine = system.device
    theirs = other.device
    bandwidth_ratio = theirs.specs.get("memory_gbps", 1.0) / mine.specs.get("memory_gbps", 1.0)
    makers = (device.name.split()[0] for device in (mine, theirs))
    return (
        len(set(makers)) > 1,
        theirs.architecture != mine.architecture,
        max(bandwidth_ratio, 1.0 / bandwidth_ratio),
    )
