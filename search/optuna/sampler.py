"""The surrogate as a sampler of Optuna (Akiba et al., KDD 2019)."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.samplers._base import _process_constraints_after_trial
from optuna.search_space import intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from foretune.models.process.posterior import Posterior
from foretune.models.process.process import Process
from foretune.search.acquisition import log_expected_improvement, log_probability_below
from foretune.search.optuna.dimensions import Dimensions
from foretune.search.optuna.evidence import SUGGESTED, Evidence, read_evidence
from foretune.search.surrogate_process import (
    REFIT,
    STEPS,
    most_telling,
    one_thread,
    surrogate_process,
)

FIRST = 8
"""Trials of the first design."""
GRID = 8000
"""Search spaces up to this size are listed."""
WORK = 200_000
"""Trials × candidates of one suggestion: some ten milliseconds."""
LEAST = 1000
"""Candidates, however many trials there are."""
BEST = 5
"""Half of the candidates are near this many of the best trials."""

_TURN = threading.Lock()
"""Threads of one process suggest in turn: each knows what the others are about to try."""


class _Fit(NamedTuple):
    search_space: dict[str, BaseDistribution]
    trials: int
    process: Process


class SurrogateSampler(BaseSampler):
    """Suggests what a Gaussian process expects to improve most on the best trial so far.

    A first design spreads the trials as far apart as they will go. Then a Gaussian process learns
    the objective, its logarithm where all values are positive, and the candidate of largest
    expected improvement is next (Jones, Schonlau and Welch, Journal of Global Optimization 13,
    1998). A categorical parameter of numbers is one of sizes: 64 is between 32 and 128.

    - Constraints (``Trial.set_constraint`` or ``constraints_func``) are learned by a second
      process: candidates count by their probability to keep them (Gardner et al., ICML 2014), and
      a trial that broke one is never the best so far.
    - Failed trials count as the worst of all others or worse: their neighbours are avoided.
    - Pruned trials count as their last report says, though neither better than the median nor
      worse than the worst: they were stopped because others were better by then.
    - Running trials are expected to end as predicted.
    - Of several objectives, each suggestion improves another random weighting (ParEGO; Knowles,
      IEEE Transactions on Evolutionary Computation 10, 2006).
    - A finite search space that every trial has as a whole is searched without repetition.

    All this is read from the study each time, so that several processes may share a storage and a
    study may go on with a new sampler.

    Example::

        study = optuna.create_study(sampler=SurrogateSampler(seed=0))
        study.optimize(objective, n_trials=100)

    Args:
        seed: of everything random.
        n_startup_trials: finished trials before the process is asked; enqueued ones count.
        independent_sampler: suggests the first trial, and parameters that not all trials have; by
            default ``TPESampler``.
        constraints_func: returns a finished trial's constraints, kept where at most zero.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        n_startup_trials: int = FIRST,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._n_startup_trials = n_startup_trials
        self._independent_sampler = independent_sampler or TPESampler(seed=seed)
        self._constraints_func = constraints_func
        self._fits: dict[str, _Fit] = {}
        """The last of each process: where the next one starts."""

    def reseed_rng(self) -> None:
        """Go on with other random numbers."""
        self._rng = np.random.default_rng()
        self._independent_sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have, without those of one value."""
        space = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: d for name, d in space.items() if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for the parameters of ``search_space``."""
        if not search_space:
            return {}
        dimensions = Dimensions(search_space)
        with _TURN, one_thread():
            evidence = read_evidence(study, search_space, dimensions, self._rng)
            row = self._suggest(search_space, dimensions, evidence)
            suggested = dict(zip(search_space, row.tolist(), strict=True))
            study._storage.set_trial_system_attr(trial._trial_id, SUGGESTED, suggested)
        return dimensions.params(row)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value for one parameter, whatever the others are."""
        sampler = self._independent_sampler
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Pass it on to the independent sampler."""
        self._independent_sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Store the constraints, and pass it on to the independent sampler."""
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)
        self._independent_sampler.after_trial(study, trial, state, values)

    def _suggest(
        self,
        search_space: dict[str, BaseDistribution],
        dimensions: Dimensions,
        evidence: Evidence,
    ) -> np.ndarray:
        """Return the next row."""
        candidates = self._candidates(dimensions, evidence)
        points = dimensions.points(candidates)
        ran = np.isfinite(evidence.losses)
        if len(ran) < self._n_startup_trials or not ran.any():
            others = np.vstack([evidence.tried, evidence.under_way])
            units, known = dimensions.cube(candidates), dimensions.cube(others)
            return candidates[self._farthest(units, known)]
        under_way = dimensions.points(evidence.under_way)

        def believe(what: str, known: np.ndarray, y: np.ndarray) -> Posterior:
            X = dimensions.points(evidence.tried[known])
            posterior = Posterior(self._fitted(what, search_space, X, y), X, y, points)
            posterior.add(under_way)
            return posterior

        score = np.zeros(len(candidates))
        if evidence.good.any():
            known = most_telling(evidence.losses, self._rng)
            y = _standardised(evidence.losses)
            best = y[evidence.good].min()
            score += log_expected_improvement(believe("objective", known, y[known]), best)
        if (evidence.violations > 0).any():
            known = np.flatnonzero(np.isfinite(evidence.violations))
            known = known[most_telling(evidence.violations[known], self._rng)]
            kept = believe("constraints", known, evidence.violations[known])
            score += log_probability_below(kept, 0.0)
        return candidates[np.argmax(score)]

    def _candidates(self, dimensions: Dimensions, evidence: Evidence) -> np.ndarray:
        """Return rows to choose from: of a finite search space, such as were not tried."""
        n = int(np.clip(WORK / max(len(evidence.tried), 1), LEAST, GRID))
        listed = np.prod(dimensions.sizes) <= GRID
        rows = dimensions.grid() if listed else dimensions.random(n // 2, self._rng)
        near = rows[:0]
        if evidence.good.any() and not (listed and len(rows) <= n):
            best = np.argsort(np.where(evidence.good, evidence.losses, np.inf))
            best = best[: min(BEST, evidence.good.sum())]
            near = dimensions.near(evidence.tried[best], n // 2, self._rng)
        if not evidence.repeatable:
            gone = {row.tobytes() for row in np.vstack([evidence.tried, evidence.under_way])}
            free = [row.tobytes() not in gone for row in rows]
            rows = rows[free] if any(free) else rows
            near = near[[row.tobytes() not in gone for row in near]]
        if len(rows) > n:
            rows = rows[self._rng.choice(len(rows), n // 2, replace=False)]
        return np.vstack([rows, near])

    def _farthest(self, units: np.ndarray, others: np.ndarray) -> int:
        """Return which place in the cube is farthest from all others.

        The cube is closed to a torus: else its corners come first.
        """
        if not len(others):
            return int(self._rng.integers(len(units)))
        apart = np.abs(units[:, None] - others)
        squares = np.minimum(apart, 1 - apart) ** 2
        return int(np.argmax(squares.sum(axis=2).min(axis=1)))

    def _fitted(
        self, what: str, search_space: dict[str, BaseDistribution], X: np.ndarray, y: np.ndarray
    ) -> Process:
        """Return the process with the likeliest scales, fitted anew when there is much more."""
        process, last = surrogate_process(X.shape[1]), self._fits.get(what)
        if last and last.search_space == search_space:
            process = last.process
            if last.trials <= len(y) < REFIT * last.trials:
                return process
        process = process.fitted(X, y, STEPS)
        self._fits[what] = _Fit(search_space, len(y), process)
        return process


def _standardised(losses: np.ndarray) -> np.ndarray:
    """Return losses of median zero; a failure's is the worst of all others, at least one."""
    ran = np.isfinite(losses)
    y = (losses - np.median(losses[ran])) / (np.std(losses[ran]) or 1.0)
    y[~ran] = max(y[ran].max(), 1.0)
    return y
