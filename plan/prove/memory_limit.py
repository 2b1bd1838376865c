"""What trials say about the memory: what nobody planned, what fitted, what did not."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

import numpy as np

IMPOSSIBLE = 0.02
"""Probability to run of a setting that needs more memory than one that ran out of it."""


def unplanned_gib(trials: Iterable[tuple[float, float]]) -> float:
    """Return the GiB that servers took beyond what was planned; 0 if that is unknown.

    ``trials`` are the planned and the measured memory of each. What is missing in a plan of a CPU
    is the engine itself: its processes, libraries and compiled code. These do not depend on the
    setting, so later settings take the median of the differences.
    """
    differences = [measured - planned for planned, measured in trials if isfinite(measured)]
    return median(differences) if differences else 0.0


@dataclass(frozen=True)
class MemoryLimit:
    """Bounds of the predicted memory that fits, GiB."""

    fitted: float = 0.0
    too_large: float = inf

    @classmethod
    def of_trials(cls, trials: Iterable[tuple[float, bool]]) -> "MemoryLimit":
        """Return the bounds of trials: predicted memory, and whether it ran out of it."""
        known = list(trials)
        return cls(
            fitted=max((gib for gib, failed in known if not failed), default=0.0),
            too_large=min((gib for gib, failed in known if failed), default=inf),
        )

    def probability(self, gib: np.ndarray) -> np.ndarray:
        """Return the probability that settings with this predicted memory run.

        1 up to the largest memory that fitted, falling to `IMPOSSIBLE` at the smallest that did
        not. If a smaller memory failed than one that fitted, the prediction is no guide between
        them: a half.
        """
        if self.too_large == inf:
            return np.ones_like(gib)
        if self.too_large <= self.fitted:
            above = np.where(gib > self.fitted, IMPOSSIBLE, 0.5)
            return np.where(gib < self.too_large, 1.0, above)
        share = (gib - self.fitted) / (self.too_large - self.fitted)
        return np.clip(1.0 - share, IMPOSSIBLE, 1.0)
