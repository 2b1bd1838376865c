"""Search of a short list without a prior, such as the 12 to 64 configurations of an author."""

import math
from functools import cached_property
from typing import Any

import numpy as np

from foretune.models.covariance import Hyperprior, MaternCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.search.encoding import ConfigurationEncoder
from foretune.search.experience import log_losses
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import Searcher
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MATERN_SMOOTHNESS,
    OFFSET,
    one_blas_thread,
)
from foretune.space import Configuration

VARIANCE = Hyperprior(0.25, 1.0, 1e-3, 1e2)
"""Variance of log times over a list."""
LENGTH = Hyperprior(0.5, 0.5, np.exp(-4.0), np.exp(4.0))
NOISE = Hyperprior(1e-3, 1.0, 1e-5, 1.0)
"""Variance of what is not smooth: candidates have it, too, so that rivals are not ruled out."""
FIT_FROM = 6
"""Number of measurements from which length scales are fitted; before, their hyperpriors hold."""
MIN_MEASUREMENTS = 3
"""Minimum number of measurements before the search may stop."""


class ListedSearcher(Searcher):
    """Expected improvement from the first measurement on, without an initial design.

    The corners of a list of two or three parameters are seldom fast, so it starts at the default,
    or in the middle.

    Args:
        args, named: as for `Searcher`.
        default: measured first; None is the configuration nearest to all others.
    """

    def __init__(self, *args: Any, default: Configuration | None = None, **named: Any) -> None:
        self._default = default
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        encoder = ConfigurationEncoder(self.space)
        sizes = [i for i, name in enumerate(encoder.names) if not name.startswith("alignment.")]
        self._points = encoder.encode(np.arange(len(self.space)))[:, sizes]
        smooth = MaternCovariance(slice(0, len(sizes)), VARIANCE, LENGTH, MATERN_SMOOTHNESS)
        self._process = GaussianProcess.from_prior([smooth, OFFSET], NOISE)

    @cached_property
    def search_posterior(self) -> SearchPosterior:
        """The posterior of all configurations."""
        at, values = np.array([*self.observed], dtype=int), np.array([*self.observed.values()])
        logs = log_losses(values)
        middle = float(np.median(logs)) if len(logs) else 0.0
        objective = np.full(len(self.space), math.nan)
        objective[at] = values
        with one_blas_thread():
            process = self._process
            if len(at) >= FIT_FROM:
                process = process.fitted(self._points[at], logs - middle, FIT_STEPS)
            posterior = Posterior(
                process, self._points[at], logs - middle, self._points,
                prior=middle, observation_noise=True,
            )  # fmt: skip
        return SearchPosterior(
            np.arange(len(self.space)), posterior, np.ones(len(self.space)), objective
        )

    def expected_regret(self) -> float:
        """Return the expected regret of `best`, relative; infinite before a few measurements."""
        return self.search_posterior.expected_regret if self._is_informed else math.inf

    def expected_improvement(self) -> float:
        """Return the expected gain on `best` of one more measurement, relative."""
        if not self._is_informed:
            return math.inf
        return self.search_posterior.expected_improvement(self._free([]))

    @property
    def _is_informed(self) -> bool:
        ran = any(map(math.isfinite, self.observed.values()))
        return ran and len(self.observed) >= min(MIN_MEASUREMENTS, len(self.space))

    def _propose(self, n: int) -> list[int]:
        chosen = list[int]()
        while len(chosen) < n:
            free = self._free(chosen)
            score = self.search_posterior.log_acquisition if self.observed else self._centrality
            chosen.append(int(np.argmax(np.where(free, score, -np.inf))))
        return chosen

    @cached_property
    def _centrality(self) -> np.ndarray:
        """How near each configuration is to all others; most of all, the default."""
        squares = (self._points**2).sum(axis=1)
        apart = len(squares) * squares - 2 * self._points @ self._points.sum(axis=0)
        if self._default is not None:
            apart[self.space.index(self._default)] = -np.inf
        return -apart

    def _free(self, chosen: list[int]) -> np.ndarray:
        """Return a mask of the unproposed configurations."""
        free = np.ones(len(self.space), dtype=bool)
        free[[*self.proposed, *chosen]] = False
        return free

    def _learn(self, new_values: dict[int, float]) -> None:
        self.__dict__.pop("search_posterior", None)
