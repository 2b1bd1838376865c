"""One row through boosted trees, compiled.

A step of a walk waits for memory, so that many trees are walked side by side, and a node is as
small as can be. Importing this module needs Numba (the extra ``cpu``).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.models.trees.compiling import compiled

Array = np.ndarray
TOGETHER = 24
"""Trees walked side by side."""
BITS = 15
"""Of a place, and of the way from a node to its left child."""


@dataclass(frozen=True)
class CompiledWalk:
    """What the compiled walk reads.

    Attributes:
        nodes: of every node, how far its left child is and, in the lower bits, its ``place``.
        bounds: of every node, what it compares with; what it adds, if it is a leaf: these look at
            minus infinite and so lead to themselves.
        roots: the first node of each tree.
        first: the first tree of each model; last, the number of trees.
        depth: of each model's deepest tree.
    """

    nodes: Array
    bounds: Array
    roots: Array
    first: Array
    depth: Array

    @classmethod
    def of(
        cls,
        left: Array,
        place: Array,
        bound: Array,
        leaf: Array,
        roots: Array,
        first: Array,
        depth: Array,
    ) -> Self | None:
        """Return what is read of a walk's arrays; None if trees or rows are too large."""
        way = left - np.arange(len(left))
        if max(way.max(), place.max()) >> BITS:
            return None
        pairs = np.empty((len(way), 2), dtype=np.int32)
        pairs[:, 0] = way << BITS | place
        pairs[:, 1] = np.where(way == 0, leaf, bound).view(np.int32)
        nodes = pairs.ravel()
        return cls(nodes, nodes.view(np.float32), roots, first, depth)

    def totals(self, row: Array) -> Array:
        """Return the sum of each model's leaves, added up in XGBoost's order."""
        total = np.empty(len(self.depth), dtype=np.float32)
        _walk(row, self.nodes, self.bounds, self.roots, self.first, self.depth, total)
        return total


@compiled
def _walk(
    row: Array, nodes: Array, bounds: Array, roots: Array, first: Array, depth: Array, total: Array
) -> None:
    n = len(row)
    seen = np.empty(2 * n + 1, dtype=np.float32)
    for i in range(n):
        missing = np.isnan(row[i])
        seen[i] = np.inf if missing else row[i]
        seen[n + i] = -np.inf if missing else row[i]
    seen[2 * n] = -np.inf
    at = np.empty(TOGETHER, dtype=np.int64)
    for model in range(len(depth)):
        added = np.float32(0.0)
        end = first[model + 1]
        for start in range(first[model], end, TOGETHER):
            for i in range(TOGETHER):
                at[i] = 2 * roots[min(start + i, end - 1)]
            for _ in range(depth[model]):
                for i in range(TOGETHER):
                    node = nodes[at[i]]
                    right = seen[node & (1 << BITS) - 1] >= bounds[at[i] + 1]
                    at[i] += 2 * ((node >> BITS) + right)
            for i in range(min(TOGETHER, end - start)):
                added += bounds[at[i] + 1]
        total[model] = added
