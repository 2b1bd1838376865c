"""Surrogate search: a Gaussian process on the prior's residuals.

Measurements correct the prior by a multiple of it, which tends to minus one if it misleads, and by
a smooth function of the encoded configuration. Measurements of the kernel's other problems join the
same process, in which each problem has an offset. The next proposal maximizes the expected
improvement (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998) times the prior
probability to run. Failures count as slow.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foretune.measurement import Measurement
from foretune.models.covariance import GroupCovariance, LinearCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.objective import Scalarization
from foretune.problem import Problem
from foretune.search.encoding import ConfigurationEncoder, nearest_first
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import PRIOR_CHECKS, Prior, Searcher
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MULTIPLE,
    OFFSET,
    REFIT_FACTOR,
    one_blas_thread,
    subsample_measurements,
    surrogate_process,
)
from foretune.space import SearchSpace

MAX_ROWS = 300  # maximum number of rows, nearest problems first
FAILURE_LOG = 1.0
"""A failure counts as the slowest success, but at least this much above the median log."""


class Experience:
    """Measurements of other problems, the nearest to ``problem`` first.

    Each problem's values are relative to its own median, because only differences between
    configurations matter for a choice. Each row has its prior ``log_mean`` (0 without one), the
    ``residuals`` (log losses less the prior, relative to the problem's median), and the number of
    its problem, from 1.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        objective: Scalarization,
        problem: Problem,
        space: SearchSpace,
        prior: Prior | None,
    ) -> None:
        known = [m for m in measurements if not np.isnan(objective.value_of(m))]
        self.measurements = nearest_first(known, problem)[:MAX_ROWS]
        numbers = {p: i for i, p in enumerate(dict.fromkeys(m.problem for m in self.measurements))}
        self.problems = np.array([numbers[m.problem] + 1.0 for m in self.measurements])
        self.log_mean = np.zeros(len(self.measurements))
        if prior is not None:
            self.log_mean = prior.log_means(self.measurements, space)
        values = np.array([objective.value_of(m) for m in self.measurements])
        self.residuals = np.zeros(len(values))
        for number in np.unique(self.problems):
            here = self.problems == number
            residuals = log_losses(values[here]) - self.log_mean[here]
            self.residuals[here] = residuals - np.median(residuals)

    def __len__(self) -> int:
        return len(self.measurements)


def log_losses(values: np.ndarray) -> np.ndarray:
    """Return the log values of one problem, failures (not finite) as slow; zeros if nothing ran."""
    ran = np.isfinite(values)
    if not ran.any():
        return np.zeros(len(values))
    logs = np.log(values, where=ran, out=np.zeros(len(values)))
    logs[~ran] = max(logs[ran].max(), np.median(logs[ran]) + FAILURE_LOG)
    return logs


EXPANDED_BEST = 5  # number of best configurations whose neighbors join the pool
MAX_CHANGES = 3
"""In spaces too large to enumerate, neighbors differ from the best in up to three parameters."""
POOL_SIZE = 8000
"""Maximum number of candidates; those of a larger space change as the search learns."""
INITIAL_DESIGN_SIZE = 6  # measurements of the initial design without a prior
NEIGHBOR_PERIOD = 4  # without a prior, every n-th proposal is a random neighbor of the best
MIN_P_VALID = 0.05  # lower bound of a prior's probabilities to run

Fits = dict[tuple[str, ...], tuple[int, GaussianProcess]]
"""Fitted processes by axes, with the number of rows used in each fit."""


class SurrogateSearcher(Searcher):
    """Expected improvement under a prior corrected by a Gaussian process.

    ``args`` and ``named``: as for `Searcher`; ``fits``: cache of the searches of one kernel.
    """

    uses_prior = True

    def __init__(self, *args: Any, fits: Fits | None = None, **named: Any) -> None:
        self._fits: Fits = {} if fits is None else fits
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        self._experience = Experience(
            self.other_measurements, self.objective, self.problem, self.space, self.prior
        )
        self._encoder = ConfigurationEncoder(
            self.space, self.problem, self.device, self._experience.measurements
        )
        self._prior_mean, self._scale, self._amplitude = self._read_prior()
        self._posterior: Posterior | None = None
        self._fitted_count = 0
        self._seen: set[int] = set()  # configurations that the posterior has seen
        self._posterior_indices: list[int] = []
        """The seen configurations that the posterior contains, in its order."""
        self._refresh_pool()

    def _propose(self, n: int) -> list[int]:
        chosen: list[int] = []
        with one_blas_thread():
            if self._can_fit():
                self._update_posterior()
            while len(chosen) < n:
                free = ~np.isin(self._pool, [*self.proposed, *chosen])
                if free.any():
                    chosen.append(self._next(free, chosen))
                else:
                    others = [i for i in self.random_indices(n) if i not in chosen]
                    chosen += others[: n - len(chosen)]
        return chosen

    def _next(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the next proposal while ``chosen`` are pending."""
        count = len(self.proposed) + len(chosen)
        if self._prior_needs_checking() and count in PRIOR_CHECKS:
            runs = self._p_valid >= min(0.5, self._p_valid[free].max())
            return self._farthest(free & runs, chosen, self._encoder.encode)
        if self._can_fit():
            is_turn = count % NEIGHBOR_PERIOD == NEIGHBOR_PERIOD - 1 and self._prior_mean is None
            if is_turn and self._successes():
                return self._neighbor_of_best(free)
            return self._best_candidate(free, chosen)
        if self._prior_mean is not None:
            log_success = np.log(self._p_valid) - self._prior_mean_of(self._pool)
            return int(self._pool[np.argmax(np.where(free, log_success, -np.inf))])
        if self.observed and not math.isfinite(next(reversed(self.observed.values()))):
            return int(self.rng.choice(self._pool[free]))  # the extremes of the space fail
        return self._farthest(free, chosen, self._screening)

    def _prior_needs_checking(self) -> bool:
        """Whether the prior comes from another device."""
        return self._prior_mean is not None and self.prior is not None and self.prior.foreign

    def _can_fit(self) -> bool:
        if len(self._experience):
            return True
        enough = self._prior_mean is not None or len(self.observed) >= INITIAL_DESIGN_SIZE
        return enough and self._successes() > 0

    def _successes(self) -> int:
        return sum(map(math.isfinite, self.observed.values()))

    def _screening(self, indices: np.ndarray) -> np.ndarray:
        """Return configurations scaled to the same length along every parameter.

        With this scale, corners come first, as in a two-level screening design: a few measurements
        show every main effect.
        """
        last = np.array([max(len(v) - 1, 1) for v in self.space.parameters.values()])
        return self.space.codes_of(indices) / last

    def _farthest(
        self, free: np.ndarray, chosen: list[int], encode: Callable[[np.ndarray], np.ndarray]
    ) -> int:
        """Return the candidate farthest from all proposed ones; the first is random."""
        candidates = self._pool[free]
        others = [*self.proposed, *chosen]
        if not others:
            return int(self.rng.choice(candidates))
        points, known = encode(candidates), encode(np.array(others))
        squares = (known**2).sum(axis=1) - 2 * points @ known.T
        return int(candidates[np.argmax((points**2).sum(axis=1) + squares.min(axis=1))])

    def _neighbor_of_best(self, free: np.ndarray) -> int:
        """Return a random candidate that differs from the best in the fewest parameters.

        They differ in one parameter, or in two if no candidate differs in one (as in permutations).
        """
        best = min(self.observed, key=lambda i: (not math.isfinite(v := self.observed[i]), v))
        candidates = self._pool[free]
        differing = (self.space.codes_of(candidates) != self.space.codes_of(best)).sum(axis=1)
        return int(self.rng.choice(candidates[differing == differing.min()]))

    def expected_regret(self) -> float:
        """Return the expected regret of `best`: how much slower than the optimum, relative.

        Infinite before the first success, during the initial design, and until a prior from another
        device was checked (`PRIOR_CHECKS`).
        """
        return self._estimate().expected_regret if self._is_informed() else math.inf

    def expected_improvement(self) -> float:
        """Return the expected gain on `best` of one more measurement, relative."""
        if not self._is_informed():
            return math.inf
        estimate = self._estimate()
        return estimate.expected_improvement(~np.isin(self._pool, list(self.proposed)))

    def _is_informed(self) -> bool:
        """Whether there is enough data to estimate the regret."""
        needed = PRIOR_CHECKS[-1] + 1 if self._prior_needs_checking() else 0
        if self._prior_mean is None:
            needed = min(INITIAL_DESIGN_SIZE, len(self.space))
        return self._can_fit() and self._successes() > 0 and len(self.observed) >= needed

    def search_posterior(self) -> SearchPosterior | None:
        """Return the posterior of all candidates; None without any data."""
        if not self._can_fit():
            return None
        with one_blas_thread():
            return self._estimate()

    def _estimate(self) -> SearchPosterior:
        self._update_posterior()
        return self._search_posterior(self._current_posterior())

    def _search_posterior(self, posterior: Posterior) -> SearchPosterior:
        values = np.full(len(self._pool), math.nan)
        values[np.searchsorted(self._pool, [*self.observed])] = [*self.observed.values()]
        return SearchPosterior(self._pool, posterior, self._p_valid, values)

    def _current_posterior(self) -> Posterior:
        """Return the log posterior of all candidates, without pending ones."""
        assert self._posterior is not None
        y, offset = self._residuals()
        self._posterior.prior = self._scale * (self._prior_mean_of(self._pool) + offset)
        self._posterior.scale = self._scale
        self._posterior.set_values(self._scale * y)
        return self._posterior

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate of largest acquisition while ``chosen`` are pending."""
        posterior = self._current_posterior()
        pending = [*(self.proposed - self.observed.keys()), *chosen]
        if pending:  # assume their expected values, so that neighbors gain nothing
            posterior.add(self._points(np.array(pending)))
        log_acquisition = self._log_acquisition(posterior)
        posterior.drop_pending(len(pending))
        return int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))])

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        return self._search_posterior(posterior).log_acquisition

    def _update_posterior(self) -> None:
        new = [i for i in self.observed if i not in self._seen]
        self._seen.update(new)
        known = np.isin(list(self.observed), self._pool).all()
        due = len(self.observed) >= REFIT_FACTOR * self._fitted_count
        if self._posterior is None or not known or due:
            self._condition()
        elif new:
            self._posterior_indices += new
            self._posterior.add(self._points(np.array(new)))

    def _condition(self) -> None:
        """Condition the process on all observations; refit it if there is enough new data."""
        self._fitted_count = len(self.observed)
        if len(self._pool) < len(self.space):
            self._refresh_pool()
        at = np.array(list(self.observed), dtype=np.int64)
        at = at[subsample_measurements(np.array(list(self.observed.values())), self.rng)]
        self._posterior_indices = at.tolist()
        if self._prior_mean is None:
            self._scale = 1.0
            self._scale = float(np.std(self._residuals()[0])) or 1.0
        axes = len(self._encoder)
        others = self._experience
        X = np.column_stack([self._encoder.others, others.log_mean / self._scale, others.problems])
        X, y = np.vstack([X, self._points(at)]), self._residuals()[0]
        process = surrogate_process(
            axes,
            self._amplitude,
            (GroupCovariance(axes + 1, OFFSET.scale), LinearCovariance(axes, MULTIPLE)),
        )
        rows, process = self._fits.get(self._encoder.names, (0, process))
        if not rows <= len(y) < REFIT_FACTOR * rows:
            process = process.fitted(X, y, FIT_STEPS)
            self._fits[self._encoder.names] = len(y), process
        self._posterior = Posterior(process, X, y, self._points(self._pool))

    def _residuals(self) -> tuple[np.ndarray, float]:
        """Return all scaled residuals of the prior, and the median of this problem's."""
        others = self._experience.residuals / self._scale
        if not self._posterior_indices:
            return others, 0.0
        values = np.array([self.observed[i] for i in self._posterior_indices])
        residuals = log_losses(values) / self._scale
        residuals -= self._prior_mean_of(np.array(self._posterior_indices))
        offset = float(np.median(residuals))
        return np.concatenate([others, residuals - offset]), offset

    def _read_prior(self) -> tuple[np.ndarray | None, float, float]:
        """Return the prior scaled by its standard deviation, that scale, and its relative error."""
        if self.prior is None or not np.ptp(self.prior.log_mean):
            return None, 1.0, 1.0
        scale = float(np.std(self.prior.log_mean))
        prior_mean = (self.prior.log_mean - self.prior.log_mean.mean()) / scale
        return prior_mean, scale, float(np.clip(self.prior.log_spread / scale, 0.2, 1.0))

    def _points(self, indices: np.ndarray) -> np.ndarray:
        here = np.zeros(len(indices))
        return np.column_stack([self._encoder.encode(indices), self._prior_mean_of(indices), here])

    def _prior_mean_of(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices)) if self._prior_mean is None else self._prior_mean[indices]

    def _refresh_pool(self) -> None:
        p_valid = None if self.prior is None else np.maximum(self.prior.p_valid, MIN_P_VALID)
        log_acquisition = None
        if self._prior_mean is not None and p_valid is not None:
            log_acquisition = np.log(p_valid) - self._prior_mean
        self._pool = self._candidates(log_acquisition)
        self._p_valid = np.ones(len(self._pool)) if p_valid is None else p_valid[self._pool]

    def _candidates(self, log_acquisition: np.ndarray | None) -> np.ndarray:
        """Return the sorted indices of all configurations, or of about `POOL_SIZE`.

        The pool has the measured configurations and the neighbors of the best. Half of the rest
        have the largest ``log_acquisition`` (None without a prior), or are further neighbors in
        spaces too large to enumerate. The others are random.
        """
        space, rng = self.space, self.rng
        if len(space) <= POOL_SIZE:
            return np.arange(len(space))
        ran = [i for i, value in self.observed.items() if math.isfinite(value)]
        best = sorted(ran, key=lambda i: self.observed[i])[:EXPANDED_BEST]
        parts = [np.array([*self.observed], dtype=np.int64)]
        if best:
            parts.append(space.neighbor_indices(best))
            for _ in range(1, MAX_CHANGES if space.is_too_large_to_enumerate else 1):
                some = rng.choice(parts[-1], min(len(parts[-1]), POOL_SIZE // 200))
                parts.append(rng.permutation(space.neighbor_indices(some))[: POOL_SIZE // 4])
        if log_acquisition is not None:
            parts.append(np.argpartition(-log_acquisition, POOL_SIZE // 2)[: POOL_SIZE // 2])
        rest = max(POOL_SIZE - sum(map(len, parts)), POOL_SIZE // 4)
        return np.unique(np.concatenate([*parts, space.sample_indices(rest, rng)]))
