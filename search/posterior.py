"""Posterior of all candidates: incumbent, expected regret, acquisition."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from foretune.models.gaussian_process import Posterior
from foretune.search.blas_threads import one_blas_thread

SHORTLIST = 256  # maximum number of candidates whose joint posterior is sampled
DRAWS = 256
REPEAT_LOG_SPREAD = 0.01  # log standard deviation of repeated measurements
TINY = 1e-300  # lower bound of what a logarithm is taken of
JITTER = 1e-10  # share of the mean variance added to each candidate's, for numerical stability
MAX_LOG_ERROR = 3.0
"""Where the tails of a Student law end: its exponential has no mean. A factor of 20."""


def log_expected_improvement(posterior: Posterior, best: float) -> np.ndarray:
    """Return the log expected improvement on ``best`` of every candidate.

    The improvement is that of Jones, Schonlau and Welch (Journal of Global Optimization 13, 1998).
    In logarithms, because the plain formula underflows (Ament et al., NeurIPS 2023).
    """
    spread = posterior.spread
    z = (best - posterior.mean) / spread

    # The plain formula: density(z) + z Φ(z).
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    log_plain = np.log(np.maximum(density + z * ndtr(z), TINY))

    # For z of -1 and below: the log density, and what is left when it is factored out.
    low = np.minimum(z, -1)
    log_density = -0.5 * low * low - 0.5 * np.log(2 * np.pi)
    remainder = 1 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    log_factored = log_density + np.log(np.maximum(remainder, TINY))
    return np.log(spread) + np.where(z > -1, log_plain, log_factored)


def log_probability_below(posterior: Posterior, limit: float) -> np.ndarray:
    """Return the log probability that each candidate is below ``limit``."""
    return log_ndtr((limit - posterior.mean) / posterior.spread)


def expected_regrets(
    posterior: Posterior, measured: np.ndarray, freedom: float = math.inf
) -> np.ndarray:
    """Return the expected regret of every candidate: how much slower than the best, relative.

    It is the mean over draws from the joint log posterior. Failures and candidates off the
    shortlist get infinity. ``measured`` are objectives; infinite for failures, NaN if not measured.
    With a finite ``freedom``, the errors follow a Student law: all errors of a draw are multiplied
    by the same random factor.
    """
    expected = np.full(len(measured), np.inf)
    not_failed = np.flatnonzero(~np.isposinf(measured))
    if len(not_failed) == 0:
        return expected

    # The shortlist: candidates that may be the fastest, by an optimistic estimate.
    mean = posterior.mean
    optimistic = mean - 2 * posterior.spread
    by_promise = np.argsort(optimistic[not_failed], kind="stable")
    shortlist = not_failed[by_promise[:SHORTLIST]]
    unmeasured = shortlist[np.isnan(measured[shortlist])]

    # Draws of the unmeasured ones, which are correlated.
    rng = np.random.default_rng(0)
    covariance = posterior.covariance(unmeasured)
    covariance[np.diag_indices(len(unmeasured))] += JITTER * (1.0 + np.trace(covariance))
    factor = np.linalg.cholesky(covariance)
    errors = rng.standard_normal((DRAWS, len(unmeasured))) @ factor.T
    if math.isfinite(freedom):
        variance_factor = freedom / np.random.default_rng(0).chisquare(freedom, (DRAWS, 1))
        errors = np.clip(errors * np.sqrt(variance_factor), -MAX_LOG_ERROR, MAX_LOG_ERROR)
    drawn = mean[unmeasured] + errors

    # Draws of the measured ones: another measurement would differ a little.
    succeeded = np.flatnonzero(np.isfinite(measured))
    noise = rng.standard_normal((DRAWS, len(succeeded)))
    repeated = np.log(measured[succeeded]) + REPEAT_LOG_SPREAD * noise

    logs = np.hstack([repeated, drawn])
    best_of_draw = logs.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        regrets = np.expm1(logs - best_of_draw)
    expected[np.concatenate([succeeded, unmeasured])] = regrets.mean(axis=0)
    return expected


@dataclass(frozen=True)
class SearchPosterior:
    """The posterior of the log objectives of a search's candidates, up to a constant.

    ``indices`` are the candidates' in their space, ``p_valid`` their probabilities to run,
    ``objective`` the measured objectives; infinite for failures, NaN if not measured. The errors
    follow a Student law of ``freedom`` degrees of freedom; infinite for a normal law.
    """

    indices: np.ndarray
    posterior: Posterior
    p_valid: np.ndarray
    objective: np.ndarray
    freedom: float = math.inf

    @cached_property
    def log_mean(self) -> np.ndarray:
        """Expected log objective of every candidate, up to a constant."""
        return self.posterior.mean

    @cached_property
    def expected_regrets(self) -> np.ndarray:
        """Expected regret of every candidate, relative.

        Infinite for failures and for candidates that are certainly far off.
        """
        with one_blas_thread():
            return expected_regrets(self.posterior, self.objective, self.freedom)

    @cached_property
    def best(self) -> int:
        """The candidate to choose now: the best measured one, else the most promising."""
        if np.isfinite(self.objective).any():
            return int(np.nanargmin(self.objective))
        promise = np.where(np.isnan(self.objective), self.log_expected_success, -np.inf)
        return int(np.argmax(promise))

    @property
    def expected_regret(self) -> float:
        """Expected regret of the choice, relative."""
        return float(self.expected_regrets[self.best])

    @cached_property
    def log_acquisition(self) -> np.ndarray:
        """Log acquisition of every candidate."""
        return (
            self.log_expected_success if self._incumbent is None else self._log_expected_improvement
        )

    def expected_improvement(self, free: np.ndarray) -> float:
        """Return the largest expected improvement among the ``free`` candidates, relative.

        Infinite before the first success.
        """
        if self._incumbent is None:
            return math.inf
        return float(np.exp(self._log_expected_improvement[free].max(initial=-np.inf)))

    @property
    def _incumbent(self) -> float | None:
        finite = np.isfinite(self.objective)
        return float(np.log(self.objective[finite]).min()) if finite.any() else None

    @property
    def log_expected_success(self) -> np.ndarray:
        """Negative expected log objective plus log probability to run."""
        return np.log(self.p_valid) - self.log_mean

    @cached_property
    def _log_expected_improvement(self) -> np.ndarray:
        assert self._incumbent is not None
        improvement = log_expected_improvement(self.posterior, self._incumbent)
        return improvement + np.log(self.p_valid)
