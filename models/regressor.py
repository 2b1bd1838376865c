"""The seam between a predictor and what it learns with: numbers in, one number out."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import numpy as np

from foretune.device import available_cores

ROWS_PER_THREAD = 4096
"""Fewer rows are done faster by one thread, and not a hundred times slower on a busy machine."""


def threads_for(rows: int) -> int:
    """Return how many threads pay for ``rows``."""
    return min(available_cores(), max(1, rows // ROWS_PER_THREAD))


class Regressor(ABC):
    """Learns ``y`` from the rows of ``X``; registered by name under ``models``.

    Attributes:
        suffix: of the file it is saved to.
    """

    suffix: str

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @abstractmethod
    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Learn from ``X`` (rows, features; float32, NaN where unknown) and ``y`` (rows)."""

    @abstractmethod
    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one float64 per row."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write to a file that runs no code when it is loaded."""

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
