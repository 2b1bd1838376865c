"""Surrogate search: a Gaussian process on what the prior gets wrong.

The prior, a predictor trained on other problems or devices, gives every configuration a mean. What
is measured here corrects it: how far it can be trusted at all (a multiple of it, which tends to
minus one where it misleads), and by a smooth function of the configuration's
`ConfigurationEncoder`. A few early proposals go where the prior does not lead, for else it would
never be caught. Without a prior the process does all the work, after a first design that spreads the measurements as far apart as
they will go. The next configuration is the one of largest expected improvement (Jones, Schonlau and
Welch, Journal of Global Optimization 13, 1998) times its probability to run.
"""

import math
from collections.abc import Callable

import numpy as np

from foretune.models.covariance import LinearCovariance
from foretune.models.gaussian_process import Posterior
from foretune.search.acquisition import log_expected_improvement
from foretune.search.candidates import candidate_pool
from foretune.search.costs import log_seconds
from foretune.search.encoding import ConfigurationEncoder
from foretune.search.feasibility import Feasibility
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import Searcher
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MULTIPLE,
    OFFSET,
    REFIT_FACTOR,
    one_blas_thread,
    subsample_measurements,
    surrogate_process,
)

POOL_SIZE = 8000
"""Candidates the process looks at; of a larger space some, which change as it learns (`pool`)."""
INITIAL_DESIGN_SIZE = 6
"""Without a prior, measurements of the first design."""
PRIOR_CHECKS = (2, 4, 8)
"""With a prior from elsewhere, after so many proposals one is far from all others instead: where
everything that was measured is what the prior likes, nothing shows that it is wrong."""
MIN_RELATIVE_VALIDITY = 0.15
"""Where some failed, what is less likely to run than this share of the likeliest waits."""
MIN_P_VALID = 0.05
"""No prior is believed that says of nearly everything that it cannot run."""


class SurrogateSearcher(Searcher):
    """Expected improvement under prior plus Gaussian-process correction."""

    uses_prior = True

    def _prepare(self) -> None:
        self._encoder = ConfigurationEncoder(self.space, self.problem, self.device)
        self._prior_mean, self._scale, amplitude = self._read_prior()
        axes = len(self._encoder)
        self._process = surrogate_process(
            axes, amplitude, (OFFSET, LinearCovariance(axes, MULTIPLE))
        )
        self._posterior: Posterior | None = None
        self._fitted_count = 0
        self._seen: set[int] = set()
        """Configurations that were looked at."""
        self._posterior_indices: list[int] = []
        """Those of them that the posterior was told of, in its order."""
        has_p_valid = self.prior is not None and np.ptp(self.prior.p_valid) > 0
        prior_p_valid = self._prior_p_valid() if has_p_valid else None
        seed = int(self.rng.integers(2**31))
        self._feasibility = Feasibility(self._encoder.encode, prior_p_valid, seed)
        self._feasibility_counts = 0, -1
        """Measurements and failures that `_p_valid` takes into account."""
        self._refresh_pool()

    def _propose(self, n: int) -> list[int]:
        with one_blas_thread():
            return self._choose(n)

    def _choose(self, n: int) -> list[int]:
        guided, can_fit = self._prior_mean is not None, self._can_fit()
        self._update_feasibility()
        if can_fit:
            self._update_posterior()
        chosen: list[int] = []
        while len(chosen) < n:
            free = ~np.isin(self._pool, [*self.proposed, *chosen])
            if not free.any():
                chosen += [i for i in self.random_indices(n) if i not in chosen][: n - len(chosen)]
            elif self._prior_needs_checking() and len(self.proposed) + len(chosen) in PRIOR_CHECKS:
                runs = self._p_valid >= min(0.5, self._p_valid[free].max())
                chosen.append(self._farthest(free & runs, chosen, self._encoder.encode))
            elif can_fit:
                chosen.append(self._best_candidate(free, chosen))
            elif guided:
                log_acquisition = np.log(self._p_valid) - self._prior_mean_of(self._pool)
                chosen.append(int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))]))
            elif self._mostly_fails():
                likely = self._p_valid >= self.rng.random() * self._p_valid[free].max()
                chosen.append(int(self.rng.choice(self._pool[free & likely])))
            else:
                chosen.append(self._farthest(free, chosen, self._screening))
        return chosen

    def _prior_needs_checking(self) -> bool:
        """Whether there is a prior that nobody has checked on this device."""
        return self._prior_mean is not None and self.prior is not None and self.prior.foreign

    def _can_fit(self) -> bool:
        """Whether there is anything to learn from."""
        successes = sum(np.isfinite(v) for v in self.observed.values())
        return successes > 0 and (
            self._prior_mean is not None or len(self.observed) >= INITIAL_DESIGN_SIZE
        )

    def _mostly_fails(self) -> bool:
        """Whether extremes fail more often than not: then they show nothing of what is fast."""
        failed = sum(not np.isfinite(v) for v in self.observed.values())
        return 2 * failed > max(len(self.observed), 2)

    def _screening(self, indices: np.ndarray) -> np.ndarray:
        """Return where configurations stand along the parameters, one as long as the other.

        Spread out along these, corners come first, as in a two-level screening design: a few
        measurements show every main effect.
        """
        last = np.array([max(len(v) - 1, 1) for v in self.space.parameters.values()])
        return self.space.codes_of(indices) / last

    def _farthest(
        self, free: np.ndarray, chosen: list[int], encode: Callable[[np.ndarray], np.ndarray]
    ) -> int:
        """Return the candidate ``encode``d farthest from all proposed; the first one is random."""
        candidates = self._pool[free]
        others = [*self.proposed, *chosen]
        if not others:
            return int(self.rng.choice(candidates))
        points, known = encode(candidates), encode(np.array(others))
        squares = (known**2).sum(axis=1) - 2 * points @ known.T
        return int(candidates[np.argmax((points**2).sum(axis=1) + squares.min(axis=1))])

    def expected_regret(self) -> float:
        """Return how much slower than the optimum `best` is expected to be, relative.

        Infinite before anything ran, without a prior before the end of the first design, and with
        one from elsewhere before the last of the `CONTRASTS`.
        """
        forecast = self._search_posterior()
        return math.inf if forecast is None else forecast.expected_regret

    def expected_improvement(self) -> float:
        """Return by how much one more measurement is expected to improve on `best`, relative."""
        forecast = self._search_posterior()
        free = ~np.isin(self._pool, list(self.proposed))
        return math.inf if forecast is None else forecast.expected_improvement(free)

    def _search_posterior(self) -> SearchPosterior | None:
        """Return what is known of all candidates; None before the searcher can tell."""
        if not self._can_fit() or (
            self._prior_needs_checking() and len(self.observed) <= PRIOR_CHECKS[-1]
        ):
            return None
        with one_blas_thread():
            self._update_feasibility()
            self._update_posterior()
            posterior = self._current_posterior()
            values = [self.observed.get(i, math.nan) for i in self._pool.tolist()]
            return SearchPosterior(self._pool, posterior, self._p_valid, np.array(values))

    def _current_posterior(self) -> Posterior:
        """Return the posterior of the logarithms of all candidates, nothing being under way."""
        assert self._posterior is not None
        y, offset = self._residuals()
        self._posterior.prior = self._scale * (self._prior_mean_of(self._pool) + offset)
        self._posterior.scale = self._scale
        self._posterior.set_values(self._scale * y)
        return self._posterior

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate of largest expected improvement, ``chosen`` being under way."""
        posterior = self._current_posterior()
        pending = [*(self.proposed - self.observed.keys()), *chosen]
        if pending:  # believe of those what is expected: their neighbours gain nothing
            posterior.add(self._points(np.array(pending)))
        best = min(np.log(v) for v in self.observed.values() if np.isfinite(v))
        log_acquisition = self._log_acquisition(best, posterior) + np.log(self._p_valid)
        if self.costs_s:  # improvement per second (Snoek, Larochelle and Adams, NeurIPS 2012)
            measured = self._encoder.encode(np.array(list(self.costs_s)))
            candidates = self._encoder.encode(self._pool)
            log_acquisition -= log_seconds(measured, candidates, self.costs_s, self.rng)
        if (
            self._feasibility_counts[1] > 0
        ):  # no hope of improvement makes up for what hardly ever runs
            free = free & (self._p_valid >= MIN_RELATIVE_VALIDITY * self._p_valid[free].max())
        posterior.drop_pending(len(pending))
        return int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))])

    def _log_acquisition(self, best: float, posterior: Posterior) -> np.ndarray:
        """Return the logarithm of the expected improvement on ``best``."""
        return log_expected_improvement(posterior, best)

    def _update_posterior(self) -> None:
        """Bring the posterior up to everything told so far."""
        new = [i for i in self.observed if i not in self._seen]
        self._seen.update(new)
        known = np.isin(list(self.observed), self._pool).all()
        if (
            self._posterior is None
            or not known
            or len(self.observed) >= REFIT_FACTOR * self._fitted_count
        ):
            self._fitted_count = len(self.observed)
            if len(self._pool) < len(self.space):
                self._refresh_pool()
            if self._prior_mean is None:
                logs = np.log([v for v in self.observed.values() if np.isfinite(v)])
                self._scale = float(np.std(logs)) or 1.0
            ran = {i: v for i, v in self.observed.items() if np.isfinite(v)}
            at = np.array(list(ran))
            at = at[subsample_measurements(np.array(list(ran.values())), self.rng)]
            self._posterior_indices = at.tolist()
            X, y = self._points(at), self._residuals()[0]
            self._process = self._process.fitted(X, y, FIT_STEPS)
            self._posterior = Posterior(self._process, X, y, self._points(self._pool))
        elif new := [i for i in new if np.isfinite(self.observed[i])]:
            self._posterior_indices += new
            self._posterior.add(self._points(np.array(new)))

    def _residuals(self) -> tuple[np.ndarray, float]:
        """Return what the prior got wrong of `_known`, in units of scale, and the usual error."""
        logs = np.log([self.observed[i] for i in self._posterior_indices]) / self._scale
        residuals = logs - self._prior_mean_of(np.array(self._posterior_indices))
        offset = float(np.median(residuals))
        return residuals - offset, offset

    def _read_prior(self) -> tuple[np.ndarray | None, float, float]:
        """Return the prior in units of its own spread, that unit, and how wrong it may be."""
        if self.prior is None or not np.ptp(self.prior.log_mean):
            return None, 1.0, 1.0
        scale = float(np.std(self.prior.log_mean))
        prior_mean = (self.prior.log_mean - self.prior.log_mean.mean()) / scale
        return prior_mean, scale, float(np.clip(self.prior.log_spread / scale, 0.2, 1.0))

    def _points(self, indices: np.ndarray) -> np.ndarray:
        """Return configurations as the process sees them."""
        return np.column_stack([self._encoder.encode(indices), self._prior_mean_of(indices)])

    def _prior_mean_of(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices)) if self._prior_mean is None else self._prior_mean[indices]

    def _refresh_pool(self) -> None:
        """Choose the candidates."""
        log_acquisition = (
            None if self._prior_mean is None else np.log(self._prior_p_valid()) - self._prior_mean
        )
        self._pool = candidate_pool(self, POOL_SIZE, log_acquisition)
        self._feasibility_counts = 0, -1
        self._update_feasibility()

    def _update_feasibility(self) -> None:
        """Bring up to date how likely the candidates are to run."""
        failed = sum(not np.isfinite(v) for v in self.observed.values())
        judged, known = self._feasibility_counts
        if failed != known or (failed and len(self.observed) >= REFIT_FACTOR * judged):
            self._feasibility_counts = len(self.observed), failed
            self._p_valid = self._feasibility.predict(self._pool, self.observed)

    def _prior_p_valid(self) -> np.ndarray:
        """Return how likely every configuration is to run, by the prior."""
        assert self.prior is not None
        return np.maximum(self.prior.p_valid, MIN_P_VALID)
