"""The calibrated roofline: overhead, and the time by each limit with fitted efficiencies; power.

The plain roofline is a bound: every kernel also takes a fixed launch time, which dominates short
ones, and long kernels reach only a share of the peak. One efficiency per limit corrects this, and p
controls how far limits overlap::

    t = overhead + ((a * compute)**p + (b * memory)**p) ** (1/p)

Launches known in more detail have more terms (whole waves, caches, latency). Text-valued
configurations (format, backend, implementation) with enough runs have separate parameters; all
others share one set, as do devices, so that the law holds on new ones. The remaining factor is
close to one and smooth along every size, so a model interpolates and extrapolates it far better.

An awake board draws a share of its power limit. Each active unit adds to it, until the limit
throttles the clock. With the parts as shares of the time::

    busy = Σ weight_i * part_i / t,   t = overhead + (Σ part_i**p) ** (1/p)
    power / limit = idle + (1 - idle) * busy / (1 + busy**4) ** (1/4)

A short kernel is mostly overhead, so its board is nearly idle. On a faster device the same kernel
is shorter and draws a smaller share. Boards differ in their limits far more than in this law.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Self

import numpy as np

from foretune.features.arrays import Groups

MIN_ROWS = 30
"""Minimum rows for a group to have its own parameters."""
MIN_DISTINCT_WORK = 12
"""Minimum number of distinct amounts of work needed to separate the terms."""
MAX_ROWS = 3000
"""Maximum rows of a fit."""
MAX_OVERLAP = 12.0
"""Maximum of p - 1; the larger limit alone counts there."""
_OVERHEAD = np.log(0.006)
_EFFICIENCY = 0.2
_OVERLAP = 0.8
"""Start of the fit of time: log of 6 µs, of 1 / 80 %, and of p = 1.6."""
_IDLE = -1.4
_POWER_OVERHEAD = np.log(0.02)
_WEIGHT = -0.3
"""Start of the fit of power: 20 % idle; log of 20 µs; weight 0.75."""
_KNEE = 4.0
"""Sharpness of the throttling."""
_REGULARIZATION = 0.005
"""Strength of the pull towards the start, for parameters that the runs do not determine."""
_ROWS_OF_PROBLEM = 6.0
"""With few problems: the maximum weight of a problem, in rows."""
_PROBLEM_REGULARIZATION = 0.8
"""With few problems: the strength of the pull towards the start."""
_SOFT_ERROR = 0.1
"""Errors above this log count less than their square."""


@dataclass(frozen=True)
class Law:
    """A parametric law of a quantity from the times of a launch's parts.

    ``start``: number of parts -> start of the fit; ``log_value``: parameters (scalars, or one per
    row) and logs of the parts' times in ms (rows, parts) -> log of the quantity.
    """

    start: Callable[[int], np.ndarray]
    log_value: Callable[[np.ndarray, np.ndarray], np.ndarray]


def parts_of_time(
    parameters: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the log of the time, and of its terms (overhead and parts), in ms.

    Parameters are log overhead_ms, one efficiency per part, and the root of p - 1, each a scalar
    or one per row; ``limits`` are the logs of each part's time in ms (rows, parts).
    """
    overhead, *efficiencies, overlap = parameters
    p = 1.0 + np.minimum(np.square(overlap), MAX_OVERLAP)
    terms = [efficiency + limits[..., i] for i, efficiency in enumerate(efficiencies)]

    # The p-norm of the parts, relative to the largest one: so that no power overflows.
    largest = reduce(np.maximum, terms)
    relative_sum = sum(np.exp(p * (term - largest)) for term in terms)
    work = largest + np.log(relative_sum) / p
    return np.logaddexp(overhead, work), [overhead, *terms]


def _log_ms(parameters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    return parts_of_time(parameters, limits)[0]


def _start(n_parts: int) -> np.ndarray:
    """Return parameters as in `parts_of_time`."""
    return np.array([_OVERHEAD, *[_EFFICIENCY] * n_parts, _OVERLAP])


def _power_start(n_parts: int) -> np.ndarray:
    """Return log odds of idle, parameters as in `parts_of_time`, and one log weight per part."""
    efficiencies = [_EFFICIENCY] * n_parts
    weights = [_WEIGHT] * n_parts
    return np.array([_IDLE, _POWER_OVERHEAD, *efficiencies, _OVERLAP, *weights])


def _log_share(parameters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the log of the share of the limit, given parameters as in `_power_start`."""
    n_parts = limits.shape[-1]
    odds_of_idle = parameters[0]
    parameters_of_time = parameters[1 : n_parts + 3]
    weights = parameters[n_parts + 3 :]

    log_ms, (_, *parts) = parts_of_time(parameters_of_time, limits)
    busy = sum(np.exp(weight + part - log_ms) for weight, part in zip(weights, parts, strict=True))
    throttled = busy / (1.0 + busy**_KNEE) ** (1.0 / _KNEE)
    idle = 1.0 / (1.0 + np.exp(-odds_of_idle))
    return np.log(idle + (1.0 - idle) * throttled)


TIME = Law(_start, _log_ms)
POWER = Law(_power_start, _log_share)


@dataclass
class CalibratedRoofline:
    """Predicts log(time), or another law's quantity, from logs of the parts' times in ms.

    The law has ``common`` parameters over all rows, and others ``by_group``.
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

        ``limits`` are logs of each part's time in ms (rows, parts), ``log_value`` that of the
        measured quantity (rows). ``groups`` have separate parameters; with few problems,
        ``problems`` has the problem of each row.
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
        """Return the log of each row's calibrated time in ms, or of the law's quantity."""
        return self.law.log_value(self._parameters(groups), limits)

    def log_terms(self, limits: np.ndarray, groups: Groups) -> np.ndarray:
        """Return the logs of each part's calibrated time in ms (rows, parts), for `TIME`."""
        _, (_, *parts) = parts_of_time(self._parameters(groups), limits)
        return np.stack(parts, axis=-1)

    def _parameters(self, groups: Groups) -> np.ndarray:
        by_group = [self.by_group.get(name, self.common) for name in groups.names]
        return np.array(by_group).reshape(len(by_group), len(self.common))[groups.codes].T

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        by_group = {name: values.tolist() for name, values in self.by_group.items()}
        return {"common": self.common.tolist(), "own": by_group}

    @classmethod
    def from_json(cls, data: dict[str, Any], law: Law) -> Self:
        """Return the roofline that `to_json` wrote."""
        by_group = {name: np.array(values) for name, values in data["own"].items()}
        return cls(law, np.array(data["common"]), by_group)


def _fit(
    law: Law,
    limits: np.ndarray,
    log_value: np.ndarray,
    start: np.ndarray,
    problems: np.ndarray | None,
) -> np.ndarray:
    """Return the parameters with the least robust squares, pulled towards ``start``."""
    from scipy.optimize import least_squares

    weights = np.ones(len(limits))
    regularization = _REGULARIZATION * np.sqrt(len(limits))
    if problems is not None:
        rows_of_problem = np.bincount(problems)[problems]
        weights = np.sqrt(np.minimum(_ROWS_OF_PROBLEM / rows_of_problem, 1.0))
        regularization = _PROBLEM_REGULARIZATION

    def residuals(parameters: np.ndarray) -> np.ndarray:
        errors = weights * (law.log_value(parameters, limits) - log_value)
        return np.r_[errors, regularization * (parameters - start)]

    return least_squares(residuals, start, loss="soft_l1", f_scale=_SOFT_ERROR).x
