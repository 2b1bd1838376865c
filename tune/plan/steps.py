"""Times of a deployment's steps: the operators of one rank, summed by what they are part of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from foretune.tune.plan.description import ModelDescription
from foretune.tune.plan.formats import Formats
from foretune.tune.plan.layout import Layout
from foretune.tune.plan.operator import Operator
from foretune.tune.plan.operator_times import SOURCES, OperatorClock
from foretune.tune.plan.operators import step_operators

PARTS = ("projections", "attention", "experts", "communication", "rest")
"""What a step's time is made of, as columns of `StepClock.times`."""
_PART_OF = {
    "gemm": 0,
    "attention_prefill": 1, "attention_decode": 1, "mla_prefill": 1, "mla_decode": 1,
    "mla_bmm": 1, "gdn": 1,
    "moe": 2,
    "all_reduce": 3, "all_gather": 3, "all_to_all": 3, "reduce_scatter": 3, "send_recv": 3,
}  # fmt: skip
_REST = len(PARTS) - 1


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


class StepClock:
    """Answers how long steps take; every operator is looked up once.

    Args:
        operators: answers how long operators take.
    """

    def __init__(self, operators: OperatorClock) -> None:
        self._clock = operators
        self._numbers: dict[tuple[object, ...], int] = {}
        self._ms, self._width = np.zeros(0), np.zeros(0)
        self._guessed = np.zeros(0, dtype=bool)
        self._kept: dict[int, tuple[Operator, int]] = {}

    def times(self, steps: Sequence[Step]) -> pd.DataFrame:
        """Return milliseconds per step, one row each.

        Columns: those of `PARTS`, ``total``, ``width`` (half the 90 % interval of log ``total``,
        were all its operators wrong in the same direction), and ``guessed``: the share of
        ``total`` whose operators lie outside what was measured.
        """
        operators = [step.operators() for step in steps]
        numbers = self._number([op for ops in operators for op in ops])
        step_of = np.repeat(np.arange(len(steps)), [len(ops) for ops in operators])
        count = np.array([op.count for ops in operators for op in ops], dtype=float)
        part = np.array([_PART_OF.get(op.kernel, _REST) for ops in operators for op in ops])
        ms = count * self._ms[numbers]
        table = np.zeros((len(steps), len(PARTS)))
        np.add.at(table, (step_of, part.astype(int)), ms)
        total = table.sum(axis=1)
        safe = np.maximum(total, 1e-9)
        width = np.bincount(step_of, ms * self._width[numbers], len(steps)) / safe
        guessed = np.bincount(step_of, ms * self._guessed[numbers], len(steps)) / safe
        result = pd.DataFrame(table, columns=list(PARTS))
        return result.assign(total=total, width=width, guessed=guessed)

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
            times = self._clock.times(operator_table(new))
            self._ms = np.r_[self._ms, times.ms]
            self._width = np.r_[self._width, np.log(times.high / times.ms)]
            guessed = np.isin(times.source, SOURCES[2:])
            self._guessed = np.r_[self._guessed, guessed]
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
