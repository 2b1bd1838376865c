"""Surrogate search: a Gaussian process on what the prior gets wrong.

The prior (a predictor trained on other problems) gives every configuration a mean. What is measured
on this problem corrects it: a Gaussian process over the configuration's coordinates learns the log
ratio of measured to predicted, so that one surprise moves the neighbours of a configuration and
leaves the rest as the prior had it. Without a prior the mean is the same everywhere and the process
does all the work. The next configuration is the one of largest expected improvement (Jones,
Schonlau and Welch, Journal of Global Optimization 13, 1998) times its probability to run.
"""

import warnings

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import norm

from foretune.search.searcher import Searcher
from foretune.space import SearchSpace

POOL = 4000
"""Configurations the process looks at: the best by the prior, and `EXPLORE` random ones."""
EXPLORE = 500
FIRST = 4
"""Without a prior, random measurements before the process has anything to say."""
NOISE = 0.02
"""Standard deviation of the log of a measured time."""
LENGTHS = (0.15, 0.3, 0.6, 1.2, 2.4)
"""Length scales tried, in units of a parameter's range; the likeliest is taken."""
NEARBY = 0.7
"""Distance over which one success or failure says something about another configuration."""
UNKNOWN_SPREAD = 0.7
"""Standard deviation of log objective over a space of which nothing is known: a factor of two."""


class SurrogateSearcher(Searcher):
    """Expected improvement under prior plus Gaussian-process correction."""

    def _prepare(self) -> None:
        self._pool = self._make_pool()
        self._coordinates = _Coordinates(self.space)

    def _propose(self, n: int) -> list[int]:
        chosen: list[int] = []
        # Within a batch, believe the prediction of what was chosen: its neighbours gain nothing.
        imagined: dict[int, float] = {}
        while len(chosen) < n:
            free = self._free(chosen)
            if len(free) == 0 or (self.prior is None and len(self._finite()) < FIRST):
                fresh = [i for i in self.random_numbers(n) if i not in chosen]
                chosen += fresh[: n - len(chosen)]
                continue
            mean, spread = self._posterior(free, imagined)
            best = int(free[np.argmax(self._improvement(free, mean, spread))])
            imagined[best] = float(mean[free == best][0])
            chosen.append(best)
        return chosen

    def _improvement(self, numbers: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
        finite = self._finite()
        if not finite:  # nothing to improve on: the most promising one
            gain = np.exp(-mean)
        else:
            z = (min(finite.values()) - mean) / spread
            gain = spread * (z * norm.cdf(z) + norm.pdf(z))
        return gain * self._p_valid(numbers)

    def _posterior(
        self, numbers: np.ndarray, imagined: dict[int, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the numbered configurations' log objective."""
        known = {**self._finite(), **imagined}
        prior_mean, spread = self._prior_mean(numbers), self._spread()
        if not known:
            return prior_mean, np.full(len(numbers), spread)
        at = np.array(list(known))
        residual = np.array(list(known.values())) - self._prior_mean(at)
        correction, deviation = _gaussian_process(
            self._coordinates.of(at), residual, self._coordinates.of(numbers), spread
        )
        return prior_mean + correction, deviation

    def _prior_mean(self, numbers: np.ndarray) -> np.ndarray:
        if self.prior is not None:
            return self.prior.log_mean[numbers]
        return np.full(len(numbers), np.mean(list(self._finite().values())))

    def _spread(self) -> float:
        return UNKNOWN_SPREAD if self.prior is None else max(self.prior.log_spread, 2 * NOISE)

    def _finite(self) -> dict[int, float]:
        return {i: float(np.log(v)) for i, v in self.told.items() if np.isfinite(v)}

    def _p_valid(self, numbers: np.ndarray) -> np.ndarray:
        """Return the prior's probability to run, corrected by what ran and failed nearby."""
        prior = np.ones(len(numbers)) if self.prior is None else self.prior.p_valid[numbers]
        if all(np.isfinite(v) for v in self.told.values()):
            return prior
        known = self._coordinates.of(np.array(list(self.told)))
        distance = cdist(self._coordinates.of(numbers), known, "sqeuclidean")
        weight = np.exp(-distance / NEARBY**2)
        ran = np.isfinite(list(self.told.values()))
        return (prior + weight @ ran) / (1 + weight.sum(axis=1))

    def _free(self, chosen: list[int]) -> np.ndarray:
        return self._pool[~np.isin(self._pool, [*self.proposed, *chosen])]

    def _make_pool(self) -> np.ndarray:
        size = len(self.space)
        if size <= POOL:
            return np.arange(size)
        explore = self.rng.choice(size, size=POOL if self.prior is None else EXPLORE, replace=False)
        if self.prior is None:
            return explore
        promising = self.prior.log_mean - np.log(np.maximum(self.prior.p_valid, 1e-3))
        return np.union1d(explore, np.argpartition(promising, POOL - EXPLORE)[: POOL - EXPLORE])


class _Coordinates:
    """Configurations as points: ordered parameters on a unit line, others an axis a value."""

    def __init__(self, space: SearchSpace) -> None:
        self._codes = space.codes
        self._axes: list[np.ndarray] = []
        for values in space.parameters.values():
            if any(isinstance(v, (str, bool)) for v in values):
                self._axes.append(
                    np.eye(len(values)) * np.sqrt(0.5)
                )  # one step apart is distance 1
            else:
                self._axes.append(
                    np.linspace(0, 1, len(values))[:, None] if len(values) > 1 else np.zeros((1, 1))
                )

    def of(self, numbers: np.ndarray) -> np.ndarray:
        codes = self._codes[numbers]
        return np.hstack([axis[codes[:, i]] for i, axis in enumerate(self._axes)])


def _gaussian_process(
    X: np.ndarray, y: np.ndarray, X_new: np.ndarray, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior mean and standard deviation (Rasmussen and Williams, 2006, chapter 2).

    The prior variance ``spread``² is half shared by the whole space (this problem may be slower or
    faster than predicted throughout) and half local, Matérn 5/2.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    def process(length: float) -> GaussianProcessRegressor:
        half = spread**2 / 2
        kernel = ConstantKernel(half) + ConstantKernel(half) * Matern(length, nu=2.5)
        return GaussianProcessRegressor(kernel, alpha=NOISE**2, optimizer=None).fit(X, y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # conditioning: harmless with the noise term
        best = max((process(s) for s in LENGTHS), key=lambda p: p.log_marginal_likelihood_value_)
        mean, deviation = best.predict(X_new, return_std=True)
    return mean, np.maximum(deviation, 1e-6)
