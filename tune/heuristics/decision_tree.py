"""Decision tree over problem parameters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.problem import Problem
from foretune.values import Value


@dataclass(frozen=True)
class AtMost:
    """Whether a parameter of the problem is at most ``limit``."""

    name: str
    limit: float

    def answer(self, problem: Problem) -> bool:
        """Return the answer: no if the problem has no such number."""
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
    """The columns for growing a tree, one per question that distinguishes problems.

    Sizes become ranks, because the tree computes in single precision.
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
        """Return the question that separates two sets of problems, and whether ``low`` is yes.

        Args:
            column: the column of the split.
            low: indices of the problems with small values.
            high: indices of the problems with large values.
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
    """Return a number in [low, high): the geometric mean if both are positive."""
    if isinstance(low, int) and isinstance(high, int):
        return math.isqrt(low * high) if low > 0 else (low + high) // 2
    middle = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2
    return middle if low <= middle < high else low


@dataclass(frozen=True)
class Leaf:
    """The index of a configuration."""

    choice: int


@dataclass(frozen=True)
class Branch:
    """A question and its two subtrees."""

    question: Question
    yes: "Node"
    no: "Node"


Node = Leaf | Branch


def follow_path(node: Node, problem: Problem) -> int:
    """Return the number of the configuration for a problem."""
    while isinstance(node, Branch):
        node = node.yes if node.question.answer(problem) else node.no
    return node.choice


def count_leaves(node: Node) -> int:
    """Return how many leaves a tree has."""
    return 1 if isinstance(node, Leaf) else count_leaves(node.yes) + count_leaves(node.no)


def leaf_choices(node: Node) -> set[int]:
    """Return the numbers of the configurations that a tree may choose."""
    return (
        {node.choice} if isinstance(node, Leaf) else leaf_choices(node.yes) | leaf_choices(node.no)
    )


def renumber(node: Node, number: Mapping[int, int]) -> Node:
    """Return the same tree, in which the configurations have other numbers."""
    if isinstance(node, Leaf):
        return Leaf(number[node.choice])
    return Branch(node.question, renumber(node.yes, number), renumber(node.no, number))


def fit_tree(problems: Sequence[Problem], gains: npt.NDArray[np.float64], depth: int) -> Node:
    """Return a tree of at most ``depth`` questions that keeps much of the best performance.

    It parts problems on which the configurations do differently well (a regression tree on all
    gains at once), and takes at each leaf the configuration that does best there on average. A
    classifier of the best configuration would pay as much for a mistake that costs nothing.

    Args:
        problems: at least one.
        gains: shape (problems, configurations), larger is better.
        depth: most questions on the way to a leaf.
    """
    questions = SplitCandidates(problems)
    everything = np.arange(len(problems))
    if depth == 0 or gains.shape[1] == 1 or questions.columns.shape[1] == 0:
        return _best_leaf(gains, everything)
    from sklearn.tree import DecisionTreeRegressor

    fitted = DecisionTreeRegressor(max_depth=depth, random_state=0).fit(questions.columns, gains)
    return _build_node(fitted.tree_, 0, everything, questions, gains)


def _build_node(
    tree: Any,
    number: int,
    rows: npt.NDArray[np.intp],
    questions: SplitCandidates,
    gains: npt.NDArray[np.float64],
) -> Node:
    column = tree.feature[number]
    if column < 0:
        return _best_leaf(gains, rows)
    goes_left = questions.columns[rows, column] <= tree.threshold[number]
    low, high = rows[goes_left], rows[~goes_left]
    question, low_says_yes = questions.split_between(column, low, high)
    left = _build_node(tree, tree.children_left[number], low, questions, gains)
    right = _build_node(tree, tree.children_right[number], high, questions, gains)
    if left == right:  # whatever the answer
        return left
    return Branch(question, left, right) if low_says_yes else Branch(question, right, left)


def _best_leaf(gains: npt.NDArray[np.float64], rows: npt.NDArray[np.intp]) -> Leaf:
    return Leaf(int(gains[rows].mean(axis=0).argmax()))
