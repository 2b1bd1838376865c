"""Times and energy of a deployment's steps: the operators of one rank, summed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

import numpy as np
import pandas as pd

from foretune.plan.cost.attention import attention_operators
from foretune.plan.cost.attention_modules import MODULES, attention_modules
from foretune.plan.cost.decoder import mixed_operators, phase_of, step_operators
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.power import OperatorPower
from foretune.plan.cost.recurrent_attention import RECURRENT
from foretune.plan.cost.screening import RejectedRows
from foretune.plan.cost.times import SOURCES, OperatorTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout

PARTS = ("projections", "attention", "experts", "communication", "rest")
"""What a step's time is made of, as columns of `StepTimer.times`."""
_PART_OF = {
    "gemm": 0,
    "attention_prefill": 1, "attention_decode": 1, "mla_prefill": 1, "mla_decode": 1,
    "mla_bmm": 1, **{family.name: 1 for family in (*MODULES, *RECURRENT)},
    "moe": 2,
    "all_reduce": 3, "all_gather": 3, "all_to_all": 3, "reduce_scatter": 3, "send_recv": 3,
}  # fmt: skip
_REST = len(PARTS) - 1


@dataclass(frozen=True)
class SpeculativeStep:
    """A step that checks drafted tokens, and the steps that drafted them.

    Attributes:
        verification: of the model.
        draft: of what drafts.
        draft_steps: how many tokens were drafted, one after the other.
    """

    verification: "Step"
    draft: "Step"
    draft_steps: int

    def operators(self) -> list[Operator]:
        """Return what one rank runs."""
        drafts = (replace(o, count=self.draft_steps * o.count) for o in self.draft.operators())
        return [*self.verification.operators(), *drafts]


class HasOperators(Protocol):
    """Anything that is made of operators."""

    def operators(self) -> Sequence[Operator]:
        """Return what one rank runs."""


@dataclass(frozen=True)
class Step:
    """One step of a deployment in which all requests are in the same situation.

    Attributes:
        model, layout, formats: what computes, over which ranks, in which formats.
        batch: requests of each attention-DP group.
        new_tokens: that each computes.
        context: tokens that each has in the cache already.
        phase: ``prefill`` or ``decode``.
    """

    model: ModelDescription
    layout: Layout
    formats: Formats
    batch: int
    new_tokens: int
    context: int
    phase: Literal["prefill", "decode"]

    def operators(self) -> list[Operator]:
        """Return what one rank runs."""
        return step_operators(
            self.model, self.layout, self.formats, self.batch, self.new_tokens, self.context,
            self.phase,
        )  # fmt: skip


@dataclass(frozen=True)
class _OperatorEstimates:
    """What is known of the operators that were looked up, one entry each.

    Attributes:
        ms, width: how long, and half the 90 % interval of its logarithm.
        extrapolated: whether the time lies outside what was measured.
        compute_bound: whether computing limits it, not memory.
        watts: what it draws.
        metered: whether the power of such operators was measured on this system.
        bound_ms: milliseconds that the hardware's peak rates allow.
    """

    ms: np.ndarray
    width: np.ndarray
    extrapolated: np.ndarray
    compute_bound: np.ndarray
    watts: np.ndarray
    metered: np.ndarray
    bound_ms: np.ndarray

    def extended(
        self, timer: OperatorTimer, power: OperatorPower, table: pd.DataFrame
    ) -> "_OperatorEstimates":
        """Return this and what is known of the operators of ``table``."""
        times = timer.times(table, fastest_format=True)
        modeled = power.watts(table, times.ms)
        width = np.log(times.high / times.ms)
        extrapolated = np.isin(times.source, SOURCES[2:])
        metered = np.isfinite(times.watts)
        clipped = np.clip(times.watts, power.active_idle_w, power.limit_w)
        watts = np.where(metered, clipped, modeled.watts)
        measured = modeled.measured | metered
        new = _OperatorEstimates(
            times.ms, width, extrapolated, modeled.compute_bound, watts, measured, times.bound_ms
        )
        return _OperatorEstimates(
            *(np.r_[getattr(self, f.name), getattr(new, f.name)] for f in fields(self))
        )


class StepTimer:
    """Answers how long steps take and what they draw; every operator is looked up once.

    Args:
        operator_timer: answers how long operators take.
    """

    def __init__(self, operator_timer: OperatorTimer) -> None:
        self._operator_timer = operator_timer
        self._power = OperatorPower(operator_timer.device, operator_timer.system)
        self._index_of_key: dict[tuple[object, ...], int] = {}
        self._estimates = _OperatorEstimates(*(np.zeros(0) for _ in fields(_OperatorEstimates)))
        self._index_of_object: dict[int, tuple[Operator, int]] = {}

    @property
    def rejected_rows(self) -> list[RejectedRows]:
        """What was left out of measured tables, as far as they were read."""
        return self._operator_timer.rejected_rows

    def operators(self, step: HasOperators) -> Sequence[Operator]:
        """Return what one rank runs in a step, see `mixed_operators`."""
        if not isinstance(step, Step):
            return step.operators()
        part = Part(step.batch, step.new_tokens, step.context, step.phase)
        return self.mixed_operators(step.model, step.layout, step.formats, [part])

    def mixed_operators(
        self,
        model: ModelDescription,
        layout: Layout,
        formats: Formats,
        parts: Sequence[Part],
    ) -> list[Operator]:
        """Return what one rank runs, attention in one piece where it was measured so here."""
        operators = mixed_operators(model, layout, formats, parts)
        modules = attention_modules(model, layout, formats, parts)
        if not modules or not all(
            self._operator_timer.has_measurements(m.kernel, str(m.problem["shape"]))
            for m in modules
        ):
            return operators
        pieces = attention_operators(model, layout, formats, parts, phase_of(parts))
        # Operators are made once, so that these are the same objects.
        inside = {id(operator) for operator in pieces}
        return [op for op in operators if id(op) not in inside] + modules

    def times(self, steps: Sequence[HasOperators]) -> pd.DataFrame:
        """Return milliseconds and energy per step, one row each.

        Columns: those of `PARTS`, ``total``, ``width`` (half the 90 % interval of log ``total``,
        were all its operators wrong in the same direction), ``guessed``: the share of ``total``
        whose operators lie outside what was measured, ``compute_bound``: the share of it that
        computing limits, ``energy_mj``: of the GPU of one rank, NaN where its board's limit is not
        known, ``energy_guessed``: the share of that whose operators' power nobody measured on this
        system, and ``bound``: milliseconds that peak rates allow.
        """
        operators = [self.operators(step) for step in steps]
        indices = self._lookup_indices([op for ops in operators for op in ops])
        step_of = np.repeat(np.arange(len(steps)), [len(ops) for ops in operators])
        count = np.array([op.count for ops in operators for op in ops], dtype=float)
        part = np.array([_PART_OF.get(op.kernel, _REST) for ops in operators for op in ops])
        estimates = self._estimates
        ms = count * estimates.ms[indices]
        mj = ms * estimates.watts[indices]
        table = np.zeros((len(steps), len(PARTS)))
        np.add.at(table, (step_of, part.astype(int)), ms)

        def summed(values: np.ndarray) -> np.ndarray:
            return np.bincount(step_of, values, len(steps))

        total, energy = table.sum(axis=1), summed(mj)
        safe, spent = np.maximum(total, 1e-9), np.maximum(energy, 1e-9)
        return pd.DataFrame(table, columns=list(PARTS)).assign(
            total=total,
            width=summed(ms * estimates.width[indices]) / safe,
            guessed=summed(ms * estimates.extrapolated[indices]) / safe,
            compute_bound=summed(ms * estimates.compute_bound[indices]) / safe,
            bound=summed(count * estimates.bound_ms[indices]),
            energy_mj=energy,
            energy_guessed=1.0 - summed(mj * estimates.metered[indices]) / spent,
        )

    def _lookup_indices(self, operators: Sequence[Operator]) -> np.ndarray:
        """Return where each operator's time is kept, looking up those that are new."""
        new: list[Operator] = []
        indices = np.empty(len(operators), dtype=np.int64)
        for i, operator in enumerate(operators):
            # The same object comes again and again: its address is faster than its hash.
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
            self._estimates = self._estimates.extended(
                self._operator_timer, self._power, operator_table(new)
            )
        return indices


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
