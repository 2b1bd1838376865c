"""Optuna's distributions and trials as a SearchSpace and measurements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from foretune.search.encoding import ConfigurationEncoder
from foretune.search.pareto import AUGMENTATION
from foretune.space import SearchSpace

MIN_MOVE, MAX_MOVE = 1e-3, 0.3  # distance of neighbors in the unit cube


class Dimensions:
    """Encodes the configurations of one Optuna search space.

    ``search_space``: the distributions of its parameters.
    """

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self.search_space = search_space
        self._dimensions = [
            _Choice(d) if isinstance(d, CategoricalDistribution) else _Number(d)
            for d in search_space.values()
        ]
        self.sizes = np.array([d.size for d in self._dimensions])
        """Number of values of each parameter; infinite for floats without a step."""

    def params(self, row: np.ndarray) -> dict[str, Any]:
        """Return a row as parameter values."""
        named = self.search_space.items()
        return {
            name: d.to_external_repr(v) for (name, d), v in zip(named, row.tolist(), strict=True)
        }

    def points(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows as points, shape (rows, axes)."""
        return np.hstack([d.axes(v) for d, v in zip(self._dimensions, rows.T, strict=True)])

    def to_cube(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows' positions in the unit cube."""
        return np.column_stack(
            [d.to_unit(v) for d, v in zip(self._dimensions, rows.T, strict=True)]
        )

    def from_cube(self, units: np.ndarray) -> np.ndarray:
        """Return the rows at these positions in the unit cube."""
        return np.column_stack(
            [d.from_unit(u) for d, u in zip(self._dimensions, units.T, strict=True)]
        )

    def grid(self) -> np.ndarray:
        """Return all rows of a finite search space."""
        values = [d.to_unit(d.all_values()) for d in self._dimensions]
        return self.from_cube(np.stack(np.meshgrid(*values), axis=-1).reshape(-1, len(values)))

    def random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` random rows, uniform in the cube."""
        return self.from_cube(rng.random((n, len(self._dimensions))))

    def neighbors(self, rows: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` rows that differ from one of ``rows`` in some parameters.

        Numbers move by at least one step; choices change to any other.
        """
        shape = (n, len(self._dimensions))
        units = self.to_cube(rows[rng.integers(len(rows), size=n)])
        moves = rng.random(shape) < rng.random((n, 1))
        moves[np.arange(n), rng.integers(shape[1], size=n)] = True
        far = np.exp(rng.uniform(np.log(MIN_MOVE), np.log(MAX_MOVE), (n, 1)))
        moved = units + rng.normal(size=shape) * np.maximum(far, 1 / self.sizes)
        chosen = [isinstance(d, _Choice) for d in self._dimensions]
        moved = np.where(chosen, rng.random(shape), np.clip(moved, 0, 1))
        return self.from_cube(np.where(moves, moved, units))


class _Number:
    """A float or an integer, linear or logarithmic, with or without a step."""

    def __init__(self, distribution: Any) -> None:
        self._low, self._high = float(distribution.low), float(distribution.high)
        self._step, self._log = distribution.step or 0, distribution.log
        self._start = self._scaled(np.array(self._low - self._step / 2))
        self._width = self._scaled(np.array(self._high + self._step / 2)) - self._start
        self.size = math.inf
        if self._step:
            self.size = round((self._high - self._low) / self._step) + 1

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        values = self._start + units * self._width
        values = np.exp(values) if self._log else values
        if self._step:
            values = self._low + np.round((values - self._low) / self._step) * self._step
        return np.clip(values, self._low, self._high)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (self._scaled(values) - self._start) / self._width

    def axes(self, values: np.ndarray) -> np.ndarray:
        low, high = self._scaled(np.array([self._low, self._high]))
        return ((self._scaled(values) - low) / (high - low))[:, None]

    def all_values(self) -> np.ndarray:
        return self._low + self._step * np.arange(self.size)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self._log else values


class _Choice:
    """A categorical parameter: ordered if all choices are numbers."""

    def __init__(self, distribution: CategoricalDistribution) -> None:
        self.size = len(distribution.choices)
        sizes = [
            c
            for c in distribution.choices
            if isinstance(c, (int, float)) and not isinstance(c, bool) and math.isfinite(c)
        ]
        words = [str(i) for i in range(self.size)]
        values = sizes if len(set(sizes)) == self.size else words
        encoder = ConfigurationEncoder(SearchSpace({"choice": values}))
        self._axes = encoder.encode(np.arange(self.size))

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        return np.minimum(np.floor(units * self.size), self.size - 1)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (values + 0.5) / self.size

    def axes(self, values: np.ndarray) -> np.ndarray:
        return self._axes[values.astype(int)]

    def all_values(self) -> np.ndarray:
        return np.arange(self.size)


SUGGESTED = "foretune:suggested"
"""Trial attribute with the suggested row, by name, for trials that still run."""
MAX_LOSS = 4.0  # upper bound of losses: much larger ones say nothing about the best
MAX_VIOLATION = 3.0  # bounds of scaled constraints
MAX_RESULT = 1e100  # larger values and NaN are failures


@dataclass(frozen=True)
class Observations:
    """Rows of `Dimensions` and their results.

    ``losses`` of the ``finished`` trials: 0 is the best, 1 the median, infinity a failure.
    ``violations``: their worst constraint in units of its usual size, satisfied up to zero, NaN if
    unknown. ``repeatable``: whether trials have more parameters than their row. ``unit``:
    difference of the first objective, or its logarithm, between a loss of 0 and 1.
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


class StudyHistory:
    """Reads one study repeatedly; finished trials are cached."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._common = IntersectionSearchSpace()
        self._search_space: Mapping[str, BaseDistribution] = {}
        self._finished: dict[int, tuple[list[float] | None, bool]] = {}
        """Row in `_search_space` of each trial, and whether it has more parameters."""

    def common_parameters(self) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have."""
        return self._common.calculate(self.study)

    def read(self, dimensions: Dimensions, rng: np.random.Generator) -> Observations:
        """Read the trials that have or were suggested a value for every parameter.

        ``rng`` draws the weights of several objectives.
        """
        search_space = dimensions.search_space
        if search_space != self._search_space:
            self._search_space, self._finished = dict(search_space), {}
        finished: list[FrozenTrial] = []
        tried, under_way, has_more = [], [], False
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
        for trial in self.study.get_trials(deepcopy=False, states=states):
            if trial.state == TrialState.RUNNING:
                if (row := _row(trial, search_space)) is not None:
                    under_way.append(row)
                continue
            if trial.number not in self._finished:
                entry = _row(trial, search_space), _has_more(trial, search_space)
                self._finished[trial.number] = entry
            row, more = self._finished[trial.number]
            if row is not None:
                tried.append(row)
                finished.append(trial)
                has_more |= more
        rows = np.array(tried + under_way).reshape(-1, len(search_space))
        rows = dimensions.from_cube(dimensions.to_cube(rows))  # rounded: equal ones compare equal
        losses, unit = _losses(finished, self.study.directions, rng)
        violations = _violations(finished)
        return Observations(
            rows[: len(tried)], losses, violations, rows[len(tried) :], has_more, unit
        )


def _row(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> list[float] | None:
    distributions = trial.distributions
    for name, d in search_space.items():  # no study has two lists of choices of one name
        if not isinstance(d, CategoricalDistribution) and distributions.get(name, d) != d:
            return None
    known = dict(trial.system_attrs.get(SUGGESTED, {}))
    known |= {name: distributions[name].to_internal_repr(v) for name, v in trial.params.items()}
    return [known[name] for name in search_space] if search_space.keys() <= known.keys() else None


def _has_more(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> bool:
    distributions = trial.distributions
    return any(
        name not in search_space and not distributions[name].single() for name in distributions
    )


def _losses(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection], rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Return one loss per trial, and its unit.

    Several objectives get random weights (ParEGO). Positive values are compared by logarithms.
    """
    values = np.full((len(trials), len(directions)), np.nan)
    for i, trial in enumerate(trials):
        if trial.state == TrialState.COMPLETE:
            values[i] = trial.values
        elif trial.state == TrialState.PRUNED and trial.intermediate_values:
            values[i] = trial.intermediate_values[max(trial.intermediate_values)]
    values[~(np.abs(values) < MAX_RESULT)] = np.nan
    complete = np.array([trial.state == TrialState.COMPLETE for trial in trials], dtype=bool)
    complete &= np.isfinite(values).all(axis=1)
    if not complete.any():
        return np.full(len(trials), np.inf), 1.0
    logarithmic = (values[complete] > 0).all(axis=0)
    values[:, logarithmic] = np.log(np.where(values > 0, values, np.nan)[:, logarithmic])
    values *= [1.0 if d == StudyDirection.MINIMIZE else -1.0 for d in directions]
    best = values[complete].min(axis=0)
    width = np.median(values[complete], axis=0) - best
    width = np.where(width > 0, width, np.ptp(values[complete], axis=0))
    width = np.where(width > 0, width, 1)
    values = np.minimum((values - best) / width, MAX_LOSS)
    weighted = values * rng.dirichlet(np.ones(len(directions)))
    losses = (weighted.max(axis=1) + AUGMENTATION * weighted.sum(axis=1)) / (1 + AUGMENTATION)
    known = losses[complete]
    losses[~complete] = np.clip(losses[~complete], np.median(known), known.max())
    return np.where(np.isnan(losses), np.inf, losses), float(width[0])


def _violations(trials: Sequence[FrozenTrial]) -> np.ndarray:
    constraints = [trial.constraints for trial in trials]
    names = sorted({name for c in constraints for name in c})
    worst = np.full(len(trials), np.nan)
    for name in names:
        values = np.array([c.get(name, np.nan) for c in constraints])
        values = np.clip(values, -MAX_RESULT, MAX_RESULT)
        usual = np.nanmedian(np.abs(values)) or 1.0
        worst = np.fmax(worst, np.clip(values / usual, -MAX_VIOLATION, MAX_VIOLATION))
    return worst
