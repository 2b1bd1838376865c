"""What is known of candidates, and what follows: the best, its regret, what to measure next."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foretune.models.gaussian_process import Posterior
from foretune.search.acquisition import expected_regrets, log_expected_improvement
from foretune.search.surrogate_process import one_blas_thread


@dataclass(frozen=True)
class SearchPosterior:
    """What is known of every candidate.

    Attributes:
        indices: of the candidates in their space.
        posterior: of the logarithms of their objectives, up to a constant.
        p_valid: probability that each runs.
        objective: what was measured; infinite for failures, NaN where nothing was.
    """

    indices: np.ndarray
    posterior: Posterior
    p_valid: np.ndarray
    objective: np.ndarray

    @cached_property
    def log_mean(self) -> np.ndarray:
        """Natural logarithm of every candidate's expected objective, up to a constant."""
        return self.posterior.mean

    @cached_property
    def expected_regrets(self) -> np.ndarray:
        """How much slower than the best each candidate is expected to be, relative.

        Infinite for what failed, and where that is certain to be much.
        """
        with one_blas_thread():
            return expected_regrets(self.posterior, self.objective)

    @cached_property
    def best(self) -> int:
        """The candidate to choose now: the best measured one, else the most promising."""
        if np.isfinite(self.objective).any():
            return int(np.nanargmin(self.objective))
        return int(
            np.argmax(np.where(np.isnan(self.objective), self.log_expected_success, -np.inf))
        )

    @property
    def expected_regret(self) -> float:
        """How much slower than the optimum the choice is expected to be, relative."""
        return float(self.expected_regrets[self.best])

    @cached_property
    def log_acquisition(self) -> np.ndarray:
        """How much the measurement of each candidate promises, as a logarithm."""
        return (
            self.log_expected_success if self._incumbent is None else self._log_expected_improvement
        )

    def expected_improvement(self, free: np.ndarray) -> float:
        """Return what measuring one of the ``free`` candidates is expected to improve, relative.

        Infinite before anything ran.
        """
        if self._incumbent is None:
            return math.inf
        return float(np.exp(self._log_expected_improvement[free].max(initial=-np.inf)))

    @property
    def _incumbent(self) -> float | None:
        """The logarithm of the best that was measured."""
        finite = np.isfinite(self.objective)
        return float(np.log(self.objective[finite]).min()) if finite.any() else None

    @property
    def log_expected_success(self) -> np.ndarray:
        """How good each candidate is expected to be, as a logarithm: it has to run, too."""
        return np.log(self.p_valid) - self.log_mean

    @cached_property
    def _log_expected_improvement(self) -> np.ndarray:
        """The logarithm of every candidate's expected improvement."""
        assert self._incumbent is not None
        improvement = log_expected_improvement(self.posterior, self._incumbent)
        return improvement + np.log(self.p_valid)
