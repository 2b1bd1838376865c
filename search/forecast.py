"""What is known of candidates, and what follows: the best, its regret, what to measure next."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from foretune.search.gaussian_process import log_expected_improvement

SHORTLIST = 256
"""Candidates whose joint distribution is drawn from: those that may be best."""
DRAWS = 256
REPEATS_TO = 0.01
"""Standard deviation of the log of a measurement among repeats: what was measured is known."""
JITTER = 1e-10


class Joint(Protocol):
    """The logarithms of all candidates, jointly normal."""

    @property
    def mean(self) -> np.ndarray:
        """Of every candidate."""

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of every candidate."""

    def covariance(self, numbers: np.ndarray) -> np.ndarray:
        """Return the covariances of the numbered candidates."""


@dataclass(frozen=True)
class Forecast:
    """What is known of every candidate.

    Attributes:
        numbers: of the candidates in their space.
        posterior: of the logarithms of their objectives, up to a constant.
        p_valid: probability that each runs.
        objective: what was measured; infinite for failures, NaN where nothing was.
    """

    numbers: np.ndarray
    posterior: Joint
    p_valid: np.ndarray
    objective: np.ndarray

    @cached_property
    def log_mean(self) -> np.ndarray:
        """Natural logarithm of every candidate's expected objective, up to a constant."""
        return self.posterior.mean

    @cached_property
    def loss(self) -> np.ndarray:
        """How much slower than the best each candidate is expected to be, relative.

        Infinite for what failed and what is not among the `SHORTLIST` that may be best.
        """
        loss = np.full(len(self.objective), np.inf)
        may = np.flatnonzero(~np.isposinf(self.objective))
        if len(may) == 0:
            return loss
        hoped = self.log_mean - 2 * self.posterior.spread
        measured = np.flatnonzero(np.isfinite(self.objective))
        short = may[np.argsort(hoped[may], kind="stable")[:SHORTLIST]]
        free = short[np.isnan(self.objective[short])]
        rng = np.random.default_rng(0)
        covariance = self.posterior.covariance(free)
        covariance[np.diag_indices(len(free))] += JITTER
        drawn = rng.standard_normal((DRAWS, len(free))) @ np.linalg.cholesky(covariance).T
        repeated = REPEATS_TO * rng.standard_normal((DRAWS, len(measured)))
        known = np.log(self.objective[measured]) + repeated
        logs = np.hstack([known, self.log_mean[free] + drawn])
        with np.errstate(over="ignore"):
            slower = np.expm1(logs - logs.min(axis=1, keepdims=True)).mean(axis=0)
        loss[np.concatenate([measured, free])] = slower
        return loss

    @cached_property
    def best(self) -> int:
        """The candidate to choose now: the best measured one, else the most promising."""
        if np.isfinite(self.objective).any():
            return int(np.nanargmin(self.objective))
        return int(np.argmax(np.where(np.isnan(self.objective), self._hope, -np.inf)))

    @property
    def regret(self) -> float:
        """How much slower than the optimum the choice is expected to be, relative."""
        return float(self.loss[self.best])

    @cached_property
    def promise(self) -> np.ndarray:
        """How much the measurement of each candidate promises, as a logarithm."""
        return self._hope if self._incumbent is None else self._gains

    def gain(self, free: np.ndarray) -> float:
        """Return what measuring one of the ``free`` candidates is expected to improve, relative.

        Infinite before anything ran.
        """
        if self._incumbent is None:
            return math.inf
        return float(np.exp(self._gains[free].max(initial=-np.inf)))

    @property
    def _incumbent(self) -> float | None:
        """The logarithm of the best that was measured."""
        finite = np.isfinite(self.objective)
        return float(np.log(self.objective[finite]).min()) if finite.any() else None

    @property
    def _hope(self) -> np.ndarray:
        return np.log(self.p_valid) - self.log_mean

    @cached_property
    def _gains(self) -> np.ndarray:
        """The logarithm of every candidate's expected improvement."""
        below = self._incumbent - self.log_mean
        return log_expected_improvement(below, self.posterior.spread) + np.log(self.p_valid)
