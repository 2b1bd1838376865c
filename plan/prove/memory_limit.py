"""What trials say about the memory: the largest that fitted, the smallest that did not."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

IMPOSSIBLE = 0.02
"""Probability to run of a setting that needs more memory than one that ran out of it."""


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
