"""The surrogate as a sampler of Optuna (Akiba et al., KDD 2019)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.samplers._base import _process_constraints_after_trial
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.covariance import LinearCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.models.saved.lookup import NONE, PredictorSource
from foretune.objective import Objective
from foretune.search.acquisition import log_expected_improvement, log_probability_below
from foretune.search.optuna.belief import PredictorPrior
from foretune.search.optuna.study_space import SUGGESTED, Dimensions, Observations, StudyHistory
from foretune.search.surrogate import PRIOR_CHECKS
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MULTIPLE,
    OFFSET,
    REFIT_FACTOR,
    one_blas_thread,
    subsample_measurements,
    surrogate_process,
)
from foretune.values import Value

INITIAL_DESIGN_SIZE = 8
"""Trials of the first design."""
MAX_GRID_SIZE = 8000
"""Search spaces up to this size are listed."""
MAX_COVARIANCE_SIZE = 200_000
"""Trials × candidates of one suggestion: some ten milliseconds."""
MIN_CANDIDATES = 500
"""Candidates, however many trials there are."""
EXPANDED_BEST = 5
"""Half of the candidates are near this many of the best trials."""

_SUGGEST_LOCK = threading.Lock()
"""Threads of one process suggest in turn: each knows what the others are about to try."""


class _Fit(NamedTuple):
    search_space: dict[str, BaseDistribution]
    trials: int
    process: GaussianProcess


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

    With a predictor the first trials are those predicted best, and the process learns what is wrong
    with the predictions, and how far they can be trusted at all. The parameters must be called as
    they were in training, and the value be the time in milliseconds, or the ``objective``.

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
        predictor: an object or a name (`foretune.models.saved.lookup`).
        problem: what is computed, for the predictor.
        device: where; None is the device that the predictor learned on.
        objective: what the study minimises, for the predictor.
        search_space: the parameters, so that the very first trial is suggested as a whole; else it
            is the independent sampler's.

    Raises:
        PredictorError, TrackingError, UsageError: the predictor cannot be used.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        n_startup_trials: int = INITIAL_DESIGN_SIZE,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        predictor: PredictorSource = None,
        problem: Mapping[str, Value] | None = None,
        device: Device | None = None,
        objective: Objective = Objective.TIME,
        search_space: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._n_startup_trials = n_startup_trials
        self._independent_sampler = independent_sampler or TPESampler(seed=seed)
        self._constraints_func = constraints_func
        self._prior = None
        if not (predictor is None or predictor == NONE):
            self._prior = PredictorPrior(predictor, problem, device, objective)
        self._search_space = search_space
        self._constants: dict[str, Any] = {}
        """Parameters of one value: the predictor has learned from them, too."""
        self._random_rows: tuple[dict[str, BaseDistribution], np.ndarray] | None = None
        """Random rows of a large search space, kept where each has to be predicted."""
        self._fits: dict[str, _Fit] = {}
        """The last of each process: where the next one starts."""
        self._history: StudyHistory | None = None
        """Of the last study."""

    def reseed_rng(self) -> None:
        """Go on with other random numbers."""
        self._rng = np.random.default_rng()
        self._independent_sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have, without those of one value."""
        space = self._history_of(study).common_parameters() or self._search_space
        single = {name: d for name, d in (space or {}).items() if d.single()}
        self._constants = {name: _only_value(d) for name, d in single.items()}
        return {name: d for name, d in sorted((space or {}).items()) if name not in single}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for the parameters of ``search_space``."""
        if not search_space:
            return {}
        if self._prior is not None and study.directions != [StudyDirection.MINIMIZE]:
            raise UsageError("a predictor knows one objective: minimise its time, or its objective")
        dimensions = Dimensions(search_space)
        with _SUGGEST_LOCK, one_blas_thread():
            evidence = self._history_of(study).read(search_space, dimensions, self._rng)
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

    def _history_of(self, study: Study) -> StudyHistory:
        history = self._history
        if history is None or history.study is not study:
            history = self._history = StudyHistory(study)
        return history

    def _suggest(
        self,
        search_space: dict[str, BaseDistribution],
        dimensions: Dimensions,
        evidence: Observations,
    ) -> np.ndarray:
        """Return the next row."""
        candidates = self._candidates(search_space, dimensions, evidence)
        others = np.vstack([evidence.finished, evidence.running])
        ran, prior = np.isfinite(evidence.losses).any(), self._prior
        if prior is None:
            explores = not ran or len(evidence.finished) < self._n_startup_trials
        else:
            explores = prior.foreign and len(others) in PRIOR_CHECKS
        if explores:
            units, known = dimensions.to_cube(candidates), dimensions.to_cube(others)
            return candidates[self._farthest(units, known)]
        logs, valid = self._predict(dimensions, candidates)
        if not ran:
            return candidates[np.argmin(logs - np.log(valid))]
        score = np.log(valid)
        if evidence.feasible.any():
            posterior, best = self._objective_posterior(
                search_space, dimensions, evidence, candidates, logs
            )
            score += log_expected_improvement(posterior, best)
        if (evidence.violations > 0).any():
            known = np.flatnonzero(np.isfinite(evidence.violations))
            known = known[subsample_measurements(evidence.violations[known], self._rng)]
            X, y = dimensions.points(evidence.finished[known]), evidence.violations[known]
            process = surrogate_process(X.shape[1])
            process = self._fitted("constraints", process, search_space, X, y, evidence)
            constraint = Posterior(process, X, y, dimensions.points(candidates))
            constraint.add(dimensions.points(evidence.running))
            score += log_probability_below(constraint, 0.0)
        return candidates[np.argmax(score)]

    def _objective_posterior(
        self,
        search_space: dict[str, BaseDistribution],
        dimensions: Dimensions,
        evidence: Observations,
        candidates: np.ndarray,
        logs: np.ndarray,
    ) -> tuple[Posterior, float]:
        """Return what is known of the candidates' losses, of which ``logs`` are predicted.

        What the predictions got wrong is learned, in units of their own spread; without a
        predictor the losses are, in units of theirs. A failure counts as the worst of all others,
        at least one unit above the median.

        Returns:
            the posterior, and the least loss so far in the same units.
        """
        known = subsample_measurements(evidence.losses, self._rng)
        rows = np.vstack([evidence.finished[known], evidence.running, candidates])
        losses, ran = evidence.losses[known], np.isfinite(evidence.losses[known])
        X, prior_mean = dimensions.points(rows), np.zeros(len(rows))
        process, scale = surrogate_process(X.shape[1]), float(np.std(losses[ran])) or 1.0
        if self._prior is not None:
            predicted = self._predict(dimensions, rows[: -len(candidates)])[0]
            prior_mean = (np.concatenate([predicted, logs]) - logs.mean()) / evidence.unit
            scale = float(np.std(prior_mean[-len(candidates) :])) or 1.0
            prior_mean /= scale
            amplitude = float(np.clip(self._prior.spread / evidence.unit / scale, 0.2, 1.0))
            axes = X.shape[1]
            process = surrogate_process(axes, amplitude, (OFFSET, LinearCovariance(axes, MULTIPLE)))
            X = np.column_stack([X, prior_mean])
        y = losses / scale
        y[~ran] = max(y[ran].max(), np.median(y[ran]) + 1.0)
        y -= prior_mean[: len(y)]
        offset = float(np.median(y[ran]))
        process = self._fitted(
            "objective", process, search_space, X[: len(y)], y - offset, evidence
        )
        posterior = Posterior(
            process, X[: len(y)], y - offset, X[-len(candidates) :],
            prior=prior_mean[-len(candidates) :] + offset,
        )  # fmt: skip
        posterior.add(X[len(y) : -len(candidates)])
        return posterior, float(evidence.losses[evidence.feasible].min()) / scale

    def _predict(self, dimensions: Dimensions, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted log values of rows, and how likely each runs."""
        if self._prior is None or not len(rows):
            return np.zeros(len(rows)), np.ones(len(rows))
        return self._prior.predict([{**self._constants, **dimensions.params(row)} for row in rows])

    def _candidates(
        self,
        search_space: dict[str, BaseDistribution],
        dimensions: Dimensions,
        evidence: Observations,
    ) -> np.ndarray:
        """Return rows to choose from: of a finite search space, such as were not tried."""
        n = int(
            np.clip(
                MAX_COVARIANCE_SIZE / max(len(evidence.finished), 1), MIN_CANDIDATES, MAX_GRID_SIZE
            )
        )
        listed = np.prod(dimensions.sizes) <= MAX_GRID_SIZE
        if listed:
            rows = dimensions.grid()
        elif self._prior is None:
            rows = dimensions.random(n // 2, self._rng)
        else:
            n = MIN_CANDIDATES
            if self._random_rows is None or self._random_rows[0] != search_space:
                self._random_rows = search_space, dimensions.random(MAX_GRID_SIZE, self._rng)
            rows = self._random_rows[1]
        near = rows[:0]
        if evidence.feasible.any() and not (listed and len(rows) <= n):
            best = np.argsort(np.where(evidence.feasible, evidence.losses, np.inf))
            best = best[: min(EXPANDED_BEST, evidence.feasible.sum())]
            near = dimensions.neighbors(evidence.finished[best], n // 2, self._rng)
        if not evidence.repeatable:
            taken = {row.tobytes() for row in np.vstack([evidence.finished, evidence.running])}
            free = [row.tobytes() not in taken for row in rows]
            rows = rows[free] if any(free) else rows
            near = near[[row.tobytes() not in taken for row in near]]
        if self._prior is None and len(rows) > n:
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
        self,
        key: str,
        process: GaussianProcess,
        search_space: dict[str, BaseDistribution],
        X: np.ndarray,
        y: np.ndarray,
        evidence: Observations,
    ) -> GaussianProcess:
        """Return the process with the likeliest scales, fitted anew when there is much more."""
        last, trials = self._fits.get(key), len(evidence.finished)
        if last and last.search_space == search_space:
            process = last.process
            if last.trials <= trials < REFIT_FACTOR * last.trials:
                return process
        process = process.fitted(X, y, FIT_STEPS)
        self._fits[key] = _Fit(search_space, trials, process)
        return process


def _only_value(distribution: BaseDistribution) -> Any:
    """Return the value of a distribution that has one."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    return distribution.low
