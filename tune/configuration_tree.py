"""Decision trees from problems to configurations.

A tree splits problems by how well each configuration does on them (a regression tree on all
efficiencies at once), and each leaf is the configuration with the best average there. A classifier
of the best configuration would penalize mistakes that cost nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.problem import Problem
from foretune.tune.efficiency import fill_missing
from foretune.values import Value

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """Whether a parameter is ``value`` (None: absent), or is a number of at most ``value``."""

    name: str
    value: Value | None
    at_most: bool = False

    def answer(self, problem: Problem) -> bool:
        """Return the answer; False if the problem has no such number."""
        value = problem.get(self.name)
        if not self.at_most:
            return value == self.value
        return isinstance(value, (int, float)) and value <= self.value  # type: ignore[operator]


Tree = int | tuple[Question, "Tree", "Tree"]
"""The number of a configuration, or a question with the trees for yes and no."""


@dataclass(frozen=True)
class _Column:
    """What a tree may split by: a parameter's values as numbers, one per problem.

    Sizes are ranks (the tree computes in single precision); ``question`` is None for them, because
    it depends on where the tree splits. Other columns are 1 where the answer is yes.
    """

    name: str
    question: Question | None
    values: Floats


def follow(tree: Tree, problem: Problem) -> int:
    """Return the number of the configuration for a problem."""
    while isinstance(tree, tuple):
        question, yes, no = tree
        tree = yes if question.answer(problem) else no
    return tree


def leaves(tree: Tree) -> list[int]:
    """Return the numbers of the configurations at the leaves, which may repeat."""
    if not isinstance(tree, tuple):
        return [tree]
    _, yes, no = tree
    return [*leaves(yes), *leaves(no)]


def fit_tree(problems: Sequence[Problem], efficiency: Floats, max_leaves: int) -> Tree:
    """Return a tree whose configurations keep a large share of the best performance.

    ``efficiency`` has the shape (problems, configurations), and NaN for unmeasured pairs.
    """
    estimated = fill_missing(efficiency)
    columns = list(_columns(problems))
    if max_leaves < 2 or not columns:
        return _best_configuration(estimated)
    from sklearn.tree import DecisionTreeRegressor

    table = np.column_stack([column.values for column in columns])
    model = DecisionTreeRegressor(max_leaf_nodes=max_leaves, random_state=0)
    fitted = model.fit(table, estimated).tree_

    def grow(node: int, rows: npt.NDArray[np.intp]) -> Tree:
        """Return the tree below a node of the fitted one, which ``rows`` of the table reach."""
        number = fitted.feature[node]
        if number < 0:  # a leaf
            return _best_configuration(estimated[rows])
        is_low = table[rows, number] <= fitted.threshold[node]
        low_rows = rows[is_low]
        high_rows = rows[~is_low]
        low = grow(fitted.children_left[node], low_rows)
        high = grow(fitted.children_right[node], high_rows)
        if low == high:  # whatever the answer
            return low

        column = columns[number]
        if column.question is not None:
            return column.question, high, low
        largest: Any = max(problems[row][column.name] for row in low_rows)
        smallest: Any = min(problems[row][column.name] for row in high_rows)
        question = Question(column.name, _midpoint(largest, smallest), at_most=True)
        return question, low, high

    return grow(0, np.arange(len(problems)))


def _best_configuration(efficiency: Floats) -> int:
    return int(efficiency.mean(axis=0).argmax())


def _columns(problems: Sequence[Problem]) -> Iterator[_Column]:
    """Yield the columns that distinguish problems."""
    names = dict.fromkeys(name for problem in problems for name in problem)
    for name in names:
        values = [problem.get(name) for problem in problems]
        distinct = sorted(dict.fromkeys(values), key=_sort_key)
        if len(distinct) == 1:
            continue
        if all(type(value) in (int, float) for value in distinct):
            rank_of = {value: rank for rank, value in enumerate(distinct)}
            ranks = [rank_of[value] for value in values]
            yield _Column(name, None, np.array(ranks, dtype=float))
        else:
            # Of two values, one question is enough.
            asked = distinct[1:] if len(distinct) == 2 else distinct
            for asked_value in asked:
                answers = [value == asked_value for value in values]
                yield _Column(name, Question(name, asked_value), np.array(answers, dtype=float))


def _sort_key(value: Any) -> tuple[bool, bool, Any]:
    """Sort numbers first, then strings; None, an absent value, is last."""
    return value is None, isinstance(value, str), value


def _midpoint(low: float, high: float) -> float:
    """Return a number in [low, high): the geometric mean if both are positive."""
    if isinstance(low, int) and isinstance(high, int):
        return math.isqrt(low * high) if low > 0 else (low + high) // 2
    middle = low / 2 + high / 2
    if low > 0:
        middle = math.sqrt(low) * math.sqrt(high)
    return middle if low <= middle < high else low
