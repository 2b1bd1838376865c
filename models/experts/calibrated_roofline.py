"""The calibrated roofline: overhead, compute and memory time with fitted efficiencies.

The plain roofline is a bound: short kernels stay a fixed launch time above it, long ones reach only
a share of the peak. Three numbers put that right, and a fourth says how far the limits overlap::

    t = (overhead**p + (a * compute)**p + (b * memory)**p) ** (1/p)

fitted per text-valued configuration (format, backend, implementation) where there are enough runs,
and over everything else together; over all devices, so that it holds on others. What is left for a
model to learn is a factor around one, smooth along every size: that is why it interpolates, and
extrapolates, far better.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from foretune.features.arrays import Groups

LEAST_ROWS = 30
LEAST_WORKS = 12
"""Fewer different amounts of work do not say which part of the time is which."""
MOST_ROWS = 3000
_START = np.array([np.log(0.004), 0.2, 0.2, 0.7])
"""4 µs of overhead, 80 % efficiency, p = 2: log overhead_ms, log a, log b, log p."""
_TETHER = 0.005
"""How strongly a fit is held to where it started: enough to decide what the runs do not."""


@dataclass
class CalibratedRoofline:
    """log(time) from log(compute_ms) and log(memory_ms).

    Attributes:
        common: the four parameters over all rows (log overhead_ms, log a, log b, log p).
        own: the same per group of rows, by the group's name.
    """

    common: np.ndarray = field(default_factory=lambda: _START)
    own: dict[str, np.ndarray] = field(default_factory=dict)

    def fit(self, limits: np.ndarray, log_time: np.ndarray, groups: Groups) -> Self:
        """Fit to runs.

        Args:
            limits: log compute time and log memory time, milliseconds (rows, 2).
            log_time: log of measured milliseconds (rows).
            groups: what is fitted apart.
        """
        rng = np.random.default_rng(0)
        self.common = _fit(limits, log_time, _START, rng)
        self.own = {}
        for number, name in enumerate(groups.names):
            rows = np.flatnonzero(groups.codes == number)
            if len(rows) >= LEAST_ROWS and _works(limits[rows]) >= LEAST_WORKS:
                self.own[name] = _fit(limits[rows], log_time[rows], self.common, rng)
        return self

    def log_ms(self, limits: np.ndarray, groups: Groups) -> np.ndarray:
        """Return the log of the calibrated time of each row in milliseconds."""
        own = [self.own.get(name, self.common) for name in groups.names]
        parameters = np.array(own).reshape(len(own), len(self.common))
        return _log_ms(parameters[groups.codes].T, limits)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        own = {name: values.tolist() for name, values in self.own.items()}
        return {"common": self.common.tolist(), "own": own}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        own = {name: np.array(values) for name, values in data["own"].items()}
        return cls(np.array(data["common"]), own)


def _log_ms(parameters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    overhead, a, b, log_p = parameters
    p = np.exp(np.minimum(np.maximum(log_p, -1.5), 2.5))
    compute, memory = a + limits[..., 0], b + limits[..., 1]
    largest = np.maximum(np.maximum(overhead, compute), memory)
    total = sum(np.exp(p * (term - largest)) for term in (overhead, compute, memory))
    result: np.ndarray = largest + np.log(total) / p
    return result


def _fit(
    limits: np.ndarray, log_time: np.ndarray, start: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    from scipy.optimize import least_squares

    few = rng.choice(len(log_time), min(MOST_ROWS, len(log_time)), replace=False)
    limits, log_time = limits[few], log_time[few]
    tether = _TETHER * np.sqrt(len(few))

    def residuals(parameters: np.ndarray) -> np.ndarray:
        return np.r_[_log_ms(parameters, limits) - log_time, tether * (parameters - start)]

    fitted: np.ndarray = least_squares(residuals, start, loss="soft_l1", f_scale=0.1).x
    return fitted


def _works(limits: np.ndarray) -> int:
    return len(np.unique(limits.round(6), axis=0))
