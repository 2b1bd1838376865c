"""What a decision tree may ask of a problem: is a size at most so much, is a choice this one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.mapping import Value
from foretune.problem import Problem


@dataclass(frozen=True)
class AtMost:
    """Whether a number of the problem is at most ``limit``."""

    name: str
    limit: float

    def answer(self, problem: Problem) -> bool:
        """Return the answer: no where the problem has no such number."""
        value = problem.get(self.name)
        return isinstance(value, (int, float)) and value <= self.limit


@dataclass(frozen=True)
class Equals:
    """Whether a value of the problem is ``value``; None if the problem has none."""

    name: str
    value: Value | None

    def answer(self, problem: Problem) -> bool:
        """Return the answer."""
        return problem.get(self.name) == self.value


Question = AtMost | Equals


class SplitCandidates:
    """The columns that a tree is grown on, one per question that could tell problems apart.

    Sizes become ranks, so that no number is too large or too close to another for a tree that
    computes in single precision.

    Args:
        problems: those the tree is to tell apart.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        self._sizes: list[str] = []
        self._choices: list[Equals] = []
        columns: list[npt.NDArray[np.float64]] = []
        for name in dict.fromkeys(n for p in problems for n in p):
            values = [p.get(name) for p in problems]
            distinct = sorted(dict.fromkeys(values), key=_sort_key)
            if len(distinct) > 1 and all(map(_is_number, distinct)):
                rank = {v: i for i, v in enumerate(distinct)}
                self._sizes.append(name)
                columns.insert(len(self._sizes) - 1, np.array([rank[v] for v in values], float))
            elif len(distinct) > 1:
                for value in distinct[1:] if len(distinct) == 2 else distinct:
                    self._choices.append(Equals(name, value))
                    columns.append(np.array([v == value for v in values], float))
        self.columns = np.column_stack(columns) if columns else np.zeros((len(problems), 0))

    def split_between(
        self, column: int, low: npt.NDArray[np.intp], high: npt.NDArray[np.intp]
    ) -> tuple[Question, bool]:
        """Return the question that parts two sets of problems, and whether ``low`` answers yes.

        Args:
            column: on which a tree parts them.
            low: numbers of the problems with small values there.
            high: of those with large ones.
        """
        if column >= len(self._sizes):
            return self._choices[column - len(self._sizes)], False
        name = self._sizes[column]
        largest = max(self._problems[i][name] for i in low)
        smallest = min(self._problems[i][name] for i in high)
        return AtMost(name, _midpoint(largest, smallest)), True


def _sort_key(value: Value | None) -> tuple[bool, bool, Any]:
    return value is None, isinstance(value, str), value


def _is_number(value: Value | None) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _midpoint(low: float, high: float) -> float:
    """Return a number in [low, high): half-way in ratio, as sizes go, where both are positive."""
    if isinstance(low, int) and isinstance(high, int):
        return math.isqrt(low * high) if low > 0 else (low + high) // 2
    middle = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2
    return middle if low <= middle < high else low
