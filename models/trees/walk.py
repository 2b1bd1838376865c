"""A row through the trees of several models at once, before XGBoost has read its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.models.trees.nodes import MAX_DEPTH, Trees, require_known_columns, require_trees


@dataclass(eq=False)
class TreeArrays:
    """The nodes of all trees of some models, one after the other; a leaf is its own left child.

    What a model's sum starts from is its first tree, a single leaf. A row stands twice beside
    itself: where a value is missing, the first copy says infinite (goes right), the second minus
    infinite (goes left), and a node looks at the copy it needs.

    Attributes:
        left: the child for values below ``bound``; the other one is the next.
        slot: where in the doubled row the value stands.
        bound: of the values that go left; infinite in a leaf.
        leaf: what a leaf adds.
        roots: the first node of each tree.
        first: the first tree of each model; last, the number of trees.
        depth: of each model's deepest tree.
        features: columns of a row: as many as the model with the most has learned from.
        logistic: whether the results are probabilities.
    """

    left: np.ndarray
    slot: np.ndarray
    bound: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    first: np.ndarray
    depth: np.ndarray
    features: int
    logistic: bool

    @classmethod
    def from_trees(cls, models: Sequence[Trees]) -> Self:
        """Return the walk through all trees of models with the same objective."""
        features = max(trees.features for trees in models)
        starts = np.cumsum([0, *(len(trees.left) + 1 for trees in models)])
        pairs = list(zip(starts.tolist(), models, strict=False))
        return cls(
            left=np.concatenate([np.r_[s, t.left + (s + 1)] for s, t in pairs]),
            slot=np.concatenate([np.r_[2 * features, t.slots(features)] for t in models]),
            bound=np.concatenate([np.r_[np.float32(np.inf), t.bound] for t in models]),
            leaf=np.concatenate([np.r_[np.float32(t.base), t.leaf] for t in models]),
            roots=np.concatenate([np.r_[s, t.roots + (s + 1)] for s, t in pairs]),
            first=np.cumsum([0, *(len(t.roots) + 1 for t in models)]),
            depth=np.array([t.depth for t in models]),
            features=features,
            logistic=models[0].logistic,
        )

    def check(self) -> None:
        """Do nothing if every walk ends in a leaf, and looks at nothing that is not there.

        Raises:
            ValueError: it does not.
        """
        n, indices = len(self.left), np.arange(len(self.left))
        inner, integer_arrays = (
            self.left != indices,
            (self.left, self.slot, self.roots, self.first, self.depth),
        )
        if any(a.ndim != 1 or a.dtype.kind != "i" for a in integer_arrays) or not (
            isinstance(self.features, int) and 0 < self.features < 1 << 20
        ):
            raise ValueError("nodes are no numbers")
        if not n == len(self.slot) == len(self.bound) == len(self.leaf):
            raise ValueError("nodes lack a part")
        if any(a.ndim != 1 or a.dtype != np.float32 for a in (self.bound, self.leaf)):
            raise ValueError("bounds or leaves are no numbers")
        ends = np.append(self.roots[1:], n)
        require_trees(
            self.left - np.repeat(self.roots, ends - self.roots),
            self.left - np.repeat(self.roots, ends - self.roots) + 1,
            inner,
            ends - self.roots,
        )
        require_known_columns(self.slot, 2 * self.features + 1)
        parts = len(self.first) == len(self.depth) + 1 and (np.diff(self.first) > 0).all()
        if self.roots[0] or not parts or (self.first[0], self.first[-1]) != (0, len(self.roots)):
            raise ValueError("trees are of no model")
        at_sentinel = self.slot[~inner] == 2 * self.features
        if (
            not (np.isposinf(self.bound[~inner]) & at_sentinel).all()
            or not 0 <= self.depth.max() <= MAX_DEPTH
        ):
            raise ValueError("a leaf goes on")

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return what each model says of each row of a float32 matrix, in XGBoost's precision."""
        total = np.array([self._row_sums(row) for row in np.ascontiguousarray(X)])
        result = 1.0 / (1.0 + np.exp(-total)) if self.logistic else total
        return result.astype(np.float64)

    def sums(self, X: np.ndarray) -> np.ndarray:
        """Return each model's sum for many rows at once, shape (rows, models), nothing missing."""
        inputs = np.hstack([X, X, np.full((len(X), 1), -np.inf, dtype=np.float32)])
        node, row = self.roots[None, :], np.arange(len(X))[:, None]
        for _ in range(self.depth.max()):
            node = self.left[node] + (inputs[row, self.slot[node]] >= self.bound[node])
        return np.add.reduceat(self.leaf[node], self.first[:-1], axis=1).astype(np.float64)

    def _row_sums(self, row: np.ndarray) -> np.ndarray:
        """Return the sum of each model's leaves, added up in XGBoost's order."""
        n = self.features
        inputs = np.empty(2 * n + 1, dtype=np.float32)
        inputs[:n] = inputs[n:-1] = row
        inputs[-1] = -np.inf
        if (missing := np.isnan(row)).any():
            inputs[:n][missing], inputs[n:-1][missing] = np.inf, -np.inf
        node = self.roots
        for _ in range(self.depth.max()):
            node = self.left[node] + (inputs[self.slot[node]] >= self.bound[node])
        terms = self.leaf[node]
        parts = zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True)
        return np.array([np.add.accumulate(terms[start:end])[-1] for start, end in parts])
