"""What measured runs of a kernel say about configurations on a problem, and how sure that is.

One Gaussian process over all problems of a kernel on a device: residuals of a belief (a predictor
or the estimate) are an offset of each problem's own, a multiple of the belief, and a function that
is smooth in problem sizes, knobs and launch geometry together. What was learned on other problems
so carries over where the kernel behaves alike; how far, the likeliest length scales say. Choosing
needs differences between configurations only, so the offsets do no harm where nothing was measured.

The expected regret of a choice is the mean, over draws of all candidates from the joint posterior,
of how much slower it is than the fastest of the draw. It says when to stop measuring.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foretune.device import Device
from foretune.mapping import NamedValues
from foretune.measurement import Measurement
from foretune.models.process.posterior import Posterior
from foretune.models.process.process import Process
from foretune.models.process.terms import Hyperprior, Multiple, SameLabel
from foretune.objective import Goal
from foretune.problem import Problem
from foretune.search.acquisition import (
    DRAWS,
    expected_regret,
    log_expected_improvement,
)
from foretune.search.surrogate_process import (
    MULTIPLE,
    OFFSET,
    REFIT,
    STEPS,
    one_thread,
    surrogate_process,
)
from foretune.tune.triton.rows import Rows, points_of

MOST_ROWS = 300
"""Measured runs that are learned from: this problem's, then those of the problems most like it."""
LEAST_FIT = 8
"""Runs from which length scales are fitted; with fewer the weak prior on them stands."""
OWN = Hyperprior(0.01, 0.0)
"""Variance of what is peculiar to a configuration on all problems, relative to all that the belief
gets wrong."""
DOUBTS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
"""How many times wider than promised spreads may have to be."""
PRIOR_LOSS = 0.2
"""Loss, summed over problems, taken to have been seen beforehand: that of the second doubt."""
LEAST_SPREAD = 0.02


class Belief(Protocol):
    """What is thought of runs before any is measured."""

    @property
    def spread(self) -> float:
        """Standard deviation of its error, in log."""

    def log_value(self, rows: Rows) -> np.ndarray:
        """Return the logarithm of the objective of ``rows``, up to a constant per problem."""


def many_problems(axes: int) -> Process:
    """Return the process of points that end in the numbers of their configuration and problem.

    Each problem has an offset of its own, and so, a smaller one, has each configuration.
    """
    offsets = SameLabel(axes + 1, OWN), SameLabel(axes + 2, OFFSET.scale)
    return surrogate_process(axes, beside=(Multiple(axes, MULTIPLE), *offsets))


@dataclass(frozen=True)
class Judgement:
    """What is known of every candidate on one problem.

    Attributes:
        posterior: of the natural logarithm of each one's objective, up to a constant.
        p_valid: probability that each runs.
        objective: what was measured; infinite for failures, NaN where nothing was.
        expected: for every candidate, how much slower than the best it is expected to be, relative.
        points: where the candidates lie, shape (candidates, axes), 0 … 1.
    """

    posterior: Posterior
    p_valid: np.ndarray
    objective: np.ndarray
    expected: np.ndarray
    points: np.ndarray

    @property
    def measured(self) -> int:
        """How many candidates were measured."""
        return int((~np.isnan(self.objective)).sum())

    @property
    def best(self) -> int:
        """The candidate to choose now: the best measured one, else the most promising."""
        if np.isfinite(self.objective).any():
            return int(np.nanargmin(self.objective))
        open_ones = np.where(np.isnan(self.objective), self._promise(), -np.inf)
        return int(np.argmax(open_ones))

    @property
    def regret(self) -> float:
        """How much slower than the best the choice is expected to be, relative."""
        return float(self.expected[self.best])

    def next(self, tried: np.ndarray) -> int | None:
        """Return the candidate whose measurement promises most; None when there is none left.

        Args:
            tried: which were measured, also those that did not say the objective.
        """
        open_ones = np.isnan(self.objective) & ~tried
        if not open_ones.any():
            return None
        promise = self._promise()
        finite = np.isfinite(self.objective)
        if finite.any():
            best = float(np.log(self.objective[finite]).min())
            gain = log_expected_improvement(self.posterior, best)
            promise = gain + np.log(self.p_valid)
        return int(np.argmax(np.where(open_ones, promise, -np.inf)))

    def gain(self, tried: np.ndarray) -> float:
        """Return what one more measurement is expected to improve at most, relative.

        Infinite before anything ran.
        """
        finite = np.isfinite(self.objective)
        open_ones = np.isnan(self.objective) & ~tried
        if not finite.any():
            return math.inf
        if not open_ones.any():
            return 0.0
        best = float(np.log(self.objective[finite]).min())
        gains = log_expected_improvement(self.posterior, best)
        return float(np.exp(gains + np.log(self.p_valid))[open_ones].max())

    def farthest(self, tried: np.ndarray) -> int | None:
        """Return the candidate least like any that was tried, of those that probably run."""
        open_ones = np.isnan(self.objective) & ~tried
        open_ones &= self.p_valid >= min(0.5, self.p_valid[open_ones].max(initial=0.0))
        if not open_ones.any() or not (~np.isnan(self.objective) | tried).any():
            return self.next(tried)
        known = self.points[~np.isnan(self.objective) | tried]
        distance = ((self.points[:, None] - known[None]) ** 2).sum(axis=2).min(axis=1)
        return int(np.argmax(np.where(open_ones, distance, -np.inf)))

    def _promise(self) -> np.ndarray:
        return np.log(self.p_valid) - self.posterior.mean


class Knowledge:
    """Judges candidates; keeps what it fitted for the next time.

    Args:
        device: where; its cores give waves.
        goal: what is minimised.
        belief: what is thought of runs before any is measured.
    """

    def __init__(self, device: Device, goal: Goal, belief: Belief) -> None:
        self._specs = dict(device.specs)
        self._goal = goal
        self._belief = belief
        self._fits: dict[tuple[str, ...], tuple[int, Process]] = {}

    def judge(
        self,
        candidates: Rows,
        p_valid: np.ndarray,
        measurements: Sequence[Measurement],
    ) -> Judgement:
        """Return what is known of ``candidates``, all of one problem.

        Args:
            candidates: at least one.
            p_valid: how likely each candidate is believed to run.
            measurements: of this problem and others; what does not say the objective is ignored.
        """
        told = [m for m in measurements if not math.isnan(self._goal.measured(m))]
        with one_thread():
            return self._judge(candidates, p_valid, told)

    def _judge(
        self,
        candidates: Rows,
        p_valid: np.ndarray,
        measurements: Sequence[Measurement],
    ) -> Judgement:
        problem = candidates.problems[0]
        known = nearest(measurements, problem, MOST_ROWS)
        values = np.array([self._goal.measured(m) for m in known])
        rows = rows_of(known) + candidates
        belief = self._belief.log_value(rows)
        numbers = _numbered(rows.problems)
        logs = _logs(values, numbers[: len(known)])
        here = {m.config: self._goal.measured(m) for m in measurements if m.problem == problem}
        objective = np.array([here.get(c, np.nan) for c in candidates.configs])
        posterior = self._posterior(rows, numbers, belief, logs)
        return Judgement(
            posterior=posterior,
            p_valid=_validity(candidates, known, p_valid),
            objective=objective,
            expected=expected_regret(posterior, objective),
            points=posterior.candidates[:, :-3],
        )

    def _posterior(
        self, rows: Rows, numbers: np.ndarray, belief: np.ndarray, logs: np.ndarray
    ) -> Posterior:
        """Return what is known of the rows behind the measured ones, given those."""
        n = len(logs)
        points, axes = points_of(rows, self._specs)
        belief = _centred(belief, numbers)
        scale = self._scale(belief[:n], logs, numbers[:n])
        X = np.column_stack([points, belief / scale, _numbered(rows.configs), numbers])
        level = _level(logs - belief[:n], numbers[:n])
        y = logs - belief[:n] - np.array([level[i] for i in numbers[:n]])
        process = self._fitted(axes, X[:n], y / scale)
        posterior = Posterior(
            process, X[:n], y, X[n:],
            prior=belief[n:] + level.get(numbers[n], 0.0), scale=scale, observation_noise=True,
        )  # fmt: skip
        posterior.scale *= _doubt(posterior, numbers[:n]) if n else DOUBTS[1]
        return posterior

    def _scale(self, belief: np.ndarray, logs: np.ndarray, numbers: np.ndarray) -> float:
        """Return the usual size of what the belief gets wrong among one problem's runs."""
        if len(logs) < LEAST_FIT:
            return max(self._belief.spread, LEAST_SPREAD)
        wrong = _centred(logs - belief, numbers)
        freedom = max(len(logs) - len(set(numbers.tolist())), 1)
        return max(float(np.sqrt((wrong**2).sum() / freedom)), LEAST_SPREAD)

    def _fitted(self, axes: list[str], X: np.ndarray, y: np.ndarray) -> Process:
        """Return a process with the likeliest scales, fitted anew when there is much more."""
        if len(y) < LEAST_FIT:
            return many_problems(len(axes))
        rows, process = self._fits.get(tuple(axes)) or (0, many_problems(len(axes)))
        if not rows <= len(y) < REFIT * rows:
            process = process.fitted(X, y, STEPS)
            self._fits[tuple(axes)] = len(y), process
        return process


def nearest(measurements: Sequence[Measurement], problem: Problem, most: int) -> list[Measurement]:
    """Return at most ``most`` measurements: of ``problem``, then of the problems most like it."""
    if len(measurements) <= most:
        return list(measurements)
    distance = {p: _distance(p, problem) for p in dict.fromkeys(m.problem for m in measurements)}
    return sorted(measurements, key=lambda m: distance[m.problem])[:most]


def rows_of(measurements: Sequence[Measurement]) -> Rows:
    """Return measured runs as rows."""
    return Rows(
        [m.problem for m in measurements],
        [m.config for m in measurements],
        [m.static for m in measurements],
    )


def _distance(a: Problem, b: Problem) -> float:
    """Return how far two problems are apart: octaves per size, eight for another word."""
    if a == b:
        return -1.0
    apart = 0.0
    for name in {*a, *b}:
        x, y = a.get(name), b.get(name)
        numbers = isinstance(x, (int, float)) and isinstance(y, (int, float))
        if numbers and x > 0 and y > 0:  # type: ignore[operator]
            apart += abs(float(np.log2(x) - np.log2(y)))  # type: ignore[arg-type]
        elif x != y:
            apart += 8.0
    return apart


def _numbered(things: Sequence[NamedValues]) -> np.ndarray:
    number = {thing: float(i) for i, thing in enumerate(dict.fromkeys(things))}
    return np.array([number[thing] for thing in things])


def _logs(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return logarithms; a failure counts as the slowest of its problem, at least e times median.

    Of a problem on which nothing ran, all count alike.
    """
    ran = np.isfinite(values)
    logs = np.log(values, where=ran, out=np.zeros(len(values)))
    for problem in set(numbers[~ran].tolist()):
        here = numbers == problem
        if (here & ran).any():
            worst = max(logs[here & ran].max(), np.median(logs[here & ran]) + 1)
            logs[here & ~ran] = worst
    return logs


def _doubt(posterior: Posterior, numbers: np.ndarray) -> float:
    """Return how many times wider spreads must be for promises to have been kept.

    Each problem's runs are predicted from all other problems', the one predicted best is chosen
    among them, and what that lost is compared with the loss to expect. Chosen is what looks best,
    so this hinges on the few predictions that are far off, which an average over all errors would
    not show.
    """
    rng = np.random.default_rng(0)
    lost, promised = PRIOR_LOSS, {d: PRIOR_LOSS * d / DOUBTS[1] for d in DOUBTS}
    problems = [np.flatnonzero(numbers == problem) for problem in np.unique(numbers)]
    problems = [here for here in problems if 1 < len(here) < len(numbers)]
    left_out = posterior.groups_left_out(problems)
    for here, (off, covariance) in zip(problems, left_out, strict=True):
        y = posterior.y[here]
        mean = y - off
        drawn = rng.standard_normal((DRAWS // 4, len(here))) @ np.linalg.cholesky(covariance).T
        pick = int(np.argmin(mean))
        lost += _loss(y[None, :], pick)
        for d in DOUBTS:
            promised[d] += _loss(mean + d * drawn, pick)
    return next((d for d in DOUBTS if promised[d] >= lost), DOUBTS[-1])


def _loss(logs: np.ndarray, pick: int) -> float:
    """Return how much slower than the fastest of each row ``pick`` is on average, relative."""
    return float(np.expm1(np.minimum(logs[:, pick] - logs.min(axis=1), 3.0)).mean())


def _level(logs: np.ndarray, numbers: np.ndarray) -> dict[float, float]:
    return {i: float(np.median(logs[numbers == i])) for i in set(numbers.tolist())}


def _centred(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return ``values`` less the mean of their problem."""
    _, inverse = np.unique(numbers, return_inverse=True)
    means = np.bincount(inverse, values) / np.bincount(inverse) if len(values) else values
    return values - means[inverse]


def _validity(candidates: Rows, known: Sequence[Measurement], p_valid: np.ndarray) -> np.ndarray:
    """Return how likely each candidate is to run, given how it fared on other problems."""
    tries: dict[object, list[bool]] = {}
    for m in known:
        tries.setdefault(m.config, []).append(m.ok)
    found = p_valid.copy()
    for i, config in enumerate(candidates.configs):
        if not all(fared := tries.get(config, [])):
            found[i] *= (sum(fared) + 0.1) / (len(fared) + 0.2)
    return np.clip(found, 1e-3, 1.0)
