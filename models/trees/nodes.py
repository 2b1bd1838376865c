"""Boosted trees as plain arrays, read from XGBoost's own format."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from foretune.models.trees import ubjson

OBJECTIVES = ("reg:squarederror", "binary:logistic", "rank:ndcg")
PARTS = {
    "left_children": np.int64, "right_children": np.int64, "split_indices": np.int64,
    "split_conditions": np.float32, "default_left": np.int64,
}  # fmt: skip
"""What a node consists of in XGBoost's model schema -> the type it is kept in."""


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees, one after the other; a leaf is its own left child.

    A row stands twice beside itself: where a value is missing, the first copy says infinite (goes
    right), the second minus infinite (goes left), and a node looks at the copy it needs.

    Attributes:
        left: the child for values below ``bound``; the other one is the next.
        place: where in the doubled row the value stands.
        bound: of the values that go left; infinite in a leaf.
        leaf: what a leaf adds.
        roots: the first node of each tree.
        depth: of the deepest.
        features: columns of a row.
        base: what the trees' sum starts from.
        logistic: whether the result is a probability.
    """

    left: np.ndarray
    place: np.ndarray
    bound: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    depth: int
    features: int
    base: float
    logistic: bool

    @classmethod
    def of(cls, booster: Any) -> Self | None:
        """Return the trees of an XGBoost booster; None if they are of a kind not known here.

        Known are trees that split at numbers, of one output, for squared errors, a probability or
        an order, whose nodes lie behind their parents.
        """
        learner = ubjson.read(bytes(booster.save_raw("ubj")))["learner"]
        objective, gradient_booster = learner["objective"]["name"], learner["gradient_booster"]
        if objective not in OBJECTIVES or gradient_booster["name"] != "gbtree":
            return None
        trees = gradient_booster["model"]["trees"]
        if not trees or len(trees) != booster.num_boosted_rounds():
            return None
        sizes = np.array([len(tree["left_children"]) for tree in trees])
        roots = np.cumsum(sizes) - sizes
        left, right, column, bound, default = (
            np.concatenate([tree[part] for tree in trees]).astype(kind)
            for part, kind in PARTS.items()
        )
        inner, columns = left >= 0, int(learner["learner_model_param"]["num_feature"])
        first = np.repeat(roots, sizes)
        ends, own = np.repeat(sizes, sizes)[inner], (np.arange(len(left)) - first)[inner]
        behind = (own < left[inner]) & (right[inner] == left[inner] + 1) & (right[inner] < ends)
        known = (column[inner] >= 0) & (column[inner] < columns)
        if not (behind & known).all() or any(tree["split_type"].any() for tree in trees):
            return None
        left = np.where(inner, left + first, np.arange(len(left)))
        base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        logistic = objective == "binary:logistic"
        return cls(
            left=left,
            place=np.where(inner, column + columns * default, 2 * columns),
            bound=np.where(inner, bound, np.inf).astype(np.float32),
            leaf=np.where(inner, 0.0, bound).astype(np.float32),
            roots=roots,
            depth=_depth(left, roots),
            features=columns,
            base=float(np.log(base / (1.0 - base))) if logistic else base,
            logistic=logistic,
        )

    def places(self, features: int) -> np.ndarray:
        """Return ``place`` in a row of so many features, these trees' own before the others."""
        copy, column = np.divmod(self.place, self.features)
        place: np.ndarray = copy * features + column
        return place


def _depth(left: np.ndarray, roots: np.ndarray) -> int:
    depth, level = 0, roots
    while len(level := level[left[level] != level]):
        level = np.concatenate([left[level], left[level] + 1])
        depth += 1
    return depth
