"""How far are sizes beyond all that were measured together?

Each size of a problem may be inside its range while the problem is larger than any that was
measured, such as the largest M with the largest N. A problem is beyond the frontier if no measured
problem has at least its sizes in every column. The distance is in octaves: how much smaller, in the
column that lacks most, the measured problem is that lacks least.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

MAX_POINTS = 400
"""Maximum measured problems of the frontier (those with the largest products of sizes)."""
CHUNK_ROWS = 4096
"""Rows whose distances are computed at once."""


@dataclass(frozen=True)
class Frontier:
    """The measured problems that no other one exceeds in all sizes, in octaves (points, sizes)."""

    points: np.ndarray

    @classmethod
    def fit(cls, octaves: np.ndarray) -> Self:
        """Return the frontier of measured sizes (rows, sizes)."""
        points = np.unique(np.nan_to_num(octaves), axis=0)
        largest_first = points[np.argsort(-points.sum(axis=1), kind="stable")]
        kept: list[np.ndarray] = []
        for point in largest_first:
            # A point is exceeded only by points with a larger sum, which came before.
            if not kept or not (np.array(kept) >= point).all(axis=1).any():
                kept.append(point)
            if len(kept) == MAX_POINTS:
                break
        return cls(np.array(kept))

    def octaves_beyond(self, octaves: np.ndarray) -> np.ndarray:
        """Return the distance of each row of sizes (rows, sizes); 0 if it is not beyond."""
        sizes = np.nan_to_num(octaves)
        distances = np.empty(len(sizes))
        for start in range(0, len(sizes), CHUNK_ROWS):
            chunk = sizes[start : start + CHUNK_ROWS]
            missing = (chunk[:, None, :] - self.points[None, :, :]).max(axis=2)
            distances[start : start + CHUNK_ROWS] = missing.min(axis=1)
        return np.maximum(distances, 0.0)

    def to_json(self) -> list[list[float]]:
        """Return plain values for `from_json`."""
        return [[float(value) for value in point] for point in self.points]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[float]]) -> Self:
        """Return the frontier that `to_json` wrote."""
        return cls(np.array(data, dtype=float))
