"""A study's trials as rows with losses, as the sampler needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from foretune.search.optuna.dimensions import Dimensions
from foretune.search.pareto import AUGMENTATION

SUGGESTED = "foretune:suggested"
"""Trial attribute with the suggested row, by name, for trials that still run."""
READ_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
MAX_LOSS = 4.0  # upper bound of losses: much larger ones say nothing about the best
MAX_VIOLATION = 3.0  # bounds of scaled constraints
MAX_RESULT = 1e100  # larger values and NaN are failures


@dataclass(frozen=True)
class Observations:
    """Rows of `Dimensions` and their results.

    Losses are scaled: 0 is the best trial, 1 the median.

    Attributes:
        finished: rows of finished trials.
        losses: their losses; infinity is a failure.
        violations: their worst constraint in units of its usual size, satisfied up to zero; NaN if
            unknown.
        running: rows of trials that still run.
        repeatable: whether trials have more parameters than their row, so that a row may be tried
            again.
        unit: distance of a loss of 0 and one of 1 in the first objective's own units (in logarithms
            if all its values are positive).
    """

    finished: np.ndarray
    losses: np.ndarray
    violations: np.ndarray
    running: np.ndarray
    repeatable: bool
    unit: float

    @property
    def feasible(self) -> np.ndarray:
        """Mask of the trials that ran and satisfied the constraints."""
        return np.isfinite(self.losses) & ~(self.violations > 0)


@dataclass(frozen=True)
class _TrialRow:
    """What a finished trial says of a search space.

    ``row`` is None if the trial does not have all its parameters; ``has_more``: it has others.
    """

    row: list[float] | None
    has_more: bool


@dataclass(frozen=True)
class _ScaledLosses:
    losses: np.ndarray
    unit: float


class StudyHistory:
    """Reads one study repeatedly; finished trials are cached."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._common = IntersectionSearchSpace()
        self._search_space: Mapping[str, BaseDistribution] = {}
        self._finished: dict[int, _TrialRow] = {}
        """Finished trials by number, as rows of `_search_space`."""

    def common_parameters(self) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have."""
        return self._common.calculate(self.study)

    def read(self, dimensions: Dimensions, rng: np.random.Generator) -> Observations:
        """Read the trials that have or were suggested a value for every parameter.

        ``rng`` draws the weights of several objectives.
        """
        if dimensions.search_space != self._search_space:
            self._search_space = dict(dimensions.search_space)
            self._finished = {}

        finished: list[FrozenTrial] = []
        finished_rows: list[list[float]] = []
        running_rows: list[list[float]] = []
        repeatable = False
        for trial in self.study.get_trials(deepcopy=False, states=READ_STATES):
            if trial.state == TrialState.RUNNING:
                running_row = _row(trial, self._search_space)
                if running_row is not None:
                    running_rows.append(running_row)
                continue
            known = self._read_finished(trial)
            if known.row is not None:
                finished_rows.append(known.row)
                finished.append(trial)
                repeatable |= known.has_more

        # Through the cube and back: rounded in the same way, equal rows compare equal.
        all_rows = np.array(finished_rows + running_rows).reshape(-1, len(self._search_space))
        rounded = dimensions.from_cube(dimensions.to_cube(all_rows))
        scaled = _scaled_losses(finished, self.study.directions, rng)
        return Observations(
            finished=rounded[: len(finished)],
            losses=scaled.losses,
            violations=_violations(finished),
            running=rounded[len(finished) :],
            repeatable=repeatable,
            unit=scaled.unit,
        )

    def _read_finished(self, trial: FrozenTrial) -> _TrialRow:
        known = self._finished.get(trial.number)
        if known is None:
            row = _row(trial, self._search_space)
            known = _TrialRow(row, has_more=_has_more(trial, self._search_space))
            self._finished[trial.number] = known
        return known


def _row(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> list[float] | None:
    """Return the trial's row; None if it lacks a parameter, or has other bounds."""
    distributions = trial.distributions
    for name, distribution in search_space.items():
        if isinstance(distribution, CategoricalDistribution):
            continue  # no study has two lists of choices of one name
        if distributions.get(name, distribution) != distribution:
            return None

    values: dict[str, float] = dict(trial.system_attrs.get(SUGGESTED, {}))
    for name, value in trial.params.items():
        values[name] = distributions[name].to_internal_repr(value)
    if search_space.keys() <= values.keys():
        return [values[name] for name in search_space]
    return None


def _has_more(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> bool:
    return any(
        name not in search_space and not distribution.single()
        for name, distribution in trial.distributions.items()
    )


def _scaled_losses(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection], rng: np.random.Generator
) -> _ScaledLosses:
    """Return one loss per trial; several objectives get random weights (ParEGO)."""
    values = _objective_values(trials, n_objectives=len(directions))
    is_complete = np.array([trial.state == TrialState.COMPLETE for trial in trials], dtype=bool)
    complete = is_complete & np.isfinite(values).all(axis=1)
    if not complete.any():
        return _ScaledLosses(np.full(len(trials), np.inf), unit=1.0)

    # 1. Every objective is minimized, on a log scale if all its values are positive.
    positive = (values[complete] > 0).all(axis=0)
    logs = np.log(np.where(values > 0, values, np.nan))
    minimized = np.where(positive, logs, values)
    minimized *= [1.0 if d == StudyDirection.MINIMIZE else -1.0 for d in directions]

    # 2. Every objective gets the same scale: 0 is its best value, 1 its median.
    best = minimized[complete].min(axis=0)
    to_median = np.median(minimized[complete], axis=0) - best
    to_worst = np.ptp(minimized[complete], axis=0)
    unit = np.where(to_median > 0, to_median, np.where(to_worst > 0, to_worst, 1.0))
    scaled = np.minimum((minimized - best) / unit, MAX_LOSS)

    # 3. One loss: the augmented Chebyshev norm of the weighted objectives.
    weighted = scaled * rng.dirichlet(np.ones(len(directions)))
    largest = weighted.max(axis=1)
    losses = (largest + AUGMENTATION * weighted.sum(axis=1)) / (1 + AUGMENTATION)

    # 4. Pruned trials are not better than the median nor worse than the worst: others were better
    #    when they were stopped.
    of_complete = losses[complete]
    losses[~complete] = np.clip(losses[~complete], np.median(of_complete), of_complete.max())
    return _ScaledLosses(np.where(np.isnan(losses), np.inf, losses), unit=float(unit[0]))


def _objective_values(trials: Sequence[FrozenTrial], n_objectives: int) -> np.ndarray:
    """Return the values of each trial, a pruned one's last report; NaN for failures."""
    values = np.full((len(trials), n_objectives), np.nan)
    for i, trial in enumerate(trials):
        if trial.state == TrialState.COMPLETE:
            values[i] = trial.values
        elif trial.state == TrialState.PRUNED and trial.intermediate_values:
            values[i] = trial.intermediate_values[max(trial.intermediate_values)]
    too_large = ~(np.abs(values) < MAX_RESULT)
    values[too_large] = np.nan
    return values


def _violations(trials: Sequence[FrozenTrial]) -> np.ndarray:
    """Return each trial's worst constraint, in units of its usual size."""
    constraints = [trial.constraints for trial in trials]
    names = sorted({name for by_name in constraints for name in by_name})
    worst = np.full(len(trials), np.nan)
    for name in names:
        values = np.array([by_name.get(name, np.nan) for by_name in constraints])
        bounded = np.clip(values, -MAX_RESULT, MAX_RESULT)
        usual_size = np.nanmedian(np.abs(bounded)) or 1.0
        worst = np.fmax(worst, np.clip(bounded / usual_size, -MAX_VIOLATION, MAX_VIOLATION))
    return worst
