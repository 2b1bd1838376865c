"""Probability that a configuration runs, learned from successes and failures.

Failures have edges, such as limits of memory or registers. Trees find edges along one parameter. A
Gaussian process on the signs finds limits on sums of parameters (least-squares classification:
Rasmussen and Williams, 2006, 6.5). The prediction is their mean, blended with the prior or the
success rate while there is little data.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.special import ndtr

from foretune.errors import MissingExtra
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.models.trees.boosting import BoostingModel
from foretune.search.surrogate_process import (
    FIT_STEPS,
    REFIT_FACTOR,
    subsample_measurements,
    surrogate_process,
)

TREES: dict[str, Any] = {"rounds": 40, "depth": 5, "rate": 0.3, "min_child_weight": 1.0}
PRIOR_WEIGHT = 3.0
"""Number of measurements at which data and prior weigh the same."""
MIN_SIGN_SPREAD = 0.3
"""Lower bound of a sign's spread, because the process does not model steps."""
MIN_P_VALID = 0.01
"""Lower bound of the probability to run."""


class Feasibility:
    """Estimates the probability that each configuration runs.

    Args:
        encode: returns configurations as points, by their indices (rows, axes).
        prior_p_valid: prior probability of every configuration; None without a prior.
        seed: seed of the trees.
    """

    def __init__(
        self,
        encode: Callable[[np.ndarray], np.ndarray],
        prior_p_valid: np.ndarray | None,
        seed: int,
    ) -> None:
        self._encode, self._prior_p_valid, self._seed = encode, prior_p_valid, seed
        self._rng = np.random.default_rng(seed)
        self._process: GaussianProcess | None = None
        self._fitted_count = 0

    def predict(self, indices: np.ndarray, observed: Mapping[int, float]) -> np.ndarray:
        """Return the probability that configurations run.

        Args:
            indices: the configurations.
            observed: measured objectives by configuration index; infinite for failures.
        """
        ran = np.isfinite(list(observed.values()))
        if self._prior_p_valid is not None:
            share = self._prior_p_valid[indices]
        else:
            share = np.full(len(indices), ran.mean() if len(ran) else 1.0)
        if ran.all():
            return share
        if not ran.any():
            return np.maximum(share, MIN_P_VALID)
        some = subsample_measurements(np.where(ran, 0.0, 1.0), self._rng)
        X, Y = self._encode(np.array(list(observed))[some]), ran[some].astype(float)
        points = self._encode(indices)
        seen = self._by_process(X, Y, points)
        with suppress(MissingExtra):  # without XGBoost, the process alone
            seen = 0.5 * (seen + self._by_trees(X, Y, points))
        weight = len(ran) / (len(ran) + PRIOR_WEIGHT)
        return np.maximum(weight * seen + (1.0 - weight) * share, MIN_P_VALID)

    def _by_trees(self, X: np.ndarray, ran: np.ndarray, points: np.ndarray) -> np.ndarray:
        trees = BoostingModel(**TREES, seed=self._seed).fit(X, ran)
        return np.clip(trees.predict(points), 0.0, 1.0)

    def _by_process(self, X: np.ndarray, ran: np.ndarray, points: np.ndarray) -> np.ndarray:
        middle = ran.mean()
        if self._process is None or len(ran) >= REFIT_FACTOR * self._fitted_count:
            start = self._process or surrogate_process(X.shape[1])
            self._process = start.fitted(X, 2.0 * (ran - middle), FIT_STEPS)
            self._fitted_count = len(ran)
        posterior = Posterior(self._process, X, 2.0 * (ran - middle), points)
        signed = posterior.mean + 2.0 * middle - 1.0
        return np.asarray(ndtr(signed / np.maximum(posterior.spread, MIN_SIGN_SPREAD)))
