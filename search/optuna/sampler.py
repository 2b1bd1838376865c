"""The surrogate search as an Optuna sampler (Akiba et al., KDD 2019)."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.gaussian_process import Posterior
from foretune.models.guides.request import NONE
from foretune.models.saved.lookup import PredictorSource
from foretune.objective import Objective
from foretune.search.blas_threads import one_blas_thread
from foretune.search.design import farthest
from foretune.search.optuna.dimensions import Dimensions
from foretune.search.optuna.predictor_prior import PredictorPrior
from foretune.search.optuna.study_history import SUGGESTED, Observations, StudyHistory
from foretune.search.posterior import log_expected_improvement, log_probability_below
from foretune.search.prior import PriorValues
from foretune.search.searcher import PRIOR_CHECKS
from foretune.search.surrogate_model import (
    Evidence,
    FailureRule,
    Points,
    PriorScale,
    SurrogateModel,
    subsample_measurements,
    surrogate_process,
)
from foretune.values import Value

INITIAL_DESIGN_SIZE = 8  # trials of the initial design
MAX_GRID_SIZE = 8000  # maximum size of a search space that is enumerated
MAX_COVARIANCE_SIZE = 200_000
"""Maximum trials × candidates per suggestion; this many take about ten milliseconds."""
MIN_CANDIDATES = 500  # minimum number of candidates
EXPANDED_BEST = 5  # half of the candidates are near this many of the best trials
FAILURES_ARE_BAD = FailureRule(margin=None, shift_losses=False)

_SUGGEST_LOCK = threading.Lock()
"""Threads of one process suggest one at a time, so that each knows the others' running trials."""


@dataclass(frozen=True)
class _RandomRows:
    """Random rows of a large search space."""

    search_space: Mapping[str, BaseDistribution]
    rows: np.ndarray


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
        self._random_rows: _RandomRows | None = None
        self._model = SurrogateModel()
        """Keeps the last fit of each process, from which the next one starts."""
        self._fitted_space: Mapping[str, BaseDistribution] = {}
        """The search space of the fits."""
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
        space = self._history_of(study).common_parameters() or self._search_space or {}
        self._constants = {}
        varying: dict[str, BaseDistribution] = {}
        for name, distribution in sorted(space.items()):
            if distribution.single():
                only_value = getattr(distribution, "low", 0.0)  # 0 is the index of the only choice
                self._constants[name] = distribution.to_external_repr(only_value)
            else:
                varying[name] = distribution
        return varying

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
        """Return the row to try next."""
        candidates = self._candidates(dimensions, evidence)
        any_ran = bool(np.isfinite(evidence.losses).any())

        # The initial design, or a look at where the predictor was not checked yet.
        if self._explores(evidence, any_ran):
            others = np.vstack([evidence.finished, evidence.running])
            if not len(others):
                return candidates[self._rng.integers(len(candidates))]
            positions = dimensions.to_cube(candidates)
            known_positions = dimensions.to_cube(others)
            return candidates[farthest(positions, known_positions, periodic=True)]

        # Before the first success, only the predictor tells candidates apart.
        predicted = self._predict(dimensions, candidates)
        if not any_ran:
            return candidates[np.argmin(predicted.log_mean - np.log(predicted.p_valid))]

        # Expected improvement, times the probabilities to run and to satisfy the constraints.
        if dimensions.search_space != self._fitted_space:
            self._model = SurrogateModel()
            self._fitted_space = dimensions.search_space
        score = np.log(predicted.p_valid)
        if evidence.feasible.any():
            score += self._log_improvement(dimensions, evidence, candidates, predicted.log_mean)
        if (evidence.violations > 0).any():
            score += self._log_probability_feasible(dimensions, evidence, candidates)
        return candidates[np.argmax(score)]

    def _explores(self, evidence: Observations, any_ran: bool) -> bool:
        """Whether the next trial is far from all others."""
        if self._prior is None:
            return not any_ran or len(evidence.finished) < self._n_startup_trials
        count = len(evidence.finished) + len(evidence.running)
        return self._prior.foreign and count in PRIOR_CHECKS

    def _log_improvement(
        self,
        dimensions: Dimensions,
        evidence: Observations,
        candidates: np.ndarray,
        log_mean: np.ndarray,
    ) -> np.ndarray:
        """Return the log expected improvement of ``candidates`` on the best feasible trial.

        ``log_mean`` has the candidates' predicted log values; zeros without a predictor.
        """
        known = subsample_measurements(evidence.losses, self._rng)
        center = float(log_mean.mean())
        candidate_points = self._points(dimensions, evidence, candidates, log_mean - center)
        prior_scale = None
        if self._prior is not None and candidate_points.prior_mean is not None:
            spread = self._prior.spread / evidence.unit
            prior_scale = PriorScale.of_prior(candidate_points.prior_mean, spread)

        def points_of(rows: np.ndarray) -> Points:
            row_mean = self._predict(dimensions, rows).log_mean
            return self._points(dimensions, evidence, rows, row_mean - center)

        posterior = self._model.condition(
            Evidence(points_of(evidence.finished[known]), evidence.losses[known], FAILURES_ARE_BAD),
            candidate_points,
            key="objective",
            n_measured=len(evidence.finished),
            prior_scale=prior_scale,
        )
        best_loss = float(evidence.losses[evidence.feasible].min())
        with posterior.pending(points_of(evidence.running)) as with_running:
            return log_expected_improvement(with_running, best_loss)

    def _points(
        self,
        dimensions: Dimensions,
        evidence: Observations,
        rows: np.ndarray,
        predicted: np.ndarray,
    ) -> Points:
        """Return rows as the process sees them; ``predicted`` are log values around zero."""
        if self._prior is None:
            return Points(dimensions.points(rows))
        return Points(dimensions.points(rows), prior_mean=predicted / evidence.unit)

    def _log_probability_feasible(
        self, dimensions: Dimensions, evidence: Observations, candidates: np.ndarray
    ) -> np.ndarray:
        """Return the log probability of each candidate to satisfy the constraints."""
        known = np.flatnonzero(np.isfinite(evidence.violations))
        known = known[subsample_measurements(evidence.violations[known], self._rng)]
        violations = evidence.violations[known]
        points = Points(dimensions.points(evidence.finished[known]))
        inputs = points.inputs(unit=1.0)

        process = self._model.fits.fitted(
            "constraints",
            start=surrogate_process(points),
            inputs=inputs,
            targets=violations,
            n_measured=len(evidence.finished),
        )
        posterior = Posterior(process, inputs, violations, dimensions.points(candidates))
        posterior.add(dimensions.points(evidence.running))
        return log_probability_below(posterior, 0.0)

    def _predict(self, dimensions: Dimensions, rows: np.ndarray) -> PriorValues:
        """Return what is predicted of rows; without a predictor, all are alike."""
        if self._prior is None or not len(rows):
            return PriorValues(np.zeros(len(rows)), p_valid=np.ones(len(rows)))
        return self._prior.predict([{**self._constants, **dimensions.params(row)} for row in rows])

    def _candidates(self, dimensions: Dimensions, evidence: Observations) -> np.ndarray:
        """Return candidate rows; in a finite search space, untried ones only.

        They are the whole grid if it is small, else random rows and neighbors of the best.
        """
        n_affordable = MAX_COVARIANCE_SIZE / max(len(evidence.finished), 1)
        n = int(np.clip(n_affordable, MIN_CANDIDATES, MAX_GRID_SIZE))
        grid_size = math.prod(dimensions.sizes.tolist())  # NumPy would overflow
        is_listed = grid_size <= MAX_GRID_SIZE
        if is_listed:
            rows = dimensions.grid()
        elif self._prior is None:
            rows = dimensions.random(n // 2, self._rng)
        else:
            n = MIN_CANDIDATES
            rows = self._predicted_rows(dimensions)

        neighbors = rows[:0]
        if evidence.feasible.any() and not (is_listed and len(rows) <= n):
            neighbors = self._neighbors_of_best(dimensions, evidence, n // 2)

        if not evidence.repeatable:
            tried = {row.tobytes() for row in np.vstack([evidence.finished, evidence.running])}
            untried = np.array([row.tobytes() not in tried for row in rows], dtype=bool)
            if untried.any():  # else the search space is exhausted
                rows = rows[untried]
            is_new = np.array([row.tobytes() not in tried for row in neighbors], dtype=bool)
            neighbors = neighbors[is_new]

        if self._prior is None and len(rows) > n:
            rows = rows[self._rng.choice(len(rows), n // 2, replace=False)]
        return np.vstack([rows, neighbors])

    def _predicted_rows(self, dimensions: Dimensions) -> np.ndarray:
        """Return random rows of a large search space, always the same: each is predicted once."""
        if self._random_rows is None or self._random_rows.search_space != dimensions.search_space:
            rows = dimensions.random(MAX_GRID_SIZE, self._rng)
            self._random_rows = _RandomRows(dimensions.search_space, rows)
        return self._random_rows.rows

    def _neighbors_of_best(
        self, dimensions: Dimensions, evidence: Observations, n: int
    ) -> np.ndarray:
        feasible_losses = np.where(evidence.feasible, evidence.losses, np.inf)
        n_best = min(EXPANDED_BEST, evidence.feasible.sum())
        best = np.argsort(feasible_losses)[:n_best]
        return dimensions.neighbors(evidence.finished[best], n, self._rng)
