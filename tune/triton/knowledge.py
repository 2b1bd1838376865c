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
from scipy.linalg import cho_solve, solve_triangular

from foretune.device import Device
from foretune.mapping import NamedValues
from foretune.measurement import Measurement
from foretune.objective import Goal
from foretune.problem import Problem
from foretune.search.gaussian_process import (
    CONSTANT,
    REFIT,
    GaussianProcess,
    log_expected_improvement,
    one_thread,
)
from foretune.tune.triton.rows import Rows, points_of

MOST_ROWS = 300
"""Measured runs that are learned from: this problem's, then those of the problems most like it."""
LEAST_FIT = 8
"""Runs from which length scales are fitted; with fewer the weak prior on them stands."""
SHORTLIST = 256
"""Candidates whose joint distribution is drawn from: those that may be best."""
DRAWS = 256
OWN = 0.1
"""Standard deviation of what is peculiar to a configuration on all problems, relative to all that
the belief gets wrong."""
DOUBTS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
"""How many times wider than promised spreads may have to be."""
PRIOR_LOSS = 0.2
"""Loss, summed over problems, taken to have been seen beforehand: that of the second doubt."""
REPEATS_TO = 0.01
"""Standard deviation of the log of a measurement among repeats: what was measured is known."""
LEAST_SPREAD = 0.02


class Belief(Protocol):
    """What is thought of runs before any is measured."""

    @property
    def spread(self) -> float:
        """Standard deviation of its error, in log."""

    def log_value(self, rows: Rows) -> np.ndarray:
        """Return the logarithm of the objective of ``rows``, up to a constant per problem."""


class ManyProblems(GaussianProcess):
    """A process whose points end in the numbers of their configuration and of their problem.

    Each problem has an offset of its own, and so, a smaller one, has each configuration.
    """

    def variance(self, prior: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance`."""
        return super().variance(prior) + OWN**2

    def _points(self, X: np.ndarray) -> np.ndarray:
        return X[:, :-2]

    def _common(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        problem, config = (X[:, i][:, None] == X2[:, i] for i in (-1, -2))
        return CONSTANT**2 * problem + OWN**2 * config


@dataclass(frozen=True)
class Judgement:
    """What is known of every candidate on one problem.

    Attributes:
        log_mean: natural logarithm of the expected objective, up to a constant.
        log_spread: its standard deviation.
        p_valid: probability that each runs.
        objective: what was measured; infinite for failures, NaN where nothing was.
        expected: for every candidate, how much slower than the best it is expected to be, relative.
        points: where the candidates lie, shape (candidates, axes), 0 … 1.
    """

    log_mean: np.ndarray
    log_spread: np.ndarray
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
            gain = log_expected_improvement(best - self.log_mean, self.log_spread)
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
        gains = log_expected_improvement(best - self.log_mean, self.log_spread)
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
        return np.log(self.p_valid) - self.log_mean


@dataclass(frozen=True)
class Posterior:
    """The logs of all candidates, given what was measured.

    Attributes:
        process: covariance of residuals, in units of ``scale``.
        X: candidates, shape (candidates, axes + 1).
        prior: what is believed of them, in the same units.
        explained: what the measured runs explain of them, shape (measured, candidates).
        mean: of the logs.
        scale: size of residuals, more where other problems were predicted worse than promised.
    """

    process: ManyProblems
    X: np.ndarray
    prior: np.ndarray
    explained: np.ndarray
    mean: np.ndarray
    scale: float

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of every candidate."""
        left = self.process.variance(self.prior) - (self.explained**2).sum(axis=0)
        return np.sqrt(np.maximum(left, 0) + self.process.noise) * self.scale

    def covariance(self, numbers: np.ndarray) -> np.ndarray:
        """Return the covariance of the numbered candidates."""
        X, prior, explained = self.X[numbers], self.prior[numbers], self.explained[:, numbers]
        joint = self.process.covariance(X, prior, X, prior) - explained.T @ explained
        joint[np.diag_indices(len(joint))] += self.process.noise
        return joint * self.scale**2


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
        self._fits: dict[tuple[str, ...], tuple[int, np.ndarray]] = {}

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
            log_mean=posterior.mean,
            log_spread=posterior.spread,
            p_valid=_validity(candidates, known, p_valid),
            objective=objective,
            expected=_expected_regret(posterior, objective),
            points=posterior.X[:, :-2],
        )

    def _posterior(
        self, rows: Rows, numbers: np.ndarray, belief: np.ndarray, logs: np.ndarray
    ) -> "Posterior":
        """Return what is known of the rows behind the measured ones, given those."""
        n = len(logs)
        points, axes = points_of(rows, self._specs)
        X = np.column_stack([points, _numbered(rows.configs), numbers])
        belief = _centred(belief, numbers)
        scale = self._scale(belief[:n], logs, numbers[:n])
        prior = belief / scale
        level = _level(logs - belief[:n], numbers[:n])
        y = (logs - belief[:n] - np.array([level[i] for i in numbers[:n]])) / scale
        process = self._fitted(axes, X[:n], prior[:n], y)
        explained = np.zeros((0, len(X) - n))
        mean, doubt = prior[n:], DOUBTS[1]
        if n:
            K = process.covariance(X[:n], prior[:n], X[:n], prior[:n])
            K[np.diag_indices(n)] += process.noise
            L = np.linalg.cholesky(K)
            cross = process.covariance(X[:n], prior[:n], X[n:], prior[n:])
            explained = solve_triangular(L, cross, lower=True, check_finite=False)
            mean = mean + solve_triangular(L, y, lower=True, check_finite=False) @ explained
            doubt = _doubt(L, y, numbers[:n], scale)
        offset = level.get(numbers[n], 0.0)
        return Posterior(process, X[n:], prior[n:], explained, mean * scale + offset, scale * doubt)

    def _scale(self, belief: np.ndarray, logs: np.ndarray, numbers: np.ndarray) -> float:
        """Return the usual size of what the belief gets wrong among one problem's runs."""
        if len(logs) < LEAST_FIT:
            return max(self._belief.spread, LEAST_SPREAD)
        wrong = _centred(logs - belief, numbers)
        freedom = max(len(logs) - len(set(numbers.tolist())), 1)
        return max(float(np.sqrt((wrong**2).sum() / freedom)), LEAST_SPREAD)

    def _fitted(
        self, axes: list[str], X: np.ndarray, prior: np.ndarray, y: np.ndarray
    ) -> ManyProblems:
        """Return a process with the likeliest scales, fitted anew when there is much more."""
        process = ManyProblems(len(axes))
        if len(y) < LEAST_FIT:
            return process
        rows, parameters = self._fits.get(tuple(axes), (0, process.parameters))
        process.parameters = parameters
        if not rows <= len(y) < REFIT * rows:
            process.fit(X, prior, y)
            self._fits[tuple(axes)] = (len(y), process.parameters)
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


def _doubt(L: np.ndarray, y: np.ndarray, numbers: np.ndarray, scale: float) -> float:
    """Return how many times wider spreads must be for promises to have been kept.

    Each problem's runs are predicted from all other problems' (for one run at a time: Sundararajan
    and Keerthi, Neural Computation 13, 2001), the one predicted best is chosen among them, and what
    that lost is compared with the loss to expect. Chosen is what looks best, so this hinges on the
    few predictions that are far off, which an average over all errors would not show.
    """
    inverse = cho_solve((L, True), np.eye(len(y)), check_finite=False)
    weights = inverse @ y
    rng = np.random.default_rng(0)
    lost, promised = PRIOR_LOSS, {d: PRIOR_LOSS * d / DOUBTS[1] for d in DOUBTS}
    for problem in np.unique(numbers):
        here = np.flatnonzero(numbers == problem)
        if not 1 < len(here) < len(y):
            continue
        covariance = np.linalg.inv(inverse[np.ix_(here, here)])
        mean = y[here] - covariance @ weights[here]
        drawn = rng.standard_normal((DRAWS // 4, len(here))) @ np.linalg.cholesky(covariance).T
        pick = int(np.argmin(mean))
        lost += _loss(scale * y[here][None, :], pick)
        for d in DOUBTS:
            promised[d] += _loss(scale * (mean + d * drawn), pick)
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


def _expected_regret(posterior: Posterior, objective: np.ndarray) -> np.ndarray:
    """Return, for every candidate, its expected loss against the best of all, relative.

    Infinite for what failed and what is not on the shortlist.
    """
    expected = np.full(len(objective), np.inf)
    may = np.flatnonzero(~np.isposinf(objective))
    if len(may) == 0:
        return expected
    hoped = posterior.mean - 2 * posterior.spread
    measured = np.flatnonzero(np.isfinite(objective))
    short = may[np.argsort(hoped[may], kind="stable")[:SHORTLIST]]
    open_ones = short[np.isnan(objective[short])]
    rng = np.random.default_rng(0)
    covariance = posterior.covariance(open_ones)
    covariance[np.diag_indices(len(open_ones))] += 1e-10
    drawn = rng.standard_normal((DRAWS, len(open_ones))) @ np.linalg.cholesky(covariance).T
    repeated = np.log(objective[measured]) + REPEATS_TO * rng.standard_normal(
        (DRAWS, len(measured))
    )
    logs = np.hstack([repeated, posterior.mean[open_ones] + drawn])
    with np.errstate(over="ignore"):
        loss = np.mean(np.expm1(logs - logs.min(axis=1, keepdims=True)), axis=0)
    expected[np.concatenate([measured, open_ones])] = loss
    return expected
