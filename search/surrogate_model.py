"""The surrogate of searches: a Gaussian process that learns the errors of a prior.

A loss is the logarithm of an objective, or an objective; smaller is better, and infinity is a
failure. The model of the loss at a point x of problem p is

    loss(x) / unit = prior_mean(x) / unit + offset[p] + error(x, p)
    error(x, p)    = smooth(x) + shift[p] + multiple · prior_mean(x) / unit + noise

- The unit makes losses comparable with the fixed hyperpriors: the standard deviation of the
  prior's means, or of the losses if there is no prior.
- The offset is the problem's median error, because only differences between configurations matter
  for a choice. What the median misses is the shift, one number per problem.
- The smooth part corrects the prior where it was measured to be wrong. The multiple tends to minus
  one if the prior misleads.

`SurrogateModel` fits the process and conditions it on `Evidence`. It knows points, but no space or
study. The result is a `LossPosterior`: the losses to expect of candidates.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from foretune.models.covariance import (
    ConstantCovariance,
    CovarianceTerm,
    GroupCovariance,
    Hyperprior,
    LinearCovariance,
    MaternCovariance,
)
from foretune.models.gaussian_process import GaussianProcess, Posterior

FIT_STEPS = 15  # optimizer steps per fit; it starts from the last result
REFIT_FACTOR = 1.15
"""Refit the process when there are this many times the measurements of the last fit."""
MAX_FITTED = 200  # maximum number of measurements that hyperparameters are fitted to

SHIFT_VARIANCE = Hyperprior(1.0, 0.0)  # of a problem; fixed
LENGTH_SCALE = Hyperprior(0.5, 1.0, np.exp(-4.0), np.exp(4.0))
MULTIPLE = Hyperprior(0.5, 0.7, np.exp(-5.0), np.exp(2.0))
"""Standard deviation of the multiple of the prior by which the prior is wrong."""
NOISE = Hyperprior(1e-2, 1.5, 1e-5, 1.0)
MATERN_SMOOTHNESS = 2.5

MIN_RELATIVE_ERROR = 0.2
MAX_RELATIVE_ERROR = 1.0
"""Bounds of a prior's expected error, relative to the spread of its means."""


@dataclass(frozen=True)
class Points:
    """Configurations as the process sees them; every array has one row per configuration.

    Attributes:
        encoded: coordinates, shape (rows, axes).
        prior_mean: expected loss, up to a constant; None without a prior.
        problem: number of the problem, 0 for the one that is searched; None if there is only one.
    """

    encoded: np.ndarray
    prior_mean: np.ndarray | None = None
    problem: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def axes(self) -> int:
        """Number of coordinates."""
        return self.encoded.shape[1]

    def followed_by(self, others: Self) -> Self:
        """Return these points, then ``others``, which have the same columns."""
        return replace(
            self,
            encoded=np.vstack([self.encoded, others.encoded]),
            prior_mean=_joined(self.prior_mean, others.prior_mean),
            problem=_joined(self.problem, others.problem),
        )

    def inputs(self, unit: float) -> np.ndarray:
        """Return the inputs of the process: coordinates, prior mean, problem."""
        columns = [self.encoded]
        if self.prior_mean is not None:
            columns.append(self.prior_mean / unit)
        if self.problem is not None:
            columns.append(self.problem)
        return np.column_stack(columns)

    def scaled_prior(self, unit: float) -> np.ndarray:
        """Return the prior means in units; zeros without a prior."""
        if self.prior_mean is None:
            return np.zeros(len(self))
        return self.prior_mean / unit


@dataclass(frozen=True)
class OtherProblems:
    """Measurements of other problems.

    ``errors`` are their losses less prior mean and their problem's median, not scaled.
    """

    points: Points
    errors: np.ndarray


@dataclass(frozen=True)
class PriorScale:
    """How much a prior varies between configurations, and how far off it is.

    Attributes:
        unit: standard deviation of the prior's means, a difference of losses. The process sees
            losses divided by it.
        relative_error: expected deviation of the prior's errors, in this unit.
    """

    unit: float
    relative_error: float

    @classmethod
    def of_prior(cls, prior_mean: np.ndarray, spread: float) -> Self:
        """Return the scale of a prior with these means and this deviation of its errors."""
        unit = float(np.std(prior_mean)) or 1.0
        relative_error = np.clip(spread / unit, MIN_RELATIVE_ERROR, MAX_RELATIVE_ERROR)
        return cls(unit, float(relative_error))


@dataclass(frozen=True)
class FailureRule:
    """How failures count: as the largest loss, but at least ``margin`` above the median.

    Attributes:
        margin: in the unit of losses; None is one unit of the process.
        shift_losses: whether failures count in the offset and in the unit.
    """

    margin: float | None
    shift_losses: bool

    def as_losses(self, losses: np.ndarray, unit: float) -> np.ndarray:
        """Return ``losses`` without infinities; zeros if everything failed."""
        ran = np.isfinite(losses)
        if not ran.any():
            return np.zeros(len(losses))
        margin = unit if self.margin is None else self.margin
        failure_loss = max(losses[ran].max(), np.median(losses[ran]) + margin)
        return np.where(ran, losses, failure_loss)


@dataclass(frozen=True)
class _Fit:
    n_measured: int
    process: GaussianProcess


@dataclass
class FitCache:
    """Fitted processes, each with the number of measurements of its fit."""

    fits: dict[Hashable, _Fit] = field(default_factory=dict)

    def fitted(
        self,
        key: Hashable,
        start: GaussianProcess,
        inputs: np.ndarray,
        targets: np.ndarray,
        *,
        n_measured: int,
    ) -> GaussianProcess:
        """Return the process of ``key``; it is refitted if there are enough new measurements.

        The first fit starts from ``start``, others from the last result.
        """
        last = self.fits.get(key)
        if last is not None:
            if last.n_measured <= n_measured < REFIT_FACTOR * last.n_measured:
                return last.process
            start = last.process

        process = start.fitted(inputs, targets, FIT_STEPS)
        self.fits[key] = _Fit(n_measured, process)
        return process


@dataclass(frozen=True)
class PriorErrors:
    """Losses less prior mean and offset, in units.

    ``values`` has those of other problems first; ``offset`` is that of the searched problem.
    """

    values: np.ndarray
    offset: float


@dataclass(frozen=True)
class Evidence:
    """What was measured: points of the searched problem, their losses, and other problems."""

    measured: Points
    losses: np.ndarray
    failure_rule: FailureRule
    others: OtherProblems | None = None

    def inputs(self, unit: float) -> np.ndarray:
        """Return the inputs of the process, those of other problems first."""
        inputs = self.measured.inputs(unit)
        if self.others is None:
            return inputs
        return np.vstack([self.others.points.inputs(unit), inputs])

    def errors(self, unit: float) -> PriorErrors:
        """Return the errors of the prior."""
        offset = 0.0
        errors = np.empty(0)
        if len(self.losses):
            losses = self.failure_rule.as_losses(self.losses, unit)
            errors = losses / unit - self.measured.scaled_prior(unit)
            offset = float(np.median(errors[self._counted]))
        if self.others is None:
            return PriorErrors(errors - offset, offset)
        return PriorErrors(np.concatenate([self.others.errors / unit, errors - offset]), offset)

    def deviation(self) -> float:
        """Return the standard deviation of the errors; 1 if they are equal."""
        errors = self.errors(unit=1.0).values
        n_others = 0 if self.others is None else len(self.others.errors)
        counted = np.concatenate([np.ones(n_others, dtype=bool), self._counted])
        return float(np.std(errors[counted])) or 1.0

    @property
    def _counted(self) -> np.ndarray:
        """Mask of the losses that count in offset and unit."""
        if self.failure_rule.shift_losses:
            return np.ones(len(self.losses), dtype=bool)
        return np.isfinite(self.losses)


class SurrogateModel:
    """Fits the process to evidence, and conditions it.

    ``fits``: cache of fitted processes; models whose points have other axes use other keys.
    """

    def __init__(self, fits: FitCache | None = None) -> None:
        self.fits = FitCache() if fits is None else fits

    def condition(
        self,
        evidence: Evidence,
        candidates: Points,
        *,
        key: Hashable,
        n_measured: int,
        prior_scale: PriorScale | None = None,
    ) -> "LossPosterior":
        """Return the posterior of ``candidates``.

        The process of ``key`` is fitted again when ``n_measured`` has grown by `REFIT_FACTOR`.
        ``prior_scale`` belongs to the prior of the points, if they have one.
        """
        if prior_scale is None:
            unit = evidence.deviation()
            amplitude = 1.0
        else:
            unit = prior_scale.unit
            amplitude = prior_scale.relative_error

        process = self.fits.fitted(
            key,
            start=surrogate_process(evidence.measured, amplitude),
            inputs=evidence.inputs(unit),
            targets=evidence.errors(unit).values,
            n_measured=n_measured,
        )
        return LossPosterior(process, evidence, candidates, unit)


class LossPosterior:
    """The losses to expect of candidates, given evidence that may grow.

    Attributes:
        unit: loss that is 1 for the process; see above.
        of_candidates: the posterior of the candidates' losses (not in units).
    """

    def __init__(
        self, process: GaussianProcess, evidence: Evidence, candidates: Points, unit: float
    ) -> None:
        self.unit = unit
        self._evidence = evidence
        self._scaled_prior = candidates.scaled_prior(unit)
        self.of_candidates = Posterior(
            process,
            evidence.inputs(unit),
            evidence.errors(unit).values,
            candidates.inputs(unit),
            scale=unit,
        )
        self.set_losses(evidence.losses)

    def add(self, measured: Points) -> None:
        """Add measured points; `set_losses` gives them their losses."""
        self._evidence = replace(
            self._evidence, measured=self._evidence.measured.followed_by(measured)
        )
        self.of_candidates.add(measured.inputs(self.unit))

    def set_losses(self, losses: np.ndarray) -> None:
        """Set the losses of all measured points, in the order in which they were added."""
        self._evidence = replace(self._evidence, losses=losses)
        errors = self._evidence.errors(self.unit)
        self.of_candidates.prior = self.unit * (self._scaled_prior + errors.offset)
        self.of_candidates.set_values(self.unit * errors.values)

    @contextmanager
    def pending(self, points: Points) -> Iterator[Posterior]:
        """Assume that ``points`` turn out as expected, so that their neighbors gain nothing."""
        self.of_candidates.add(points.inputs(self.unit))
        try:
            yield self.of_candidates
        finally:
            self.of_candidates.drop_pending(len(points))


def surrogate_process(points: Points, amplitude: float = 1.0) -> GaussianProcess:
    """Return the process before any data, in units.

    ``amplitude`` is the expected deviation of its smooth part. The prior and the problem of
    ``points``, if they have them, get a covariance term each.
    """
    axes = points.axes
    variance = Hyperprior(amplitude**2, 1.5, np.exp(-8.0), np.exp(3.0))
    terms: list[CovarianceTerm] = [
        MaternCovariance(slice(0, axes), variance, LENGTH_SCALE, MATERN_SMOOTHNESS)
    ]

    # The order of the columns: coordinates, prior mean, problem.
    has_prior = points.prior_mean is not None
    if points.problem is None:
        terms.append(ConstantCovariance(SHIFT_VARIANCE))
    else:
        problem_column = axes + 1 if has_prior else axes
        terms.append(GroupCovariance(problem_column, SHIFT_VARIANCE))
    if has_prior:
        terms.append(LinearCovariance(axes, MULTIPLE))
    return GaussianProcess.from_prior(terms, NOISE)


def subsample_measurements(losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of the measurements to fit to, at most `MAX_FITTED`.

    Half of them are the best, the others are random.
    """
    if len(losses) <= MAX_FITTED:
        return np.arange(len(losses))
    order = np.argsort(losses, kind="stable")
    n_best = MAX_FITTED // 2
    others = rng.choice(order[n_best:], n_best, replace=False)
    return np.concatenate([order[:n_best], others])


def _joined(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    if first is None or second is None:
        return None
    return np.concatenate([first, second])
