"""Measurements of other problems of the same kernel, as evidence for a search."""

from collections.abc import Sequence

import numpy as np

from foretune.measurement import Measurement
from foretune.objective import Scalarization
from foretune.problem import Problem
from foretune.search.encoding import nearest_first
from foretune.search.searcher import Prior
from foretune.search.surrogate_model import FailureRule
from foretune.space import SearchSpace

MAX_ROWS = 300  # maximum number of measurements, nearest problems first
FAILURE_LOG = 1.0
"""A failure counts as the slowest success, but at least this much above the median log."""
FAILURES_ARE_SLOW = FailureRule(margin=FAILURE_LOG, shift_losses=True)


class Experience:
    """Measurements of other problems, the nearest to ``problem`` first.

    Only differences between configurations matter for a choice, so each problem's losses are
    relative to its own median.

    Attributes:
        measurements: those that have a value; all other arrays have one row for each.
        problems: number of each row's problem, from 1.
        log_mean: prior mean of the log objective; zeros without a prior.
        errors: log objectives less prior mean and their problem's median.
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

        distinct = dict.fromkeys(m.problem for m in self.measurements)
        numbers = {problem: number for number, problem in enumerate(distinct, start=1)}
        self.problems = np.array([float(numbers[m.problem]) for m in self.measurements])

        self.log_mean = np.zeros(len(self.measurements))
        if prior is not None:
            self.log_mean = prior.log_means(self.measurements, space)

        losses = log_values([objective.value_of(m) for m in self.measurements])
        self.errors = np.zeros(len(losses))
        for number in numbers.values():
            rows = self.problems == number
            with_failures = FAILURES_ARE_SLOW.as_losses(losses[rows], unit=1.0)
            errors = with_failures - self.log_mean[rows]
            self.errors[rows] = errors - np.median(errors)

    def __len__(self) -> int:
        return len(self.measurements)


def log_values(values: Sequence[float]) -> np.ndarray:
    """Return the logarithms of objectives; infinity stays infinite."""
    return np.log(np.array(values, dtype=float))
