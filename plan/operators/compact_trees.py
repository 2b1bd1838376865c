"""Boosted trees as small arrays, evaluated with NumPy alone.

Thresholds are numbers of a column's cuts, and leaves have 16 bits, so a model of 300 trees is a
file of some 100 kB. Loading XGBoost would take longer than all of an answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

MAX_CUTS = 256
"""Maximum thresholds of a column."""
ARRAYS = ("column", "cut", "left", "missing_left", "leaf", "first", "cuts", "cuts_from", "base")


@dataclass(frozen=True)
class CompactTrees:
    """Trees whose nodes stand one after the other; the right child follows the left one.

    Attributes:
        column: column that a node compares; of leaves, any.
        cut: number of the threshold among the column's cuts.
        left: distance to the left child; 0 for a leaf.
        missing_left: whether a missing value goes left.
        leaf: value of a leaf.
        first: first node of each tree.
        cuts: thresholds of all columns, ``cuts_from`` the first of each column.
        base: value that is added to the sum of leaves.
    """

    column: np.ndarray
    cut: np.ndarray
    left: np.ndarray
    missing_left: np.ndarray
    leaf: np.ndarray
    first: np.ndarray
    cuts: np.ndarray
    cuts_from: np.ndarray
    base: np.ndarray

    @classmethod
    def from_booster(cls, booster: Any) -> Self:
        """Return the trees of an XGBoost model with one output."""
        learner = json.loads(bytes(booster.save_raw("json")))["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        columns = int(learner["learner_model_param"]["num_feature"])
        base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        ordered = [_ordered_nodes(tree) for tree in trees]
        nodes = {name: np.concatenate([tree[name] for tree in ordered]) for name in ordered[0]}

        # The thresholds of each column, once.
        is_split = nodes["left"] > 0
        cuts_of = [
            np.unique(nodes["value"][is_split & (nodes["column"] == column)])
            for column in range(columns)
        ]
        if max(len(cuts) for cuts in cuts_of) > MAX_CUTS:
            raise ValueError(f"a column has more than {MAX_CUTS} thresholds")
        cut = np.zeros(len(is_split), dtype=np.uint8)
        for column, cuts in enumerate(cuts_of):
            of_column = is_split & (nodes["column"] == column)
            cut[of_column] = np.searchsorted(cuts, nodes["value"][of_column])

        sizes = [len(tree["left"]) for tree in ordered]
        return cls(
            column=nodes["column"].astype(np.uint8),
            cut=cut,
            left=nodes["left"].astype(np.uint16),
            missing_left=nodes["missing_left"].astype(bool),
            leaf=np.where(is_split, 0.0, nodes["value"]).astype(np.float16),
            first=np.cumsum([0, *sizes[:-1]]).astype(np.int32),
            cuts=np.concatenate(cuts_of).astype(np.float32),
            cuts_from=np.cumsum([0, *(len(cuts) for cuts in cuts_of[:-1])]).astype(np.int32),
            base=np.array(base),
        )

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the prediction of every row of ``X`` (rows, columns)."""
        values = X.astype(np.float32)
        row = np.arange(len(values))[:, None]
        node = np.broadcast_to(self.first, (len(values), len(self.first))).astype(np.int64)
        while True:
            step = self.left[node].astype(np.int64)
            if not step.any():
                break
            # Leaves compare something too, but stay where they are.
            column = self.column[node]
            value = values[row, column]
            threshold = self.cuts[self.cuts_from[column] + self.cut[node]]
            to_left = np.where(np.isnan(value), self.missing_left[node], value < threshold)
            node += np.where(to_left | (step == 0), step, step + 1)
        total = self.leaf[node].astype(np.float64).sum(axis=1)
        return np.asarray(self.base + total)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to save."""
        return {name: getattr(self, name) for name in ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the trees of saved arrays."""
        return cls(**{name: arrays[name] for name in ARRAYS})


def _ordered_nodes(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the nodes of a tree in an order where the right child follows the left one."""
    left_child = tree["left_children"]
    right_child = tree["right_children"]
    order = [0]
    place = {0: 0}
    for node in order:  # grows while it is read
        if left_child[node] >= 0:
            for child in (left_child[node], right_child[node]):
                place[child] = len(order)
                order.append(child)
    steps = [place[left_child[n]] - place[n] if left_child[n] >= 0 else 0 for n in order]
    return {
        "column": np.array([tree["split_indices"][n] for n in order]),
        "value": np.array([tree["split_conditions"][n] for n in order], dtype=np.float32),
        "left": np.array(steps),
        "missing_left": np.array([bool(tree["default_left"][n]) for n in order]),
    }
