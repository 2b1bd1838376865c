"""Measurements of other problems of a kernel, as training rows of a search."""

from collections.abc import Sequence

import numpy as np

from foretune.measurement import Measurement
from foretune.objective import Scalarization
from foretune.problem import Problem
from foretune.search.encoding import nearest_first
from foretune.search.searcher import Prior
from foretune.space import SearchSpace

MAX_ROWS = 300
"""Maximum number of rows, nearest problems first."""
FAILURE_LOG = 1.0
"""A failure counts as the slowest success, or as this much above the median's logarithm."""


class Experience:
    """Measurements of other problems.

    Each problem's values are relative to its own median, because only differences between
    configurations matter for a choice.

    Attributes:
        measurements: the nearest to ``problem`` first.
        log_mean: their prior; 0 without one.
        residuals: log losses less the prior, relative to the problem's median.
        problems: the number of each row's problem, from 1.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        objective: Scalarization,
        problem: Problem,
        space: SearchSpace,
        prior: Prior | None,
    ) -> None:
        known = [m for m in measurements if not np.isnan(objective.value_of(m))]
        self.measurements = nearest_first(known, problem)[:MAX_ROWS]
        numbers = {p: i for i, p in enumerate(dict.fromkeys(m.problem for m in self.measurements))}
        self.problems = np.array([numbers[m.problem] + 1.0 for m in self.measurements])
        self.log_mean = self._prior_mean(space, prior)
        values = np.array([objective.value_of(m) for m in self.measurements])
        self.residuals = np.zeros(len(values))
        for number in np.unique(self.problems):
            here = self.problems == number
            residuals = log_losses(values[here]) - self.log_mean[here]
            self.residuals[here] = residuals - np.median(residuals)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.measurements)

    def _prior_mean(self, space: SearchSpace, prior: Prior | None) -> np.ndarray:
        if prior is None or not self.measurements:
            return np.zeros(len(self.measurements))
        if prior.log_mean_of is not None:
            return prior.log_mean_of(self.measurements)
        usual = float(np.median(prior.log_mean))
        indices = [space.index_or_none(m.config) for m in self.measurements]
        return np.array([usual if i is None else prior.log_mean[i] for i in indices])


def log_losses(values: np.ndarray) -> np.ndarray:
    """Return the log values of one problem, failures (not finite) as slow; zeros if nothing ran."""
    ran = np.isfinite(values)
    if not ran.any():
        return np.zeros(len(values))
    logs = np.log(values, where=ran, out=np.zeros(len(values)))
    logs[~ran] = max(logs[ran].max(), np.median(logs[ran]) + FAILURE_LOG)
    return logs
