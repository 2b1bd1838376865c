"""Posterior of all candidates: incumbent, expected regret, acquisition."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foretune.models.gaussian_process import Posterior
from foretune.search.acquisition import expected_regrets, log_expected_improvement
from foretune.search.surrogate_process import one_blas_thread


@dataclass(frozen=True)
class SearchPosterior:
    """The posterior of a search.

    Attributes:
        indices: the candidates' indices in their space.
        posterior: posterior of the log objectives, up to a constant.
        p_valid: probability that each candidate runs.
        objective: measured objectives; infinite for failures, NaN if not measured.
    """

    indices: np.ndarray
    posterior: Posterior
    p_valid: np.ndarray
    objective: np.ndarray

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
        """Log objective of the best measured candidate."""
        finite = np.isfinite(self.objective)
        return float(np.log(self.objective[finite]).min()) if finite.any() else None

    @property
    def log_expected_success(self) -> np.ndarray:
        """Negative expected log objective plus log probability to run."""
        return np.log(self.p_valid) - self.log_mean

    @cached_property
    def _log_expected_improvement(self) -> np.ndarray:
        """Log expected improvement of every candidate."""
        assert self._incumbent is not None
        improvement = log_expected_improvement(self.posterior, self._incumbent)
        return improvement + np.log(self.p_valid)
