"""The calibrated roofline: overhead and the time by each limit, with fitted efficiencies.

The plain roofline is a bound: short kernels stay a fixed launch time above it, long ones reach only
a share of the peak. A number per limit puts that right, and another says how far limits overlap::

    t = (overhead**p + (a * compute)**p + (b * memory)**p) ** (1/p)

with more terms where a launch is known by more parts (whole waves, caches, latency). All is fitted
per text-valued configuration (format, backend, implementation) where there are enough runs, and
over everything else together; over all devices, so that it holds on others. What is left for a
model to learn is a factor around one, smooth along every size: that is why it interpolates, and
extrapolates, far better.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Self

import numpy as np

from foretune.features.arrays import Groups

MIN_ROWS = 30
MIN_DISTINCT_WORK = 12
"""Fewer different amounts of work do not say which part of the time is which."""
MAX_ROWS = 3000
_OVERHEAD, _EFFICIENCY, _POWER = np.log(0.006), 0.2, 0.5
"""Where a fit starts: log of 6 µs, of 1 / 80 %, of p = 1.6."""
_REGULARIZATION = 0.005
"""How strongly a fit is held to where it started: enough to decide what the runs do not."""
_ROWS_OF_PROBLEM, _PROBLEM_REGULARIZATION = 6.0, 0.8
"""Where problems are few, each counts for so many rows, and the tether is so strong."""


@dataclass(frozen=True)
class Law:
    """What the parts' times say of a quantity, with a few parameters.

    Attributes:
        start: number of parts -> where a fit starts, and is held to.
        log_value: parameters (numbers, or one per row) and logs of the parts' times in milliseconds
            (rows, parts) -> log of the quantity.
    """

    start: Callable[[int], np.ndarray]
    log_value: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _start(parts: int) -> np.ndarray:
    return np.array([_OVERHEAD, *[_EFFICIENCY] * parts, _POWER])


def parts_of_time(
    parameters: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the log of the time, and of its terms: the overhead and each part, in milliseconds.

    Args:
        parameters: log overhead_ms, one per part, log p; numbers or one per row.
        limits: log of each part's time, milliseconds (rows, parts).
    """
    overhead, *efficiencies, log_p = parameters
    p = np.exp(np.minimum(np.maximum(log_p, -1.5), 2.5))
    terms = [overhead, *(a + limits[..., i] for i, a in enumerate(efficiencies))]
    largest = reduce(np.maximum, terms)
    total = sum(np.exp(p * (term - largest)) for term in terms)
    return largest + np.log(total) / p, terms


def _log_ms(parameters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    return parts_of_time(parameters, limits)[0]


TIME = Law(_start, _log_ms)


@dataclass
class CalibratedRoofline:
    """log(time), or what another law is of, from the logs of the parts' times in milliseconds.

    Attributes:
        law: of what.
        common: the parameters over all rows, of time: log overhead_ms, one per part, log p.
        by_group: the same per group of rows, by the group's name.
    """

    law: Law = TIME
    common: np.ndarray = field(default_factory=lambda: TIME.start(2))
    by_group: dict[str, np.ndarray] = field(default_factory=dict)

    def fit(
        self,
        limits: np.ndarray,
        log_value: np.ndarray,
        groups: Groups,
        problems: np.ndarray | None = None,
    ) -> Self:
        """Fit to runs.

        Args:
            limits: log of each part's time, milliseconds (rows, parts).
            log_value: log of measured milliseconds, or of what the law is of (rows).
            groups: what is fitted apart.
            problems: where these are few, which each row is of.
        """
        rng = np.random.default_rng(0)
        start = self.law.start(limits.shape[-1])
        work = limits.round(6) if problems is None else problems
        all_rows = np.arange(len(limits))

        def fitted(rows: np.ndarray, start: np.ndarray) -> np.ndarray:
            rows = rows[rng.choice(len(rows), min(MAX_ROWS, len(rows)), replace=False)]
            problem_of_row = None if problems is None else problems[rows]
            return _fit(self.law, limits[rows], log_value[rows], start, problem_of_row)

        self.common = fitted(all_rows, start)
        self.by_group = {}
        for number, name in enumerate(groups.names):
            rows = np.flatnonzero(groups.codes == number)
            if len(rows) >= MIN_ROWS and len(np.unique(work[rows], axis=0)) >= MIN_DISTINCT_WORK:
                self.by_group[name] = fitted(rows, self.common)
        return self

    def log_value(self, limits: np.ndarray, groups: Groups) -> np.ndarray:
        """Return the log of the calibrated time of each row in milliseconds, or of what it is."""
        by_group = [self.by_group.get(name, self.common) for name in groups.names]
        parameters = np.array(by_group).reshape(len(by_group), len(self.common))
        return self.law.log_value(parameters[groups.codes].T, limits)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        by_group = {name: values.tolist() for name, values in self.by_group.items()}
        return {"common": self.common.tolist(), "own": by_group}

    @classmethod
    def from_json(cls, data: dict[str, Any], law: Law) -> Self:
        """Return what `to_json` wrote of a law."""
        by_group = {name: np.array(values) for name, values in data["own"].items()}
        return cls(law, np.array(data["common"]), by_group)


def _fit(
    law: Law,
    limits: np.ndarray,
    log_value: np.ndarray,
    start: np.ndarray,
    problems: np.ndarray | None,
) -> np.ndarray:
    from scipy.optimize import least_squares

    weights, regularization = np.ones(len(limits)), _REGULARIZATION * np.sqrt(len(limits))
    if problems is not None:
        rows = np.bincount(problems)[problems]
        weights, regularization = (
            np.sqrt(np.minimum(_ROWS_OF_PROBLEM / rows, 1.0)),
            _PROBLEM_REGULARIZATION,
        )

    def residuals(parameters: np.ndarray) -> np.ndarray:
        errors = weights * (law.log_value(parameters, limits) - log_value)
        return np.r_[errors, regularization * (parameters - start)]

    fitted: np.ndarray = least_squares(residuals, start, loss="soft_l1", f_scale=0.1).x
    return fitted
