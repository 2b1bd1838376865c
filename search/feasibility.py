"""Feasibility: how likely configurations are to run, learned from those that did and did not.

Failures have edges: limits of memory, of registers, of what a tool accepts. Along one parameter
trees find them; where several add up to a limit, a Gaussian process on the signs does (that is
least-squares classification: Rasmussen and Williams, 2006, 6.5). Their mean counts; before they
have seen much, the share that ran does, or what a prior says.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.special import ndtr

from foretune.errors import MissingExtra
from foretune.models.process.posterior import Posterior
from foretune.models.process.process import Process
from foretune.models.trees.boosting import BoostingModel
from foretune.search.surrogate_process import (
    REFIT,
    STEPS,
    most_telling,
    surrogate_process,
)

TREES: dict[str, Any] = {"rounds": 40, "depth": 5, "rate": 0.3, "least_weight": 1.0}
PATIENCE = 3.0
"""Measurements after which what was learned counts as much as what was believed before."""
SHARPEST = 0.3
"""Spread of a sign at least: the process is no model of steps."""
LEAST = 0.01
"""Nothing is taken for impossible: nobody knows what was never tried."""


class Feasibility:
    """How likely each candidate of a space is to run.

    Args:
        place: gives where configurations stand, by their numbers (rows, axes).
        believed: how likely every configuration is to run, by a prior; None where there is none.
        seed: of the trees.
    """

    def __init__(
        self,
        place: Callable[[np.ndarray], np.ndarray],
        believed: np.ndarray | None,
        seed: int,
    ) -> None:
        self._place, self._believed, self._seed = place, believed, seed
        self._rng = np.random.default_rng(seed)
        self._process: Process | None = None
        self._fitted = 0

    def of(self, numbers: np.ndarray, told: Mapping[int, float]) -> np.ndarray:
        """Return how likely configurations are to run.

        Args:
            numbers: of the configurations.
            told: what was measured of others, by number; infinite for failures.
        """
        ran = np.isfinite(list(told.values()))
        if self._believed is not None:
            share = self._believed[numbers]
        else:
            share = np.full(len(numbers), ran.mean() if len(ran) else 1.0)
        if ran.all():
            return share
        if not ran.any():
            return np.maximum(share, LEAST)
        some = most_telling(np.where(ran, 0.0, 1.0), self._rng)
        X, Y = self._place(np.array(list(told))[some]), ran[some].astype(float)
        points = self._place(numbers)
        seen = self._by_process(X, Y, points)
        with suppress(MissingExtra):  # without XGBoost, the process alone
            seen = 0.5 * (seen + self._by_trees(X, Y, points))
        weight = len(ran) / (len(ran) + PATIENCE)
        return np.maximum(weight * seen + (1.0 - weight) * share, LEAST)

    def _by_trees(self, X: np.ndarray, ran: np.ndarray, points: np.ndarray) -> np.ndarray:
        trees = BoostingModel(**TREES, seed=self._seed).fit(X, ran)
        return np.clip(trees.predict(points), 0.0, 1.0)

    def _by_process(self, X: np.ndarray, ran: np.ndarray, points: np.ndarray) -> np.ndarray:
        middle = ran.mean()
        if self._process is None or len(ran) >= REFIT * self._fitted:
            start = self._process or surrogate_process(X.shape[1])
            self._process = start.fitted(X, 2.0 * (ran - middle), STEPS)
            self._fitted = len(ran)
        posterior = Posterior(self._process, X, 2.0 * (ran - middle), points)
        signed = posterior.mean + 2.0 * middle - 1.0
        return np.asarray(ndtr(signed / np.maximum(posterior.spread, SHARPEST)))
