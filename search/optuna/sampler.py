"""The surrogate search as an Optuna sampler (Akiba et al., KDD 2019)."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.covariance import LinearCovariance
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.models.guides.guide import make_guide
from foretune.models.saved.lookup import NONE, PredictorSource, read_model
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.search.optuna.study_space import SUGGESTED, Dimensions, Observations, StudyHistory
from foretune.search.posterior import log_expected_improvement, log_probability_below
from foretune.search.prior import predict_runs
from foretune.search.searcher import PRIOR_CHECKS
from foretune.search.surrogate_process import (
    FIT_STEPS,
    MULTIPLE,
    OFFSET,
    REFIT_FACTOR,
    one_blas_thread,
    subsample_measurements,
    surrogate_process,
)
from foretune.space import Configuration
from foretune.values import Value

MIN_P_VALID = 0.05  # lower bound of a predicted probability to run


class PredictorPrior:
    """Predicts log values of a problem's configurations, each once.

    ``named`` is the predictor or any model (`foretune.models.saved.lookup`). ``device`` is by
    default the predictor's only training device, or none for other models. Raises PredictorError,
    TrackingError, UsageError if there is no such predictor, no problem is given, or the predictor
    has several training devices and none is named.
    """

    def __init__(
        self,
        named: PredictorSource,
        problem: Mapping[str, Value] | None,
        device: Device | None = None,
        objective: Objective = Objective.TIME,
    ) -> None:
        if problem is None:
            raise UsageError("a predictor needs the problem: give problem={'M': …, 'N': …}")
        guide = make_guide(read_model(named), device)
        self._problem, self._objective = Problem(problem), objective
        self._guide = guide
        self._known: dict[Configuration, tuple[float, float]] = {}
        self.foreign = bool(guide.mismatch)
        """Whether it comes from another device, which the sampler checks early."""
        self.spread = guide.log_spread()  # standard deviation of its log errors

    def predict(self, params: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted log values and probabilities to run.

        Raises PredictorError if a parameter that it learned from is missing.
        """
        configs = [Configuration(p) for p in params]
        if new := [c for c in dict.fromkeys(configs) if c not in self._known]:
            rows = KernelRuns([self._problem] * len(new), new, [{}] * len(new))
            predicted = predict_runs(self._guide, rows, self._objective)
            self._known.update(
                zip(new, zip(*(s.tolist() for s in predicted), strict=True), strict=True)
            )
        logs, valid = np.array([self._known[c] for c in configs]).reshape(-1, 2).T
        return logs, np.maximum(valid, MIN_P_VALID)


INITIAL_DESIGN_SIZE = 8  # trials of the initial design
MAX_GRID_SIZE = 8000  # maximum size of a search space that is enumerated
MAX_COVARIANCE_SIZE = 200_000
"""Maximum trials × candidates per suggestion; this many take about ten milliseconds."""
MIN_CANDIDATES = 500  # minimum number of candidates
EXPANDED_BEST = 5  # half of the candidates are near this many of the best trials

_SUGGEST_LOCK = threading.Lock()
"""Threads of one process suggest one at a time, so that each knows the others' running trials."""


class _Fit(NamedTuple):
    search_space: Mapping[str, BaseDistribution]
    trials: int
    process: GaussianProcess


class SurrogateSampler(BaseSampler):
    """Suggests the values of largest expected improvement under a Gaussian process.

    A space-filling initial design comes first. Then a Gaussian process models the objective, or its
    logarithm if all values are positive. The next trial maximizes the expected improvement (Jones,
    Schonlau and Welch, Journal of Global Optimization 13, 1998). Numbers in a categorical parameter
    are ordered: 64 is between 32 and 128.

    - Constraints (``Trial.set_constraint``) are learned by a second process. Candidates are
      weighted by their probability to satisfy them (Gardner et al., ICML 2014). A trial that
      violates one is never the incumbent.
    - Failed trials count as at least as bad as the worst, so that their neighbors are avoided.
    - Pruned trials count as their last report, but not better than the median nor worse than the
      worst, because others were better when they were stopped.
    - Running trials are assumed to end as predicted.
    - With several objectives, each suggestion uses another random weighting (ParEGO; Knowles, IEEE
      Transactions on Evolutionary Computation 10, 2006).
    - In a finite search space that all trials share, no configuration is repeated.

    With a predictor, the first trials are the best predictions, and the process learns its errors.
    Parameter names must be those of the training data, and the study must minimize the time in
    milliseconds, or ``objective``.

    All state comes from the study, so several processes may share a storage, and a study may
    continue with a new sampler.

    Example::

        study = optuna.create_study(sampler=SurrogateSampler(seed=0))
        study.optimize(objective, n_trials=100)

    Args:
        seed: seed of all random choices.
        n_startup_trials: finished trials before the process is used; enqueued ones count.
        independent_sampler: suggests the first trial, and parameters that not all trials have; by
            default ``TPESampler``.
        predictor: an object or a name (`foretune.models.saved.lookup`).
        problem: the problem that is tuned, for the predictor.
        device: the device; None is the predictor's only training device.
        objective: the value that the study minimizes, for the predictor.
        search_space: the parameters, so that the first trial is suggested as a whole; otherwise the
            independent sampler suggests it.

    Raises PredictorError, TrackingError, UsageError if the predictor cannot be used.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        n_startup_trials: int = INITIAL_DESIGN_SIZE,
        independent_sampler: BaseSampler | None = None,
        predictor: PredictorSource = None,
        problem: Mapping[str, Value] | None = None,
        device: Device | None = None,
        objective: Objective = Objective.TIME,
        search_space: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._n_startup_trials = n_startup_trials
        self._independent_sampler = independent_sampler or TPESampler(seed=seed)
        self._prior = None
        if not (predictor is None or predictor == NONE):
            self._prior = PredictorPrior(predictor, problem, device, objective)
        self._search_space = search_space
        self._constants: dict[str, Any] = {}
        """Parameters with one value, which the predictor also needs."""
        self._random_rows: tuple[Mapping[str, BaseDistribution], np.ndarray] | None = None
        """Random rows of a large search space, kept because each is predicted."""
        self._fits: dict[str, _Fit] = {}
        """The last fit of each process, from which the next one starts."""
        self._history: StudyHistory | None = None
        """The last study's data."""

    def reseed_rng(self) -> None:
        """Use other random numbers."""
        self._rng = np.random.default_rng()
        self._independent_sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have, without those with one value."""
        space = self._history_of(study).common_parameters() or self._search_space
        single = {name: d for name, d in (space or {}).items() if d.single()}
        only = {name: getattr(d, "low", 0.0) for name, d in single.items()}  # 0: the only choice
        self._constants = {name: single[name].to_external_repr(v) for name, v in only.items()}
        return {name: d for name, d in sorted((space or {}).items()) if name not in single}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for the parameters of ``search_space``."""
        if not search_space:
            return {}
        if self._prior is not None and study.directions != [StudyDirection.MINIMIZE]:
            raise UsageError("a predictor needs a single objective: the time, or objective")
        dimensions = Dimensions(search_space)
        with _SUGGEST_LOCK, one_blas_thread():
            evidence = self._history_of(study).read(dimensions, self._rng)
            row = self._suggest(dimensions, evidence)
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
        """Return a value for one parameter, independent of the others."""
        sampler = self._independent_sampler
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Call the independent sampler's `before_trial`."""
        self._independent_sampler.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Call the independent sampler's `after_trial`."""
        self._independent_sampler.after_trial(study, trial, state, values)

    def _history_of(self, study: Study) -> StudyHistory:
        history = self._history
        if history is None or history.study is not study:
            history = self._history = StudyHistory(study)
        return history

    def _suggest(self, dimensions: Dimensions, evidence: Observations) -> np.ndarray:
        candidates = self._candidates(dimensions, evidence)
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
            posterior, best = self._objective_posterior(dimensions, evidence, candidates, logs)
            score += log_expected_improvement(posterior, best)
        if (evidence.violations > 0).any():
            known = np.flatnonzero(np.isfinite(evidence.violations))
            known = known[subsample_measurements(evidence.violations[known], self._rng)]
            X, y = dimensions.points(evidence.finished[known]), evidence.violations[known]
            process = surrogate_process(X.shape[1])
            process = self._fitted("constraints", process, dimensions, X, y, len(evidence.finished))
            constraint = Posterior(process, X, y, dimensions.points(candidates))
            constraint.add(dimensions.points(evidence.running))
            score += log_probability_below(constraint, 0.0)
        return candidates[np.argmax(score)]

    def _objective_posterior(
        self,
        dimensions: Dimensions,
        evidence: Observations,
        candidates: np.ndarray,
        logs: np.ndarray,
    ) -> tuple[Posterior, float]:
        """Return the candidates' posterior loss, and the smallest loss so far in its units.

        The process models the errors of the predictions ``logs`` in units of their spread, or the
        scaled losses without a predictor. A failure counts as the worst of all others, at least one
        unit above the median.
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
            "objective", process, dimensions, X[: len(y)], y - offset, len(evidence.finished)
        )
        posterior = Posterior(
            process,
            X[: len(y)],
            y - offset,
            X[-len(candidates) :],
            prior=prior_mean[-len(candidates) :] + offset,
        )
        posterior.add(X[len(y) : -len(candidates)])
        return posterior, float(evidence.losses[evidence.feasible].min()) / scale

    def _predict(self, dimensions: Dimensions, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted log values of rows, and their probabilities to run."""
        if self._prior is None or not len(rows):
            return np.zeros(len(rows)), np.ones(len(rows))
        return self._prior.predict([{**self._constants, **dimensions.params(row)} for row in rows])

    def _candidates(self, dimensions: Dimensions, evidence: Observations) -> np.ndarray:
        """Return candidate rows; in a finite search space, untried ones only."""
        affordable = MAX_COVARIANCE_SIZE / max(len(evidence.finished), 1)
        n = int(np.clip(affordable, MIN_CANDIDATES, MAX_GRID_SIZE))
        listed = math.prod(dimensions.sizes.tolist()) <= MAX_GRID_SIZE  # NumPy would overflow
        if listed:
            rows = dimensions.grid()
        elif self._prior is None:
            rows = dimensions.random(n // 2, self._rng)
        else:
            n = MIN_CANDIDATES
            if self._random_rows is None or self._random_rows[0] != dimensions.search_space:
                grid = dimensions.random(MAX_GRID_SIZE, self._rng)
                self._random_rows = dimensions.search_space, grid
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
        """Return the row that is farthest from all others.

        Distances wrap around the cube, because otherwise its corners come first.
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
        dimensions: Dimensions,
        X: np.ndarray,
        y: np.ndarray,
        trials: int,
    ) -> GaussianProcess:
        """Return a fitted process; it is refitted when there is enough new data."""
        last = self._fits.get(key)
        if last and last.search_space == dimensions.search_space:
            process = last.process
            if last.trials <= trials < REFIT_FACTOR * last.trials:
                return process
        process = process.fitted(X, y, FIT_STEPS)
        self._fits[key] = _Fit(dimensions.search_space, trials, process)
        return process
