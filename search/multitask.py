"""Transfer search: one Gaussian process over all problems of a kernel on a device.

The process models the residuals of a prior, which is a predictor or an estimate. A residual is the
sum of four parts: an offset per problem, a smaller offset per configuration, a multiple of the
prior, and a smooth function of problem sizes, configuration and launch geometry. Fitted length
scales decide how far measurements of other problems carry over. Offsets of problems do not matter
for a choice, which depends on differences between configurations.

The expected regret of a choice is its mean loss against the fastest candidate, over draws from the
joint posterior. Spreads are widened by the errors on left-out problems. A kernel with few
measurements has no regret estimate. Problems weigh by their similarity to the current one. If the
prior is precise, the search follows its order first, and experience replaces that order only where
it chooses better.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from foretune.measurement import Measurement
from foretune.models.covariance import GroupCovariance, Hyperprior, LinearCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.search.acquisition import DRAWS
from foretune.search.candidates import candidate_pool
from foretune.search.encoding import KernelRuns, nearest_first, problem_distance, similarity
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import Searcher
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MULTIPLE,
    OFFSET,
    REFIT_FACTOR,
    one_blas_thread,
    surrogate_process,
)
from foretune.space import Configuration
from foretune.values import FrozenParameters

POOL_SIZE = 2048
"""Maximum number of candidates."""
MAX_ROWS = 300
"""Maximum number of training runs, nearest problems first."""
MIN_FIT = 8
"""Minimum number of runs to fit length scales; below it, their hyperpriors hold."""
MIN_SIMILAR_PROBLEMS = 8
"""Number of problems, weighted by similarity, from which the model alone decides."""
CHECKED_MEASUREMENTS = 6
"""Minimum number of measurements per problem before that; the first problem of a large space gets
the larger number."""
ORDER_ONLY_MEASUREMENTS, ORDER_ONLY_IF_SIMILAR, ENOUGH_SIMILAR_PROBLEMS = 4, 3, 2.0
"""Measurements in the order of a precise prior, because a few measurements say less than the prior.
The first number is always made. The second applies if the weighted number of problems is at least
the third: then experience never contradicted the order."""
MAX_LOSS_RATIO = 0.5
"""Experience beats the prior if its choices lose at most this share of the prior's loss."""
MAX_PROBLEM_DISTANCE = 16.0
"""Distance of problems (`problem_distance`) from which nothing is transferred under a precise
prior."""
COARSE_PRIOR_SPREAD = 0.3
"""Log spread from which a prior is coarse: an estimate that needs checks everywhere."""
SMALL_SPACE = 64
"""Number of candidates from which the first problem gets more measurements."""
CONFIGURATION_VARIANCE = Hyperprior(0.01, 0.0)
"""Variance of configuration offsets across problems, relative to all residuals."""
SPREAD_FACTORS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
"""Candidate factors by which posterior spreads are widened."""
PRIOR_REGRET = 0.2
"""Prior loss, summed over problems, in the choice of that factor: the second candidate's."""
MIN_SPREAD, DEFAULT_SPREAD = 0.02, 0.5
"""Lower bound of a prior's error, and the log spread without a prior."""
MIN_P_VALID = 1e-3

Fits = dict[tuple[str, ...], tuple[int, GaussianProcess]]
"""Fitted process and the number of runs it was fitted to, by axes."""


class TransferSearcher(Searcher):
    """Expected improvement under one process over all problems.

    Experience may include runs of the same problem, also of configurations outside the space.

    Args:
        args, named: as for `Searcher`.
        statics: known properties of each configuration before it runs (`Measurement.static`).
        fits: cache of fitted processes, shared by the searches of one kernel.
    """

    uses_prior = True

    def __init__(
        self,
        *args: Any,
        statics: Sequence[Mapping[str, float]] | None = None,
        fits: Fits | None = None,
        **named: Any,
    ) -> None:
        self._statics = statics
        self._fits: Fits = {} if fits is None else fits
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        self._near_measurements, self._near_prior_mean = self._select_measurements()
        self._search_posterior: SearchPosterior | None = None
        self._pooled = 0
        self._refresh_pool()

    @property
    def search_posterior(self) -> SearchPosterior:
        """The posterior of the candidates."""
        if self._search_posterior is None:
            if not set(self.observed) <= set(self._pool.tolist()) or (
                len(self._pool) < len(self.space)
                and len(self.observed) >= REFIT_FACTOR * self._pooled
            ):
                self._refresh_pool()
            with one_blas_thread():
                self._search_posterior = self._posterior_of_candidates(self._known_values())
        return self._search_posterior

    @property
    def min_measurements(self) -> int:
        """Minimum number of measurements, even if the expected regret is small."""
        if self.prior is not None and not self.prior.foreign:
            return 0
        other_problems = {
            m.problem for m in self.other_measurements if m.ok and m.problem != self.problem
        }
        alike = sum(similarity(p, self.problem) for p in other_problems)
        if not self._prior_is_coarse:
            return (
                ORDER_ONLY_IF_SIMILAR
                if alike >= ENOUGH_SIMILAR_PROBLEMS
                else ORDER_ONLY_MEASUREMENTS
            )
        if alike >= MIN_SIMILAR_PROBLEMS:
            return 0
        first = MIN_FIT + 2 * max(math.ceil(math.log2(len(self.space) / SMALL_SPACE)), 0)
        return CHECKED_MEASUREMENTS if other_problems else first

    @property
    def _prior_is_coarse(self) -> bool:
        """Whether the prior is only an estimate."""
        return self.prior is None or self.prior.log_spread >= COARSE_PRIOR_SPREAD

    def choice(self) -> Configuration:
        """Return the configuration to run now: the best measured one, else the most promising."""
        return self.best() or self.space[int(self._pool[self.search_posterior.best])]

    def expected_regret(self) -> float:
        """Return the expected regret of `choice`: how much slower than the optimum, relative.

        Infinite while there are too few measurements to trust the model.
        """
        if len(self._known_values()) < min(self.min_measurements, len(self.space)):
            return math.inf
        return self.search_posterior.expected_regret

    def expected_improvement(self) -> float:
        """Return the expected gain on `best` of one more measurement, relative."""
        if len(self._known_values()) < min(self.min_measurements, len(self.space)):
            return math.inf
        return self.search_posterior.expected_improvement(self._free())

    def _propose(self, n: int) -> list[int]:
        chosen, search_posterior = (
            list[int](),
            self.search_posterior,
        )  # which may look at other candidates now
        while len(chosen) < n:
            free = self._free() & ~np.isin(self._pool, chosen)
            if not free.any():
                others = self.random_indices(n)
                return chosen + [i for i in others if i not in chosen][: n - len(chosen)]
            measured = len(self._known_values()) + len(chosen)
            # what only an estimate speaks for is checked: every other one is unlike all before
            explores = (
                self._prior_is_coarse and measured % 2 == 1 and measured < self.min_measurements
            )
            if explores:
                chosen.append(self._farthest(free & self._probably_valid(free), chosen))
                continue
            log_acquisition = (
                search_posterior.log_acquisition
                if self._prior_is_coarse or measured >= ORDER_ONLY_MEASUREMENTS
                else self._initial_log_success
            )
            chosen.append(int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))]))
        return chosen

    @cached_property
    def _initial_log_success(self) -> np.ndarray:
        """Log expected success of each candidate before the first measurement of this problem."""
        with one_blas_thread():
            return self._posterior_of_candidates({}).log_expected_success

    def _learn(self, new_values: dict[int, float]) -> None:
        self._search_posterior = None

    def _farthest(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate that is farthest from all proposed ones."""
        points = self._points[len(self._near_measurements) :]
        known = points[np.isin(self._pool, [*self.proposed, *chosen])]
        distance = ((points[:, None] - known[None]) ** 2).sum(axis=2).min(axis=1)
        return int(self._pool[np.argmax(np.where(free, distance, -np.inf))])

    def _probably_valid(self, free: np.ndarray) -> np.ndarray:
        """Return a mask of candidates that probably run, at least one of the ``free`` ones."""
        p_valid = self.search_posterior.p_valid
        runs: np.ndarray = p_valid >= min(0.5, p_valid[free].max())
        return runs

    def _free(self) -> np.ndarray:
        """Return a mask of unproposed candidates."""
        return ~np.isin(self._pool, list(self.proposed))

    def _known_values(self) -> dict[int, float]:
        """Return the observations with a known objective."""
        return {i: value for i, value in self.observed.items() if not math.isnan(value)}

    def _select_measurements(self) -> tuple[list[Measurement], np.ndarray]:
        """Return the training runs, nearest problems first, and their prior."""
        far = math.inf if self._prior_is_coarse else MAX_PROBLEM_DISTANCE
        near = [
            m for m in self.other_measurements if problem_distance(m.problem, self.problem) < far
        ]
        useful = [m for m in near if not math.isnan(self.objective.value_of(m))]
        chosen = nearest_first(useful, self.problem)[:MAX_ROWS]
        if self.prior is None or not chosen:
            return chosen, np.zeros(len(chosen))
        if self.prior.log_mean_of is not None:
            return chosen, self.prior.log_mean_of(chosen)
        indices = [self.space.index_or_none(m.config) for m in chosen]  # as good as on this problem
        usual = float(np.median(self.prior.log_mean))
        log_mean = [usual if i is None else self.prior.log_mean[i] for i in indices]
        return chosen, np.array(log_mean)

    def _refresh_pool(self) -> None:
        """Choose the candidates, and encode them and the training runs."""
        size = len(self.space.codes)
        prior, valid = np.zeros(size), np.ones(size)
        if self.prior is not None:
            prior, valid = self.prior.log_mean, np.maximum(self.prior.p_valid, MIN_P_VALID)
        log_acquisition = None if self.prior is None else np.log(valid) - prior
        self._pool, self._pooled = (
            candidate_pool(self, POOL_SIZE, log_acquisition),
            len(self.observed),
        )
        self._prior_mean, self._p_valid = prior[self._pool], valid[self._pool]
        rows = KernelRuns.from_measurements(self._near_measurements) + KernelRuns(
            [self.problem] * len(self._pool),
            [self.space[i] for i in self._pool],
            [{}] * len(self._pool)
            if self._statics is None
            else [self._statics[i] for i in self._pool],
        )
        points, self._axes = rows.points(self.device.specs if self.device else {})
        self._problem_codes = _codes(rows.problems)
        self._config_codes = _codes(rows.configs)
        self._points = points
        self.__dict__.pop("_initial_log_success", None)

    def _posterior_of_candidates(self, observed: Mapping[int, float]) -> SearchPosterior:
        """Return the posterior of all candidates given the observations."""
        position = {number: i for i, number in enumerate(self._pool.tolist())}
        others = (
            self._near_measurements[: max(MAX_ROWS - len(observed), 0)]
            if self._other_problems_help
            else []
        )
        at = np.array(
            [*range(len(others)), *(len(self._near_measurements) + position[i] for i in observed)]
        )
        at = at.astype(int)
        values = np.array([*(self.objective.value_of(m) for m in others), *observed.values()])
        objective = np.full(len(self._pool), np.nan)
        objective[[position[i] for i in observed]] = list(observed.values())
        posterior = self._posterior(at, _log_values(values, self._problem_codes[at]))
        outcomes = [(m.config, m.ok) for m in others]
        outcomes += [(self.space[i], bool(np.isfinite(v))) for i, v in observed.items()]
        return SearchPosterior(self._pool, posterior, self._validity(outcomes), objective)

    @cached_property
    def _other_problems_help(self) -> bool:
        """Whether other problems' runs improve on the prior.

        They do if leave-one-problem-out choices lose clearly less than the prior's. A clear margin
        is needed, because the measured runs are few and were selected by the prior.
        """
        if self._prior_is_coarse or not self._near_measurements:
            return True
        at = np.arange(len(self._near_measurements))
        values = np.array([self.objective.value_of(m) for m in self._near_measurements])
        logs, problem_codes = _log_values(values, self._problem_codes[at]), self._problem_codes[at]
        posterior = self._posterior(at, logs)
        problems = _problem_groups(problem_codes)
        learned_loss = prior_loss = 0.0
        for here, (off, _) in zip(problems, posterior.leave_groups_out(problems), strict=True):
            learned_loss += _mean_regret(logs[None, here], int(np.argmin(logs[here] - off)))
            prior_loss += _mean_regret(
                logs[None, here], int(np.argmin(self._near_prior_mean[here]))
            )
        return len(problems) >= MIN_SIMILAR_PROBLEMS and learned_loss < MAX_LOSS_RATIO * prior_loss

    def _posterior(self, at: np.ndarray, logs: np.ndarray) -> Posterior:
        """Return the posterior of the candidates, given log values measured ``at`` some rows."""
        problem_codes, here = self._problem_codes[at], slice(len(self._near_measurements), None)
        prior_mean = np.concatenate([self._near_prior_mean, self._prior_mean])
        prior_mean = _centered(prior_mean, self._problem_codes)
        scale = self._scale(prior_mean[at], logs, problem_codes)
        X = np.column_stack(
            [self._points, prior_mean / scale, self._config_codes, self._problem_codes]
        )
        level = _problem_medians(logs - prior_mean[at], problem_codes)
        y = logs - prior_mean[at] - np.array([level[i] for i in problem_codes])
        prior = prior_mean[here] + level.get(self._problem_codes[-1], 0.0)
        posterior = Posterior(
            self._fitted(X[at], y / scale), X[at], y, X[here],
            prior=prior, scale=scale, observation_noise=True,
        )  # fmt: skip
        posterior.scale *= (
            _spread_factor(posterior, logs, problem_codes) if len(y) else SPREAD_FACTORS[1]
        )
        return posterior

    def _scale(self, prior_mean: np.ndarray, logs: np.ndarray, problem_codes: np.ndarray) -> float:
        """Return the typical residual of the prior within one problem."""
        if self.prior is not None and not self._prior_is_coarse:
            return max(self.prior.log_spread, MIN_SPREAD)
        if len(logs) < MIN_FIT:
            return DEFAULT_SPREAD if self.prior is None else self.prior.log_spread
        residuals = _centered(logs - prior_mean, problem_codes)
        freedom = max(len(logs) - len(set(problem_codes.tolist())), 1)
        return max(float(np.sqrt((residuals**2).sum() / freedom)), MIN_SPREAD)

    def _fitted(self, X: np.ndarray, y: np.ndarray) -> GaussianProcess:
        """Return a fitted process; it is refitted when the data has grown enough."""
        axes, unfitted = tuple(self._axes), multitask_process(len(self._axes))
        if len(y) < MIN_FIT:
            return unfitted
        rows, process = self._fits.get(axes, (0, unfitted))
        if not rows <= len(y) < REFIT_FACTOR * rows:
            process = process.fitted(X, y, FIT_STEPS)
            self._fits[axes] = len(y), process
        return process

    def _validity(self, outcomes: Sequence[tuple[Configuration, bool]]) -> np.ndarray:
        """Return each candidate's probability to run, given which configurations ran."""
        tries: dict[Configuration, list[bool]] = {}
        for config, ran in outcomes:
            tries.setdefault(config, []).append(ran)
        found = self._p_valid.copy()
        for config, runs in tries.items():
            number = None if all(runs) else self.space.index_or_none(config)
            if number is not None:
                found[self._pool == number] *= (sum(runs) + 0.1) / (len(runs) + 0.2)
        return np.clip(found, MIN_P_VALID, 1.0)


def multitask_process(axes: int) -> GaussianProcess:
    """Return the process; points end with the prior, the configuration and the problem number.

    It has an offset per problem and a smaller one per configuration.
    """
    offsets = (
        GroupCovariance(axes + 1, CONFIGURATION_VARIANCE),
        GroupCovariance(axes + 2, OFFSET.scale),
    )
    return surrogate_process(axes, extra_terms=(LinearCovariance(axes, MULTIPLE), *offsets))


def _codes(things: Sequence[FrozenParameters]) -> np.ndarray:
    number = {thing: float(i) for i, thing in enumerate(dict.fromkeys(things))}
    return np.array([number[thing] for thing in things])


def _log_values(values: np.ndarray, problem_codes: np.ndarray) -> np.ndarray:
    """Return log values; failures get the slowest value of their problem, at least e × median.

    On a problem where nothing ran, all rows get the same value.
    """
    ran = np.isfinite(values)
    logs = np.log(values, where=ran, out=np.zeros(len(values)))
    for problem in set(problem_codes[~ran].tolist()):
        here = problem_codes == problem
        if (here & ran).any():
            worst = max(logs[here & ran].max(), np.median(logs[here & ran]) + 1)
            logs[here & ~ran] = worst
    return logs


def _spread_factor(posterior: Posterior, logs: np.ndarray, problem_codes: np.ndarray) -> float:
    """Return the factor by which spreads must be widened to cover the observed regret.

    Each problem is predicted from the others. The regret of the configuration predicted best is
    compared with its expected regret. Selection favors large errors, which an average over all
    errors would hide.
    """
    rng = np.random.default_rng(0)
    observed_loss, expected_loss = (
        PRIOR_REGRET,
        {d: PRIOR_REGRET * d / SPREAD_FACTORS[1] for d in SPREAD_FACTORS},
    )
    problems = _problem_groups(problem_codes)
    left_out = posterior.leave_groups_out(problems)
    for here, (off, covariance) in zip(problems, left_out, strict=True):
        mean = logs[here] - off
        drawn = rng.standard_normal((DRAWS // 4, len(here))) @ np.linalg.cholesky(covariance).T
        pick = int(np.argmin(mean))
        observed_loss += _mean_regret(logs[None, here], pick)
        for d in SPREAD_FACTORS:
            expected_loss[d] += _mean_regret(mean + d * drawn, pick)
    return next(
        (d for d in SPREAD_FACTORS if expected_loss[d] >= observed_loss), SPREAD_FACTORS[-1]
    )


def _problem_groups(problem_codes: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each problem that has several, unless one problem has all."""
    problems = [np.flatnonzero(problem_codes == problem) for problem in np.unique(problem_codes)]
    return [here for here in problems if 1 < len(here) < len(problem_codes)]


def _mean_regret(logs: np.ndarray, pick: int) -> float:
    """Return the mean regret of ``pick``, relative to the fastest of each row."""
    return float(np.expm1(np.minimum(logs[:, pick] - logs.min(axis=1), 3.0)).mean())


def _problem_medians(logs: np.ndarray, problem_codes: np.ndarray) -> dict[float, float]:
    return {i: float(np.median(logs[problem_codes == i])) for i in set(problem_codes.tolist())}


def _centered(values: np.ndarray, problem_codes: np.ndarray) -> np.ndarray:
    """Return ``values`` minus the mean of their problem."""
    _, inverse = np.unique(problem_codes, return_inverse=True)
    means = np.bincount(inverse, values) / np.bincount(inverse) if len(values) else values
    return values - means[inverse]
