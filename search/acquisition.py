"""Acquisition functions: which candidate to measure and when to stop, by a posterior."""

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from foretune.models.gaussian_process import Posterior

SHORTLIST = 256
"""Maximum number of candidates whose joint posterior is sampled."""
DRAWS = 256
REPEAT_LOG_SPREAD = 0.01
"""Log standard deviation of repeated measurements."""
JITTER = 1e-10
"""Share of the mean variance added to each candidate's, for numerical stability."""


def log_expected_improvement(posterior: Posterior, best: float) -> np.ndarray:
    """Return the log expected improvement on ``best`` of every candidate.

    The improvement is that of Jones, Schonlau and Welch (Journal of Global Optimization 13, 1998).
    Computed in logarithms, because the plain formula underflows to zero (Ament et al., NeurIPS
    2023).
    """
    spread = posterior.spread
    z = (best - posterior.mean) / spread
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    near = np.log(np.maximum(density + z * ndtr(z), 1e-300))
    low = np.minimum(z, -1)
    rest = 1 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    far = -0.5 * low * low - 0.5 * np.log(2 * np.pi) + np.log(np.maximum(rest, 1e-300))
    improvement: np.ndarray = np.log(spread) + np.where(z > -1, near, far)
    return improvement


def log_probability_below(posterior: Posterior, limit: float) -> np.ndarray:
    """Return the log probability that each candidate is below ``limit``."""
    probability: np.ndarray = log_ndtr((limit - posterior.mean) / posterior.spread)
    return probability


def expected_regrets(posterior: Posterior, measured: np.ndarray) -> np.ndarray:
    """Return the expected regret of every candidate: how much slower than the best, relative.

    It is the mean over draws from the joint log posterior. Failures and candidates off the
    shortlist get infinity.

    Args:
        posterior: posterior of the candidates.
        measured: measured objectives; infinite for failures, NaN if not measured.
    """
    expected = np.full(len(measured), np.inf)
    possible = np.flatnonzero(~np.isposinf(measured))
    if len(possible) == 0:
        return expected
    mean = posterior.mean
    optimistic = mean - 2 * posterior.spread
    known = np.flatnonzero(np.isfinite(measured))
    short = possible[np.argsort(optimistic[possible], kind="stable")[:SHORTLIST]]
    unmeasured = short[np.isnan(measured[short])]
    rng = np.random.default_rng(0)
    covariance = posterior.covariance(unmeasured)
    covariance[np.diag_indices(len(unmeasured))] += JITTER * (1.0 + np.trace(covariance))
    drawn = rng.standard_normal((DRAWS, len(unmeasured))) @ np.linalg.cholesky(covariance).T
    repeated = np.log(measured[known]) + REPEAT_LOG_SPREAD * rng.standard_normal(
        (DRAWS, len(known))
    )
    logs = np.hstack([repeated, mean[unmeasured] + drawn])
    with np.errstate(over="ignore"):
        regrets = np.mean(np.expm1(logs - logs.min(axis=1, keepdims=True)), axis=0)
    expected[np.concatenate([known, unmeasured])] = regrets
    return expected
