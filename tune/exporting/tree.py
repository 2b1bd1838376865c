"""A small decision tree: questions about the problem, a configuration at each leaf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.problem import Problem
from foretune.tune.exporting.questions import Question, SplitCandidates


@dataclass(frozen=True)
class Leaf:
    """The number of a configuration."""

    choice: int


@dataclass(frozen=True)
class Branch:
    """A question, and where to go on."""

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
