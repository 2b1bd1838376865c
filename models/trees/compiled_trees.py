"""Compiled prediction of many rows: each split is evaluated once, for 64 rows at a time.

Trees share few distinct splits ("is this feature below that bound?"), because training bins the
features. A block's splits are evaluated first, one bit per row. Then the trees route hundreds of
rows at a time by these bits, without reading features. A row's left and right turns are the binary
digits of its leaf's index.

Importing this module needs Numba (the extra ``cpu``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import numba
import numpy as np

from foretune.models.trees.row_bits import (
    WORD,
    add,
    below,
    both,
    either,
    load,
    no_rows,
    one_each,
    one_of_eight,
    store,
    without,
)
from foretune.models.trees.tree_arrays import Trees

Array = np.ndarray
F = TypeVar("F", bound=Callable[..., Any])

MAX_DEPTH = 8
"""A leaf's index fits a byte."""
SHALLOW = 3
"""At this depth selecting a leaf is faster than a lookup; shallower trees are padded to it."""
WORDS = 8
BLOCK = WORD * WORDS
"""Rows per block: the bits of the widest vectors."""


@dataclass(frozen=True)
class CompiledTrees:
    """Arrays of the compiled traversal.

    Attributes:
        columns: features used; twice if missing values go either way.
        missing: substitute for missing values: infinite goes right, minus infinite left.
        asked: per split, its index in ``columns``, sorted.
        bounds: per split, the bound below which rows go left.
        levels: per tree and depth, the start of its nodes, then their end.
        questions: per inner node, its split.
        numbers: per node, 1 for a root; the children of n are 2 n and 2 n + 1.
        leaves: per tree, its leaf values by index; bit d is 1 for right at depth d.
        firsts: per tree, the start of its leaves.
        base: initial value of the sum.
        logistic: whether the result is a probability.
    """

    columns: np.ndarray
    missing: np.ndarray
    asked: np.ndarray
    bounds: np.ndarray
    levels: np.ndarray
    questions: np.ndarray
    numbers: np.ndarray
    leaves: np.ndarray
    firsts: np.ndarray
    base: np.float32
    logistic: bool

    @classmethod
    def from_trees(cls, trees: Trees) -> Self | None:
        """Return the compiled form; None if the trees are too deep."""
        if trees.depth > MAX_DEPTH:
            return None
        tree, depth, number, turns = _walked(trees)
        inner = trees.left != np.arange(len(trees.left))
        ends, level = ~inner, tree * (MAX_DEPTH + 1) + depth
        order = np.argsort(np.where(inner, level, level.max() + 1), kind="stable")[: inner.sum()]
        pairs = trees.slot[order] << 32 | trees.bound[order].view(np.uint32)
        distinct, questions = np.unique(pairs, return_inverse=True)
        copies, asked = np.unique(distinct >> 32, return_inverse=True)
        depths = np.full(len(trees.roots), SHALLOW)
        np.maximum.at(depths, tree, depth)
        firsts = np.cumsum(1 << depths) - (1 << depths)
        leaves = np.zeros(int((1 << depths).sum()), dtype=np.float32)
        leaves[firsts[tree[ends]] + turns[ends]] = trees.leaf[ends]
        starts = np.arange(len(depths) * (MAX_DEPTH + 1)).reshape(len(depths), -1)
        return cls(
            columns=copies % trees.features,
            missing=np.where(copies < trees.features, np.inf, -np.inf).astype(np.float32),
            asked=asked,
            bounds=(distinct & 0xFFFFFFFF).astype(np.uint32).view(np.float32),
            levels=np.searchsorted(level[order], starts),
            questions=questions.astype(np.int32),
            numbers=number[order].astype(np.uint8),
            leaves=leaves,
            firsts=firsts,
            base=np.float32(trees.base),
            logistic=trees.logistic,
        )

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the prediction for a float32 matrix, added in XGBoost's order."""
        total = np.empty(-(-len(X) // BLOCK) * BLOCK, dtype=np.float32)
        _walk(
            np.asfortranarray(X), self.columns, self.missing, self.asked, self.bounds, self.levels,
            self.questions, self.numbers, self.leaves, self.firsts, self.base, total,
        )  # fmt: skip
        total = total[: len(X)]
        result = 1.0 / (1.0 + np.exp(-total)) if self.logistic else total
        return result.astype(np.float64)


def _walked(trees: Trees) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, per node, its tree, depth, number, and turns as binary digits."""
    n = len(trees.left)
    tree, depth = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    number, turns = np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    level = trees.roots
    tree[level] = np.arange(len(level))
    for step in range(trees.depth):
        level = level[trees.left[level] != level]
        for turn in (0, 1):
            child = trees.left[level] + turn
            tree[child], depth[child] = tree[level], step + 1
            number[child] = 2 * number[level] + turn
            turns[child] = turns[level] + (turn << step)
        level = np.concatenate([trees.left[level], trees.left[level] + 1])
    return tree, depth, number, turns


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk if a cache folder exists."""
    make: Any = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return make(cache=True)(function)
    except RuntimeError:  # no writable cache folder
        return make()(function)


@compiled
def _ask(
    X: Array,
    start: int,
    columns: Array,
    missing: Array,
    asked: Array,
    bounds: Array,
    values: Array,
    answers: Array,
) -> None:
    """Evaluate every split for the rows of a block."""
    rows = min(BLOCK, len(X) - start)
    for slot in range(len(columns)):
        column, instead = columns[slot], missing[slot]
        for i in range(rows):
            value = X[start + i, column]
            values[slot * BLOCK + i] = instead if np.isnan(value) else value
    for question in range(len(asked)):
        first = asked[question] * BLOCK
        for word in range(WORDS):
            answers[question * WORDS + word] = below(values, first + word * WORD, bounds[question])


@compiled
def _turn(
    levels: Array, questions: Array, numbers: Array, answers: Array, reached: Array, turned: Array
) -> int:
    """Find which rows turn right at every depth of a tree; return its depth, at least `SHALLOW`."""
    depth = 0
    while depth < SHALLOW or (depth < MAX_DEPTH and levels[depth] < levels[depth + 1]):
        right = no_rows(WORDS)
        last = depth + 1 == MAX_DEPTH or levels[depth + 1] == levels[depth + 2]
        for node in range(levels[depth], levels[depth + 1]):
            here = load(reached, numbers[node] * WORDS, WORDS)
            yes = load(answers, questions[node] * WORDS, WORDS)
            no = without(here, yes)
            right = either(right, no)
            if not last:
                store(reached, 2 * numbers[node] * WORDS, both(here, yes))
                store(reached, (2 * numbers[node] + 1) * WORDS, no)
        store(turned, depth * WORDS, right)
        depth += 1
    return depth


@compiled
def _add(
    depth: int, turned: Array, leaves: Array, first: int, leaf_of: Array, total: Array, start: int
) -> None:
    """Add each row's leaf to its sum."""
    for word in range(WORDS):
        rows = start + word * WORD
        if depth == SHALLOW:
            a, b, c = turned[word], turned[WORDS + word], turned[2 * WORDS + word]
            leaf = one_of_eight(leaves, first, a, b, c)
            store(total, rows, add(load(total, rows, WORD), leaf))
            continue
        number = one_each(turned[word], np.uint8(0))
        for step in range(depth):
            number = either(number, one_each(turned[step * WORDS + word], np.uint8(1 << step)))
        store(leaf_of, 0, number)
        for i in range(WORD):
            total[rows + i] += leaves[first + leaf_of[i]]


@compiled
def _walk(
    X: Array,
    columns: Array,
    missing: Array,
    asked: Array,
    bounds: Array,
    levels: Array,
    questions: Array,
    numbers: Array,
    leaves: Array,
    firsts: Array,
    base: np.float32,
    total: Array,
) -> None:
    values = np.zeros(len(columns) * BLOCK, dtype=np.float32)
    answers = np.empty(len(asked) * WORDS, dtype=np.uint64)
    reached = np.empty((1 << MAX_DEPTH) * WORDS, dtype=np.uint64)
    reached[WORDS : 2 * WORDS] = ~np.uint64(0)
    turned = np.zeros(MAX_DEPTH * WORDS, dtype=np.uint64)
    leaf_of = np.empty(WORD, dtype=np.uint8)
    total[:] = base
    for start in range(0, len(X), BLOCK):
        _ask(X, start, columns, missing, asked, bounds, values, answers)
        for tree in range(len(firsts)):
            depth = _turn(levels[tree], questions, numbers, answers, reached, turned)
            _add(depth, turned, leaves, firsts[tree], leaf_of, total, start)
