"""Searches in the order of a prior, corrected by earlier measurements of the kernel.

The log time of a run is the prior, an offset of its problem, an error that is smooth in problem and
configuration, and an independent error. A Gaussian process with fixed parameters describes both
errors, so the prior's order stands unless something similar was measured. Errors larger than
expected widen all spreads. Without a prior, the parameters are fitted.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from foretune.models.covariance import GroupCovariance, Hyperprior, MaternCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.search.blas_threads import one_blas_thread
from foretune.search.encoding import KernelRuns, nearest_first, problem_distance
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import Searcher
from foretune.search.surrogate_model import FIT_STEPS
from foretune.space import Configuration

MAX_ROWS, MAX_DISTANCE = 300, 16.0
"""Maximum number of earlier runs, nearest problems first, and the distance (`problem_distance`)
from which problems are ignored: two differing types."""
VARIANCE, SMOOTHNESS = Hyperprior(1.0, 1.0, 1e-2, 1e2), 2.5
"""Variance of the smooth error in units of the prior's spread, and its Matérn smoothness."""
LENGTH = Hyperprior(0.5, 1.0, np.exp(-4.0), np.exp(4.0))
"""Length scale of the smooth error, in deviations of the axes times the root of their number."""
INDEPENDENT, REPEATED = Hyperprior(0.36, 0.0), Hyperprior(0.004, 1.0, 1e-5, 1.0)
"""Variance of the independent error, with and without a prior."""
OFFSET = Hyperprior(100.0, 0.0)  # variance of a problem's offset
PRIOR_ERRORS = 10.0  # the observed errors are averaged with this many errors of the expected size
NO_PRIOR_SPREAD = 0.5  # standard deviation of the smooth error of log times without a prior
MIN_FIT = 6  # number of runs from which the process is fitted without a prior
FIRST_MEASUREMENTS, LATER_MEASUREMENTS, KNOWN_PROBLEMS = 4, 3, 8
"""Minimum number of measurements, and the minimum once this many other problems were measured."""
MIN_P_VALID = 1e-3


class OrderedSearcher(Searcher):
    """Measures the candidates that the prior and earlier runs expect to be fastest.

    It is made for short lists: every candidate is predicted at every step. Earlier runs may also be
    of the same problem, and of configurations outside the space. ``args`` and ``named``: as for
    `Searcher`; ``statics``: known properties of each configuration before it runs
    (`Measurement.static`).
    """

    uses_prior = True

    def __init__(
        self, *args: Any, statics: Sequence[Mapping[str, float]] | None = None, **named: Any
    ) -> None:
        self._statics = statics
        super().__init__(*args, **named)

    @cached_property
    def search_posterior(self) -> SearchPosterior:
        """The posterior of all candidates."""
        with one_blas_thread():
            return self._make_posterior()

    @property
    def min_measurements(self) -> int:
        """Minimum number of measurements, even if the expected regret is small."""
        if self.prior is not None and not self.prior.foreign:
            return 0
        known = self._known_problems >= KNOWN_PROBLEMS
        return min(LATER_MEASUREMENTS if known else FIRST_MEASUREMENTS, len(self.space))

    def choice(self) -> Configuration:
        """Return the configuration to run now: the best measured one, else the most promising."""
        return self.space[self.search_posterior.best]

    def expected_regret(self) -> float:
        """Return the expected regret of `choice`: how much slower than the optimum, relative.

        Infinite below the minimum number of measurements, and while all of them failed.
        """
        return math.inf if self._must_measure else self.search_posterior.expected_regret

    def expected_improvement(self) -> float:
        """Return the expected gain on `best` of one more measurement, relative."""
        if self._must_measure:
            return math.inf
        return self.search_posterior.expected_improvement(self._free)

    def _prepare(self) -> None:
        useful = [m for m in self.other_measurements if not math.isnan(self.objective.value_of(m))]
        near = [m for m in useful if problem_distance(m.problem, self.problem) < MAX_DISTANCE]
        self._others = nearest_first(near, self.problem)[:MAX_ROWS]
        ran = {m.problem for m in self._others if m.ok}
        self._known_problems = len(ran - {self.problem})
        self._other_values = np.array([self.objective.value_of(m) for m in self._others])

    def _propose(self, n: int) -> list[int]:
        posterior, chosen, free = self.search_posterior, list[int](), self._free
        while len(chosen) < n:
            first = len(self._known_values) + len(chosen) < FIRST_MEASUREMENTS
            in_order = first and self.prior is not None and self.prior.ranks
            score = posterior.log_expected_success if in_order else posterior.log_acquisition
            chosen.append(int(np.argmax(np.where(free, score, -np.inf))))
            free[chosen[-1]] = False
        return chosen

    def _learn(self, new_values: dict[int, float]) -> None:
        self.__dict__.pop("search_posterior", None)

    @property
    def _must_measure(self) -> bool:
        known = self._known_values
        none_ran = bool(known) and not np.isfinite(list(known.values())).any()
        return none_ran or len(known) < self.min_measurements

    @property
    def _free(self) -> np.ndarray:
        free = np.ones(len(self.space), dtype=bool)
        free[list(self.proposed)] = False
        return free

    @property
    def _known_values(self) -> dict[int, float]:
        return {i: value for i, value in self.observed.items() if not math.isnan(value)}

    @property
    def _spread(self) -> float:
        return NO_PRIOR_SPREAD if self.prior is None else self.prior.log_spread

    @cached_property
    def _prior_means(self) -> tuple[np.ndarray, np.ndarray]:
        """The prior means of the earlier runs, then of the candidates."""
        if self.prior is None:
            return np.zeros(len(self._others)), np.zeros(len(self.space))
        return self.prior.log_means(self._others, self.space), self.prior.log_mean

    @cached_property
    def _points(self) -> np.ndarray:
        """Earlier runs, then the candidates: standardized axes, and the problem's number."""
        candidates = list(self.space)
        statics = self._statics or [{}] * len(candidates)
        rows = KernelRuns.from_measurements(self._others)
        rows += KernelRuns([self.problem] * len(candidates), candidates, statics)
        points, _ = rows.points(self.device.specs if self.device else {})
        numbers = {problem: float(i) for i, problem in enumerate(dict.fromkeys(rows.problems))}
        of_rows = [numbers[problem] for problem in rows.problems]
        return np.column_stack([points / points.std(axis=0), of_rows])

    def _make_posterior(self) -> SearchPosterior:
        known = self._known_values
        objective = np.full(len(self.space), np.nan)
        objective[list(known)] = list(known.values())
        earlier, prior = self._prior_means
        ran, valid = np.isfinite(self._other_values), np.isfinite(objective)
        X = np.vstack([self._points[: len(self._others)][ran], self._here[valid]])
        errors = np.log(np.concatenate([self._other_values[ran], objective[valid]]))
        errors -= np.concatenate([earlier[ran], prior[valid]])
        levels = {i: float(errors[X[:, -1] == i].mean()) for i in np.unique(X[:, -1])}
        y = errors - np.array([levels[i] for i in X[:, -1]])
        process = _process(X.shape[1] - 1, INDEPENDENT if self.prior else REPEATED)
        if self.prior is None and len(y) >= MIN_FIT:
            process = process.fitted(X, y / self._spread, FIT_STEPS)
        posterior = Posterior(
            process,
            X,
            y,
            self._here,
            prior=prior + levels.get(self._here[0, -1], 0.0),
            scale=self._spread,
            observation_noise=True,
        )
        posterior.scale *= _widening(posterior, len(y) - len(levels))
        indices, p_valid = np.arange(len(self.space)), self._validity(known)
        return SearchPosterior(indices, posterior, p_valid, objective)

    @property
    def _here(self) -> np.ndarray:
        return self._points[len(self._others) :]

    def _validity(self, known: Mapping[int, float]) -> np.ndarray:
        """Return each candidate's probability to run, given its failures on any problem."""
        tries: dict[int | None, list[bool]] = {}
        for m in self._others:
            tries.setdefault(self.space.index_or_none(m.config), []).append(m.ok)
        for index, value in known.items():
            tries.setdefault(index, []).append(math.isfinite(value))
        found = np.ones(len(self.space)) if self.prior is None else self.prior.p_valid.copy()
        for i, ran in tries.items():
            if i is not None and not all(ran):
                found[i] *= (sum(ran) + 0.1) / (len(ran) + 0.2)
        return np.clip(found, MIN_P_VALID, 1.0)


def _process(axes: int, independent: Hyperprior) -> GaussianProcess:
    """Return the process of the errors in units of their spread; the problem is the last column."""
    smooth = MaternCovariance(slice(0, axes), VARIANCE, LENGTH, SMOOTHNESS)
    return GaussianProcess.from_prior([smooth, GroupCovariance(axes, OFFSET)], independent)


def _widening(posterior: Posterior, freedom: int) -> float:
    """Return the factor of spreads that covers the observed errors; at least 1."""
    observed = posterior.squared_errors / posterior.scale**2
    return math.sqrt(max(1.0, (PRIOR_ERRORS + observed) / (PRIOR_ERRORS + freedom)))
