"""How likely a deployment meets a limit, or beats another one, when it is measured.

Errors of predicted logarithms follow Student's t: most are small, some are very large.
"""

import numpy as np
import pandas as pd

MIN_PROBABILITY = 0.85
"""Minimum probability of meeting the latency limits. The fastest deployment that is predicted to
meet a limit is likely predicted too well; with this, one choice in twenty misses a limit."""
DEGREES_OF_FREEDOM = 3.0
"""Degrees of freedom of the errors' Student's t.

Half of the errors are within 0.31 of half a 90 % interval. This distribution gives 0.33, a normal
one 0.41.
"""
T_QUANTILE_95 = 2.353363
"""Half a 90 % interval, in scales of that distribution."""
MIN_SPREAD = 1e-9
"""Smallest scale of an error; smaller ones are rounding errors."""
MIN_VARIANCE = 1e-12
"""Smallest variance of a difference of two errors."""


def probability_within(latencies: pd.DataFrame, target: str, limit_ms: float) -> np.ndarray:
    """Return the probability that deployments meet a limit when measured.

    ``latencies`` has ``target`` and ``<target>_high``, the end of its 90 % interval.
    """
    value = latencies[target].to_numpy(dtype=float)
    if np.isinf(limit_ms):
        return np.ones(len(value))

    high = latencies[f"{target}_high"].to_numpy(dtype=float)
    spread = np.log(high / value) / T_QUANTILE_95
    return probability_below(np.log(limit_ms / value) / np.maximum(spread, MIN_SPREAD))


def probability_below(values: np.ndarray) -> np.ndarray:
    """Return the probability that an error is below ``values``, in scales of its distribution."""
    from scipy.special import stdtr

    return stdtr(DEGREES_OF_FREEDOM, values)


def pairwise_better(value: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the probability that each value (rows) exceeds each other (columns) when measured.

    ``covariance`` (rows, rows) is that of the values' errors. The diagonal of the result is 0.5.
    """
    marginal = np.diag(covariance)
    difference_variance = marginal[:, None] + marginal[None, :] - 2.0 * covariance
    spread = np.sqrt(np.maximum(difference_variance, MIN_VARIANCE))
    return probability_below((value[:, None] - value[None, :]) / spread)
