"""Time, power and energy of a step: the operators of one rank, summed.

Power is a share of the board's limit: the active idle share plus terms for the utilization of
compute and memory, capped at the limit. Boards differ more in their limits than in these shares.
GPUs without power measurements take the shares of their generation, else the mean of all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from foretune.datasets.runs import with_specs_of
from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.decoder import attention_operators, mixed_operators, phase_of
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.measured_operators import RejectedRows
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.sparse_attention import attention_modules
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import SOURCES, OperatorTimer
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System

METERED_SYSTEMS = {"h200_sxm": ("sm_90", 0.187), "b200_sxm": ("sm_100", 0.254)}
"""System with measured power -> architecture, and share of the limit that an awake GPU draws with
almost no load: the 1st percentile of all powers (printed by `benchmarks/plan_power.py`)."""
SIMILAR_KERNELS = {
    "mla_prefill": "attention_prefill",
    "gdn": "attention_prefill",
    "mla_decode": "attention_decode",
}
"""Kernel -> kernel whose power model it uses; others without one use that of ``gemm``."""


@dataclass(frozen=True)
class PowerModel:
    """Power of one kernel's operators beyond active idle, as a share of the board's limit.

    ``compute`` and ``memory`` are added at peak rates; exponents shape utilizations.
    """

    compute: float
    compute_exponent: float
    memory: float
    memory_exponent: float

    def share(self, utilization: np.ndarray, active_idle_share: np.ndarray | float) -> np.ndarray:
        """Return the drawn share of the limit, for utilizations of compute and memory (rows, 2)."""
        clipped = np.clip(np.nan_to_num(utilization), 0.0, 1.0)
        computing = self.compute * clipped[:, 0] ** self.compute_exponent
        reading = self.memory * clipped[:, 1] ** self.memory_exponent
        return np.minimum(active_idle_share + computing + reading, 1.0)


PowerModels = Mapping[str, Mapping[str, PowerModel]]
"""Kernel -> system -> fitted power model."""


class OperatorWatts(NamedTuple):
    """Power of operators, one entry per row."""

    watts: np.ndarray  # mean over the operator's time; NaN without a known limit
    measured: np.ndarray  # whether the kernel's power was measured on this system
    compute_bound: np.ndarray  # whether compute limits it, not memory


class OperatorPower:
    """Predicts the power of operators on a system; ``models`` are by default the shipped ones."""

    def __init__(self, device: Device, system: str = "", models: PowerModels | None = None) -> None:
        self.device, self.system = device, system
        self._models = shipped_models() if models is None else models
        similar = self._similar_systems(METERED_SYSTEMS)
        self.active_idle_share = float(np.mean([METERED_SYSTEMS[name][1] for name in similar]))
        """Share of the limit that the GPU draws while it waits for its next operator."""
        self.limit_w = device.specs.get("power_limit_w", float("nan"))
        """Power limit of the board in watts; NaN if unknown."""
        self.active_idle_w = self.limit_w * self.active_idle_share
        """Power of an awake idle GPU, in watts."""

    def watts(self, operators: pd.DataFrame, ms: np.ndarray) -> OperatorWatts:
        """Return the power of operators (run-table rows) that take ``ms`` milliseconds."""
        share, measured = np.empty(len(operators)), np.empty(len(operators), dtype=bool)
        compute_bound = np.empty(len(operators), dtype=bool)
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all")
            rows = with_specs_of(rows, self.device)
            utilization = row_limits_ms(family_of(str(kernel)), rows) / ms[index, None]
            similar = SIMILAR_KERNELS.get(str(kernel), str(kernel))
            models = self._models[similar if similar in self._models else "gemm"]
            each = [
                models[name].share(utilization, self.active_idle_share)
                for name in self._similar_systems(models)
            ]
            share[index] = np.mean(each, axis=0)
            measured[index] = self.system in self._models.get(str(kernel), ())
            compute_bound[index] = utilization[:, 0] > utilization[:, 1]
        return OperatorWatts(share * self.limit_w, measured, compute_bound)

    def _similar_systems(self, systems: Iterable[str]) -> list[str]:
        """Return the measured systems to use: this one, its generation, else all."""
        names = list(systems)
        mine = self.device.architecture[:-1]  # sm_10 for sm_100 and sm_103
        same_generation = [n for n in names if METERED_SYSTEMS[n][0][:-1] == mine]
        return [n for n in names if n == self.system] or same_generation or names


@cache
def shipped_models() -> dict[str, dict[str, PowerModel]]:
    """Return the shipped power models."""
    found: dict[str, dict[str, PowerModel]] = {}
    for row in shipped_rows("power.csv", "foretune.plan.cost"):
        form = PowerModel(*(float(row[field.name]) for field in fields(PowerModel)))
        found.setdefault(row["kernel"], {})[row["system"]] = form
    return found


PARTS = ("projections", "attention", "experts", "communication", "rest")
"""Parts of a step's time; columns of `StepTimer.times`."""
_PART_OF = {
    row["kernel"]: PARTS.index(row["part"])
    for row in shipped_rows("kinds.csv", "foretune.plan.cost")
}
_REST = len(PARTS) - 1


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
        operators = [self.operators(s) if isinstance(s, Step) else s for s in steps]
        indices = self._lookup_indices([op for ops in operators for op in ops])
        step_of = np.repeat(np.arange(len(steps)), [len(ops) for ops in operators])
        count = np.array([op.count for ops in operators for op in ops], dtype=float)
        part = np.array([_PART_OF.get(op.kernel, _REST) for ops in operators for op in ops])
        estimates = {name: values[indices] for name, values in self._estimates.items()}
        ms = count * estimates["ms"]
        mj = ms * estimates["watts"]
        table = np.zeros((len(steps), len(PARTS)))
        np.add.at(table, (step_of, part.astype(int)), ms)

        def summed(values: np.ndarray) -> np.ndarray:
            return np.bincount(step_of, values, len(steps))

        total, energy = table.sum(axis=1), summed(mj)
        safe, spent = np.maximum(total, 1e-9), np.maximum(energy, 1e-9)
        return pd.DataFrame(table, columns=list(PARTS)).assign(
            total=total,
            guessed=summed(ms * estimates["extrapolated"]) / safe,
            compute_bound=summed(ms * estimates["compute_bound"]) / safe,
            bound=summed(count * estimates["bound_ms"]),
            energy_mj=energy,
            energy_guessed=1.0 - summed(mj * estimates["metered"]) / spent,
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
        times, power = self.operator_timer.times(table, fastest_format=True), self._power
        modeled, metered = power.watts(table, times.ms), np.isfinite(times.watts)
        clipped = np.clip(times.watts, power.active_idle_w, power.limit_w)
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


MAX_SIMILAR_SYSTEMS = 2
"""Maximum number of measured systems from which a system without measurements borrows."""


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
                system.device, self._tables, system.name, backend, similar, self.predictors
            )
            self._timers[key] = StepTimer(operator_timer)
        return self._timers[key]

    @property
    def has_tables(self) -> bool:
        """Whether times come from measured tables; if not, they are rooflines."""
        return self._tables is not None

    @property
    def rejected_rows(self) -> list[RejectedRows]:
        """Rows dropped from the measured tables read so far."""
        timers = (timer.operator_timer for timer in self._timers.values())
        return [one for timer in timers for one in timer.rejected_rows]

    def _similar_systems(self, system: System) -> list[str]:
        """Return measured systems, the most similar GPU first; empty if this one is measured."""
        if self._tables is None or system.name in self._tables.systems:
            return []
        found = [(name, find_system(name)) for name in self._tables.systems]
        found.sort(key=lambda pair: _dissimilarity(system, pair[1]))
        return [name for name, _ in found[:MAX_SIMILAR_SYSTEMS]]


def _dissimilarity(system: System, other: System) -> tuple[bool, bool, float]:
    mine, theirs = system.device, other.device
    bandwidth_ratio = theirs.specs.get("memory_gbps", 1.0) / mine.specs.get("memory_gbps", 1.0)
    makers = (device.name.split()[0] for device in (mine, theirs))
    return (
        len(set(makers)) > 1,
        theirs.architecture != mine.architecture,
        max(bandwidth_ratio, 1.0 / bandwidth_ratio),
    )
