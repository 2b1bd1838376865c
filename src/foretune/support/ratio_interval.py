"""Student's interval of a ratio that was measured several times.

Ratios are averaged by their logarithms, so that ``a / b`` and ``b / a`` are judged alike.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class RatioInterval:
    """A ratio (geometric mean) and the ends of its interval."""

    ratio: float
    low: float
    high: float


def ratio_interval(mean: float, *, variance: float, n: int, error: float) -> RatioInterval:
    """Return the interval of a ratio.

    Args:
        mean: mean of the ratio's logarithm over ``n`` measurements, at least two.
        variance: of the logarithm over measurements (of one, not of the mean).
        n: number of measurements.
        error: probability that the true ratio is beyond one end, for each end.
    """
    half_width = stdtrit(n - 1, 1.0 - error) * np.sqrt(variance / n)
    with np.errstate(over="ignore"):  # an interval from two measurements may have no end
        low, high = np.exp([mean - half_width, mean + half_width])
    return RatioInterval(ratio=float(np.exp(mean)), low=float(low), high=float(high))
