"""Searches in the order of a prior, corrected by earlier measurements of the kernel.

The log time of a run is the prior, an offset of its problem, an error that is smooth in problem and
configuration, and an independent error. A Gaussian process with fixed parameters describes both
errors, so the prior's order stands unless something similar was measured. Without a prior, the
parameters are fitted.

The size of the errors is unknown: a prior that suits one kernel misjudges another. Their law is
therefore Student's (O'Hagan, Journal of the Royal Statistical Society B 41, 1979): errors that were
observed change the scale of all, and a few degrees of freedom keep large errors possible.

If several orders make up the prior, they take turns at the first measurements: what one misjudges,
another may know.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from foretune.models.covariance import GroupCovariance, Hyperprior, MaternCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.problem import Problem
from foretune.search.blas_threads import one_blas_thread
from foretune.search.encoding import KernelRuns, nearest_first, problem_distance
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import DEFAULT_FREEDOM, Searcher
from foretune.search.surrogate_model import FIT_STEPS
from foretune.space import Configuration

MAX_ROWS = 300  # maximum number of earlier runs, nearest problems first
MAX_DISTANCE = 16.0
"""Distance (`problem_distance`) from which problems are ignored: two differing types."""

VARIANCE = Hyperprior(1.0, 1.0, 1e-2, 1e2)
"""Variance of the smooth error in units of the prior's spread."""
MATERN_SMOOTHNESS = 2.5
LENGTH = Hyperprior(0.5, 1.0, np.exp(-4.0), np.exp(4.0))
"""Length scale of the smooth error, in deviations of the axes times the root of their number."""
NOISE_WITH_PRIOR = Hyperprior(0.36, 0.0)
NOISE_WITHOUT_PRIOR = Hyperprior(0.004, 1.0, 1e-5, 1.0)
"""Variance of the independent error."""
OFFSET = Hyperprior(100.0, 0.0)  # variance of a problem's offset
NO_PRIOR_SPREAD = 0.5  # standard deviation of the smooth error of log times without a prior
MIN_FIT = 6  # number of runs from which the process is fitted without a prior

FIRST_MEASUREMENTS = 4  # minimum number of measurements
LATER_MEASUREMENTS = 3  # the minimum once `KNOWN_PROBLEMS` other problems were measured
KNOWN_PROBLEMS = 8
WRONG_LOSS = 0.1
"""An order was wrong on a problem if its favorite, of what was measured there, loses more."""
WRONG_PROBLEMS = 2
"""An order that was wrong on this many problems loses its turn."""
MIN_P_VALID = 1e-3
FAILURE_PRIOR_TRIES = 0.2
"""The share of successes of a configuration that failed counts half of this many tries as one."""


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
        # Of the measurements of other problems, the nearest ones with a value count.
        value_of = self.objective.value_of
        near = [
            m
            for m in self.other_measurements
            if not math.isnan(value_of(m))
            and problem_distance(m.problem, self.problem) < MAX_DISTANCE
        ]
        self._earlier = nearest_first(near, self.problem)[:MAX_ROWS]
        self._earlier_values = np.array([value_of(m) for m in self._earlier])

        problems_that_ran = {m.problem for m in self._earlier if m.ok}
        self._known_problems = len(problems_that_ran - {self.problem})
        self._orders = self._orders_with_a_turn()

    def _propose(self, n: int) -> list[int]:
        posterior = self.search_posterior
        free = self._free
        chosen: list[int] = []
        while len(chosen) < n:
            number = len(self._known_values) + len(chosen)
            score = self._score(number, posterior)
            best = int(np.argmax(np.where(free, score, -np.inf)))
            chosen.append(best)
            free[best] = False
        return chosen

    def _score(self, number: int, posterior: SearchPosterior) -> np.ndarray:
        """Return what decides a measurement, given how many precede it; the highest is taken."""
        prior = self.prior
        if prior is None:
            return posterior.log_acquisition

        # The first measurements follow the orders in turn, or the order of a prior that ranks its
        # candidates.
        if number < len(self._orders):
            return np.log(posterior.p_valid) - self._orders[number]
        if number < FIRST_MEASUREMENTS and prior.ranks and not prior.orders:
            return posterior.log_expected_success
        return posterior.log_acquisition

    def _orders_with_a_turn(self) -> list[np.ndarray]:
        """Return the prior's orders, without those that were wrong on several other problems."""
        prior = self.prior
        if prior is None:
            return []
        if prior.orders_of is None or not self._earlier:
            return list(prior.orders.values())

        rows_by_problem: dict[Problem, list[int]] = {}
        for row, measurement in enumerate(self._earlier):
            rows_by_problem.setdefault(measurement.problem, []).append(row)
        expected_by_order = prior.orders_of(self._earlier)
        kept = []
        for name, order in prior.orders.items():
            wrong = [
                _favorite_was_slow(expected_by_order[name][rows], self._earlier_values[rows])
                for rows in rows_by_problem.values()
            ]
            if sum(wrong) < WRONG_PROBLEMS:
                kept.append(order)
        return kept

    def _learn(self, new_values: dict[int, float]) -> None:
        self.__dict__.pop("search_posterior", None)  # the cached one is out of date

    @property
    def _must_measure(self) -> bool:
        known = self._known_values
        all_failed = bool(known) and not np.isfinite(list(known.values())).any()
        return all_failed or len(known) < self.min_measurements

    @property
    def _free(self) -> np.ndarray:
        free = np.ones(len(self.space), dtype=bool)
        free[list(self.proposed)] = False
        return free

    @property
    def _known_values(self) -> dict[int, float]:
        """Objectives by candidate; without those that the meter missed."""
        return {i: value for i, value in self.observed.items() if not math.isnan(value)}

    @property
    def _spread(self) -> float:
        return NO_PRIOR_SPREAD if self.prior is None else self.prior.log_spread

    @cached_property
    def _earlier_prior_mean(self) -> np.ndarray:
        if self.prior is None:
            return np.zeros(len(self._earlier))
        return self.prior.log_means(self._earlier, self.space)

    @cached_property
    def _prior_mean(self) -> np.ndarray:
        """The prior means of the candidates."""
        return np.zeros(len(self.space)) if self.prior is None else self.prior.log_mean

    @cached_property
    def _points(self) -> np.ndarray:
        """Earlier runs, then the candidates: standardized axes, and the problem's number."""
        candidates = list(self.space)
        statics = self._statics or [{}] * len(candidates)
        rows = KernelRuns.from_measurements(self._earlier)
        rows += KernelRuns([self.problem] * len(candidates), candidates, statics)
        points, _ = rows.points(self.device.specs if self.device else {})
        distinct_problems = dict.fromkeys(rows.problems)
        numbers = {problem: float(i) for i, problem in enumerate(distinct_problems)}
        problem_column = [numbers[problem] for problem in rows.problems]
        return np.column_stack([points / points.std(axis=0), problem_column])

    @property
    def _candidate_points(self) -> np.ndarray:
        return self._points[len(self._earlier) :]

    def _make_posterior(self) -> SearchPosterior:
        known = self._known_values
        objective = np.full(len(self.space), np.nan)
        objective[list(known)] = list(known.values())

        # The errors of the prior, wherever something ran: on other problems, then on this one.
        # Failures stay out: they only lower the probability to run.
        ran_earlier = np.isfinite(self._earlier_values)
        ran_here = np.isfinite(objective)
        candidates = self._candidate_points
        earlier_points = self._points[: len(self._earlier)]
        X = np.vstack([earlier_points[ran_earlier], candidates[ran_here]])
        errors = np.log(np.concatenate([self._earlier_values[ran_earlier], objective[ran_here]]))
        errors -= np.concatenate(
            [self._earlier_prior_mean[ran_earlier], self._prior_mean[ran_here]]
        )

        # Each problem has an offset, its mean error.
        problem_column = X[:, -1]
        offsets = {i: float(errors[problem_column == i].mean()) for i in np.unique(problem_column)}
        y = errors - np.array([offsets[i] for i in problem_column])
        offset_here = offsets.get(candidates[0, -1], 0.0)

        noise = NOISE_WITHOUT_PRIOR if self.prior is None else NOISE_WITH_PRIOR
        process = _error_process(X.shape[1] - 1, noise)
        if self.prior is None and len(y) >= MIN_FIT:
            process = process.fitted(X, y / self._spread, FIT_STEPS)
        posterior = Posterior(
            process,
            X,
            y,
            candidates,
            prior=self._prior_mean + offset_here,
            scale=self._spread,
            observation_noise=True,
        )

        # The errors observed on all problems give the scale. Another problem may still differ: only
        # those observed here make large errors unlikely.
        freedom = DEFAULT_FREEDOM if self.prior is None else self.prior.error_freedom
        posterior.scale *= _error_scale(posterior, freedom, observed=len(y) - len(offsets))
        observed_here = max(int(ran_here.sum()) - 1, 0)
        return SearchPosterior(
            indices=np.arange(len(self.space)),
            posterior=posterior,
            p_valid=self._probabilities_to_run(known),
            objective=objective,
            freedom=freedom + observed_here,
        )

    def _probabilities_to_run(self, known: Mapping[int, float]) -> np.ndarray:
        """Return each candidate's probability to run, given its failures on any problem."""
        tries: dict[int | None, list[bool]] = {}
        for m in self._earlier:
            tries.setdefault(self.space.index_or_none(m.config), []).append(m.ok)
        for index, value in known.items():
            tries.setdefault(index, []).append(math.isfinite(value))

        p_valid = np.ones(len(self.space)) if self.prior is None else self.prior.p_valid.copy()
        for i, ran in tries.items():
            if i is not None and not all(ran):
                n_successes = sum(ran) + FAILURE_PRIOR_TRIES / 2
                p_valid[i] *= n_successes / (len(ran) + FAILURE_PRIOR_TRIES)
        return np.clip(p_valid, MIN_P_VALID, 1.0)


def _error_process(axes: int, noise: Hyperprior) -> GaussianProcess:
    """Return the process of the errors in units of their spread; the problem is the last column."""
    smooth = MaternCovariance(slice(0, axes), VARIANCE, LENGTH, MATERN_SMOOTHNESS)
    return GaussianProcess.from_prior([smooth, GroupCovariance(axes, OFFSET)], noise)


def _error_scale(posterior: Posterior, freedom: float, observed: int) -> float:
    """Return the factor of all spreads, given the errors observed so far.

    It is the scale of a Student law: ``freedom`` errors of the expected size are averaged with the
    ``observed`` ones (number without the offsets of their problems).
    """
    squared_errors = posterior.squared_errors / posterior.scale**2
    return math.sqrt((freedom + squared_errors) / (freedom + observed))


def _favorite_was_slow(expected: np.ndarray, values: np.ndarray) -> bool:
    """Whether the configuration that was expected to be fastest was slow, or did not run.

    ``expected`` are log times, NaN if unknown, ``values`` objectives, infinite for failures.
    """
    known = np.isfinite(expected)
    if known.sum() < 2 or not np.isfinite(values[known]).any():
        return False
    favorite = np.argmin(expected[known])
    return bool(values[known][favorite] > (1.0 + WRONG_LOSS) * values[known].min())
