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
from foretune.plan.cost.screening import Screened
from foretune.plan.cost.times import SOURCES, OperatorClock
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout

PARTS = ("projections", "attention", "experts", "communication", "rest")
"""What a step's time is made of, as columns of `StepClock.times`."""
_PART_OF = {
    "gemm": 0,
    "attention_prefill": 1, "attention_decode": 1, "mla_prefill": 1, "mla_decode": 1,
    "mla_bmm": 1, **{family.name: 1 for family in (*MODULES, *RECURRENT)},
    "moe": 2,
    "all_reduce": 3, "all_gather": 3, "all_to_all": 3, "reduce_scatter": 3, "send_recv": 3,
}  # fmt: skip
_REST = len(PARTS) - 1


@dataclass(frozen=True)
class Speculated:
    """A step that checks drafted tokens, and the steps that drafted them.

    Attributes:
        checked: of the model.
        draft: of what drafts.
        times: how many tokens were drafted, one after the other.
    """

    checked: "Step"
    draft: "Step"
    times: int

    def operators(self) -> list[Operator]:
        """Return what one rank runs."""
        drafts = (replace(o, count=self.times * o.count) for o in self.draft.operators())
        return [*self.checked.operators(), *drafts]


class Work(Protocol):
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
class _Known:
    """What is known of the operators that were looked up, one entry each.

    Attributes:
        ms, width: how long, and half the 90 % interval of its logarithm.
        guessed: whether the time lies outside what was measured.
        computes: whether computing limits it, not memory.
        watts: what it draws.
        metered: whether the power of such operators was measured on this system.
        bound: milliseconds that the hardware's peak rates allow.
    """

    ms: np.ndarray
    width: np.ndarray
    guessed: np.ndarray
    computes: np.ndarray
    watts: np.ndarray
    metered: np.ndarray
    bound: np.ndarray

    def and_of(self, clock: OperatorClock, power: OperatorPower, table: pd.DataFrame) -> "_Known":
        """Return this and what is known of the operators of ``table``."""
        times = clock.times(table, chosen=True)
        drawn = power.watts(table, times.ms)
        width = np.log(times.high / times.ms)
        guessed = np.isin(times.source, SOURCES[2:])
        metered = np.isfinite(times.watts)
        here = np.clip(times.watts, power.awake_w, power.limit_w)
        watts = np.where(metered, here, drawn.watts)
        measured = drawn.measured | metered
        new = _Known(times.ms, width, guessed, drawn.computes, watts, measured, times.bound_ms)
        return _Known(*(np.r_[getattr(self, f.name), getattr(new, f.name)] for f in fields(self)))


class StepClock:
    """Answers how long steps take and what they draw; every operator is looked up once.

    Args:
        operators: answers how long operators take.
    """

    def __init__(self, operators: OperatorClock) -> None:
        self._clock = operators
        self._power = OperatorPower(operators.device, operators.system)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known = _Known(*(np.zeros(0) for _ in fields(_Known)))
        self._kept: dict[int, tuple[Operator, int]] = {}

    @property
    def screened(self) -> list[Screened]:
        """What was left out of measured tables, as far as they were read."""
        return self._clock.screened

    def operators(self, step: Work) -> Sequence[Operator]:
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
            self._clock.has(m.kernel, str(m.problem["shape"])) for m in modules
        ):
            return operators
        pieces = attention_operators(model, layout, formats, parts, phase_of(parts))
        # Operators are made once, so that these are the same objects.
        inside = {id(operator) for operator in pieces}
        return [op for op in operators if id(op) not in inside] + modules

    def times(self, steps: Sequence[Work]) -> pd.DataFrame:
        """Return milliseconds and energy per step, one row each.

        Columns: those of `PARTS`, ``total``, ``width`` (half the 90 % interval of log ``total``,
        were all its operators wrong in the same direction), ``guessed``: the share of ``total``
        whose operators lie outside what was measured, ``compute_bound``: the share of it that
        computing limits, ``energy_mj``: of the GPU of one rank, NaN where its board's limit is not
        known, ``energy_guessed``: the share of that whose operators' power nobody measured on this
        system, and ``bound``: milliseconds that peak rates allow.
        """
        operators = [self.operators(step) for step in steps]
        numbers = self._number([op for ops in operators for op in ops])
        step_of = np.repeat(np.arange(len(steps)), [len(ops) for ops in operators])
        count = np.array([op.count for ops in operators for op in ops], dtype=float)
        part = np.array([_PART_OF.get(op.kernel, _REST) for ops in operators for op in ops])
        known = self._known
        ms = count * known.ms[numbers]
        mj = ms * known.watts[numbers]
        table = np.zeros((len(steps), len(PARTS)))
        np.add.at(table, (step_of, part.astype(int)), ms)

        def summed(values: np.ndarray) -> np.ndarray:
            return np.bincount(step_of, values, len(steps))

        total, energy = table.sum(axis=1), summed(mj)
        safe, spent = np.maximum(total, 1e-9), np.maximum(energy, 1e-9)
        return pd.DataFrame(table, columns=list(PARTS)).assign(
            total=total,
            width=summed(ms * known.width[numbers]) / safe,
            guessed=summed(ms * known.guessed[numbers]) / safe,
            compute_bound=summed(ms * known.computes[numbers]) / safe,
            bound=summed(count * known.bound[numbers]),
            energy_mj=energy,
            energy_guessed=1.0 - summed(mj * known.metered[numbers]) / spent,
        )

    def _number(self, operators: Sequence[Operator]) -> np.ndarray:
        """Return where each operator's time is kept, looking up those that are new."""
        new: list[Operator] = []
        numbers = np.empty(len(operators), dtype=np.int64)
        for i, operator in enumerate(operators):
            # The same object comes again and again: its address is faster than its hash.
            kept = self._kept.get(id(operator))
            if kept is None or kept[0] is not operator:
                key = (operator.kernel, operator.problem, operator.config)
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = len(self._numbers)
                    new.append(operator)
                kept = self._kept[id(operator)] = (operator, number)
            numbers[i] = kept[1]
        if new:
            self._known = self._known.and_of(self._clock, self._power, operator_table(new))
        return numbers


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
