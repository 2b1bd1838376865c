"""Transfer search: one Gaussian process over all problems of a kernel on a device.

Residuals of a prior (a predictor, or an estimate) are an offset of each problem's own, a smaller
one of each configuration's own, a multiple of the prior, and a function that is smooth in problem
sizes, configuration and launch geometry together. What was learned on other problems so carries
over where the kernel behaves alike; how far, the likeliest length scales say. Choosing needs
differences between configurations only, so the offsets do no harm where nothing was measured.

The expected regret of a choice is the mean, over draws of all candidates from the joint posterior,
of how much slower it is than the fastest of the draw. Spreads are widened by what left-out problems
showed, and nothing is promised of a kernel that was hardly ever measured. Experience counts as far
as its problems are like the one asked for; where more than an estimate is believed beforehand, that
order is followed first, and experience has to choose better to replace it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from foretune.mapping import NamedValues
from foretune.measurement import Measurement
from foretune.models.process.posterior import Posterior
from foretune.models.process.process import Process
from foretune.models.process.terms import Hyperprior, Multiple, SameLabel
from foretune.search.acquisition import DRAWS
from foretune.search.forecast import Forecast
from foretune.search.pool import pool
from foretune.search.rows import Rows, distance, likeness, nearest
from foretune.search.searcher import Searcher
from foretune.search.surrogate_process import (
    MULTIPLE,
    OFFSET,
    REFIT,
    STEPS,
    one_thread,
    surrogate_process,
)
from foretune.space import Configuration

POOL = 2048
"""Candidates that are looked at."""
MOST_ROWS = 300
"""Measured runs that are learned from: this problem's, then those of the problems most like it."""
LEAST_FIT = 8
"""Runs from which length scales are fitted; with fewer the weak prior on them stands."""
EXPERIENCED = 8
"""Problems, each counted as far as the one asked for resembles it, after which a kernel is known
there: only then the model's word is enough."""
CHECKED = 6
"""Measurements of every problem before that; of the first more, most of a large space."""
FOLLOWED, FOLLOWED_KNOWN, RESEMBLED = 4, 3, 2.0
"""Measurements in the order of a prior that is not rough: a few say less about the others than was
believed of them beforehand. So many are always made; the second number where problems, counted as
above, are at least the third: nothing there contradicted the order."""
PAYS = 0.5
"""Share of what choices by belief lose that choices by experience may, to be preferred."""
FAR = 16.0
"""How far apart problems are (`distance`) that nothing is learned from if the prior is not rough:
their types differ."""
ROUGH = 0.3
"""Spread of a prior from which on it is only an estimate: it is checked everywhere."""
LIST = 64
"""Candidates beyond which the first problem is measured more often."""
OWN = Hyperprior(0.01, 0.0)
"""Variance of what is peculiar to a configuration on all problems, relative to all that the prior
gets wrong."""
DOUBTS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
"""How many times wider than promised spreads may have to be."""
PRIOR_LOSS = 0.2
"""Loss, summed over problems, taken to have been seen beforehand: that of the second doubt."""
LEAST_SPREAD, NO_PRIOR = 0.02, 0.5
"""Least spread of a prior's error, and the spread of log values of which nothing is believed."""
LEAST_VALID = 1e-3

Fits = dict[tuple[str, ...], tuple[int, Process]]
"""By axes, the likeliest process, and from how many runs it was found."""


class TransferSearcher(Searcher):
    """Expected improvement under one process over all problems.

    Its experience may hold runs of the problem itself, of configurations that the space lacks.

    Args:
        args, named: as for `Searcher`.
        statics: what is known of each configuration without running it (`Measurement.static`).
        fits: where fitted processes are kept; searches of the same kernel share them.
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
        self._experience, self._believed_elsewhere = self._nearest()
        self._forecast: Forecast | None = None
        self._pooled = 0
        self._refresh_pool()

    @property
    def forecast(self) -> Forecast:
        """What is expected of the candidates now."""
        if self._forecast is None:
            if not set(self.told) <= set(self._pool.tolist()) or (
                len(self._pool) < len(self.space) and len(self.told) >= REFIT * self._pooled
            ):
                self._refresh_pool()
            with one_thread():
                self._forecast = self._foresee(self._told())
        return self._forecast

    @property
    def least(self) -> int:
        """How many candidates are measured even where the model is sure of itself."""
        if self.prior is not None and not self.prior.foreign:
            return 0
        elsewhere = {m.problem for m in self.experience if m.ok and m.problem != self.problem}
        alike = sum(likeness(p, self.problem) for p in elsewhere)
        if not self._rough:
            return FOLLOWED_KNOWN if alike >= RESEMBLED else FOLLOWED
        if alike >= EXPERIENCED:
            return 0
        first = LEAST_FIT + 2 * max(math.ceil(math.log2(len(self.space) / LIST)), 0)
        return CHECKED if elsewhere else first

    @property
    def _rough(self) -> bool:
        """Whether what is believed beforehand is not much."""
        return self.prior is None or self.prior.log_spread >= ROUGH

    def choice(self) -> Configuration:
        """Return the configuration to run now: the best measured one, else the likeliest best."""
        return self.best() or self.space[int(self._pool[self.forecast.best])]

    def regret(self) -> float:
        """Return how much slower than the optimum `choice` is expected to be, relative.

        Infinite while too little was measured for the model's word to be enough.
        """
        if len(self._told()) < min(self.least, len(self.space)):
            return math.inf
        return self.forecast.regret

    def gain(self) -> float:
        """Return by how much one more measurement is expected to improve on `best`, relative."""
        if len(self._told()) < min(self.least, len(self.space)):
            return math.inf
        return self.forecast.gain(self._free())

    def _propose(self, n: int) -> list[int]:
        chosen, forecast = list[int](), self.forecast  # which may look at other candidates now
        while len(chosen) < n:
            free = self._free() & ~np.isin(self._pool, chosen)
            if not free.any():
                others = self.random_numbers(n)
                return chosen + [i for i in others if i not in chosen][: n - len(chosen)]
            measured = len(self._told()) + len(chosen)
            # what only an estimate speaks for is checked: every other one is unlike all before
            look_around = self._rough and measured % 2 == 1 and measured < self.least
            if look_around:
                chosen.append(self._farthest(free & self._runs(free), chosen))
                continue
            promise = forecast.promise if self._rough or measured >= FOLLOWED else self._hope
            chosen.append(int(self._pool[np.argmax(np.where(free, promise, -np.inf))]))
        return chosen

    @cached_property
    def _hope(self) -> np.ndarray:
        """What was expected of each candidate when nothing of the problem was measured."""
        with one_thread():
            return self._foresee({}).hope

    def _learn(self, news: dict[int, float]) -> None:
        self._forecast = None

    def _farthest(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate least like any that was proposed."""
        points = self._points[len(self._experience) :]
        known = points[np.isin(self._pool, [*self.proposed, *chosen])]
        distance = ((points[:, None] - known[None]) ** 2).sum(axis=2).min(axis=1)
        return int(self._pool[np.argmax(np.where(free, distance, -np.inf))])

    def _runs(self, free: np.ndarray) -> np.ndarray:
        """Return which candidates probably run, at least one of the ``free`` ones."""
        p_valid = self.forecast.p_valid
        runs: np.ndarray = p_valid >= min(0.5, p_valid[free].max())
        return runs

    def _free(self) -> np.ndarray:
        """Return which candidates were not proposed."""
        return ~np.isin(self._pool, list(self.proposed))

    def _told(self) -> dict[int, float]:
        """Return what was told of and says its objective."""
        return {i: value for i, value in self.told.items() if not math.isnan(value)}

    def _nearest(self) -> tuple[list[Measurement], np.ndarray]:
        """Return the experience that is learned from, nearest first, and what the prior says."""
        far = math.inf if self._rough else FAR
        near = [m for m in self.experience if distance(m.problem, self.problem) < far]
        useful = [m for m in near if not math.isnan(self.objective.measured(m))]
        chosen = nearest(useful, self.problem)[:MOST_ROWS]
        if self.prior is None or not chosen:
            return chosen, np.zeros(len(chosen))
        if self.prior.elsewhere is not None:
            return chosen, self.prior.elsewhere(chosen)
        numbers = [self.space.number(m.config) for m in chosen]  # as good as on this problem
        usual = float(np.median(self.prior.log_mean))
        log_mean = [usual if i is None else self.prior.log_mean[i] for i in numbers]
        return chosen, np.array(log_mean)

    def _refresh_pool(self) -> None:
        """Choose the candidates, and place them and the experience."""
        size = len(self.space.codes)
        prior, valid = np.zeros(size), np.ones(size)
        if self.prior is not None:
            prior, valid = self.prior.log_mean, np.maximum(self.prior.p_valid, LEAST_VALID)
        promise = None if self.prior is None else np.log(valid) - prior
        self._pool, self._pooled = pool(self, POOL, promise), len(self.told)
        self._believed, self._p_valid = prior[self._pool], valid[self._pool]
        rows = Rows.of(self._experience) + Rows(
            [self.problem] * len(self._pool),
            [self.space[i] for i in self._pool],
            [{}] * len(self._pool)
            if self._statics is None
            else [self._statics[i] for i in self._pool],
        )
        points, self._axes = rows.points(self.device.specs if self.device else {})
        self._problems = _numbered(rows.problems)
        self._configs = _numbered(rows.configs)
        self._points = points
        self.__dict__.pop("_hope", None)

    def _foresee(self, told: Mapping[int, float]) -> Forecast:
        """Return what is known of every candidate, given what was told of some."""
        place = {number: i for i, number in enumerate(self._pool.tolist())}
        elsewhere = self._experience[: max(MOST_ROWS - len(told), 0)] if self._learns else []
        at = np.array([*range(len(elsewhere)), *(len(self._experience) + place[i] for i in told)])
        at = at.astype(int)
        values = np.array([*(self.objective.measured(m) for m in elsewhere), *told.values()])
        objective = np.full(len(self._pool), np.nan)
        objective[[place[i] for i in told]] = list(told.values())
        posterior = self._posterior(at, _logs(values, self._problems[at]))
        fared = [(m.config, m.ok) for m in elsewhere]
        fared += [(self.space[i], bool(np.isfinite(v))) for i, v in told.items()]
        return Forecast(self._pool, posterior, self._validity(fared), objective)

    @cached_property
    def _learns(self) -> bool:
        """Whether other problems' runs tell more than is believed without them.

        They do if choices among each problem's runs lose less, that problem left out, by a good
        part. What was measured was little, and chosen by what is believed: it misleads easily.
        """
        if self._rough or not self._experience:
            return True
        at = np.arange(len(self._experience))
        values = np.array([self.objective.measured(m) for m in self._experience])
        logs, numbers = _logs(values, self._problems[at]), self._problems[at]
        posterior = self._posterior(at, logs)
        problems = _several(numbers)
        learned = believed = 0.0
        for here, (off, _) in zip(problems, posterior.groups_left_out(problems), strict=True):
            learned += _loss(logs[None, here], int(np.argmin(logs[here] - off)))
            believed += _loss(logs[None, here], int(np.argmin(self._believed_elsewhere[here])))
        return len(problems) >= EXPERIENCED and learned < PAYS * believed

    def _posterior(self, at: np.ndarray, logs: np.ndarray) -> Posterior:
        """Return what is known of the candidates, given the logs measured ``at`` some rows."""
        numbers, here = self._problems[at], slice(len(self._experience), None)
        believed = np.concatenate([self._believed_elsewhere, self._believed])
        believed = _centred(believed, self._problems)
        scale = self._scale(believed[at], logs, numbers)
        X = np.column_stack([self._points, believed / scale, self._configs, self._problems])
        level = _level(logs - believed[at], numbers)
        y = logs - believed[at] - np.array([level[i] for i in numbers])
        prior = believed[here] + level.get(self._problems[-1], 0.0)
        posterior = Posterior(
            self._fitted(X[at], y / scale), X[at], y, X[here],
            prior=prior, scale=scale, observation_noise=True,
        )  # fmt: skip
        posterior.scale *= _doubt(posterior, logs, numbers) if len(y) else DOUBTS[1]
        return posterior

    def _scale(self, believed: np.ndarray, logs: np.ndarray, numbers: np.ndarray) -> float:
        """Return the usual size of what the prior gets wrong among one problem's runs."""
        if self.prior is not None and not self._rough:
            return max(self.prior.log_spread, LEAST_SPREAD)
        if len(logs) < LEAST_FIT:
            return NO_PRIOR if self.prior is None else self.prior.log_spread
        wrong = _centred(logs - believed, numbers)
        freedom = max(len(logs) - len(set(numbers.tolist())), 1)
        return max(float(np.sqrt((wrong**2).sum() / freedom)), LEAST_SPREAD)

    def _fitted(self, X: np.ndarray, y: np.ndarray) -> Process:
        """Return a process with the likeliest scales, fitted anew when there is much more."""
        axes, unfitted = tuple(self._axes), many_problems(len(self._axes))
        if len(y) < LEAST_FIT:
            return unfitted
        rows, process = self._fits.get(axes, (0, unfitted))
        if not rows <= len(y) < REFIT * rows:
            process = process.fitted(X, y, STEPS)
            self._fits[axes] = len(y), process
        return process

    def _validity(self, fared: Sequence[tuple[Configuration, bool]]) -> np.ndarray:
        """Return how likely each candidate is to run, given how configurations fared."""
        tries: dict[Configuration, list[bool]] = {}
        for config, ran in fared:
            tries.setdefault(config, []).append(ran)
        found = self._p_valid.copy()
        for config, runs in tries.items():
            number = None if all(runs) else self.space.number(config)
            if number is not None:
                found[self._pool == number] *= (sum(runs) + 0.1) / (len(runs) + 0.2)
        return np.clip(found, LEAST_VALID, 1.0)


def many_problems(axes: int) -> Process:
    """Return the process of points that end in the prior and the numbers of configuration, problem.

    Each problem has an offset of its own, and so, a smaller one, has each configuration.
    """
    offsets = SameLabel(axes + 1, OWN), SameLabel(axes + 2, OFFSET.scale)
    return surrogate_process(axes, beside=(Multiple(axes, MULTIPLE), *offsets))


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


def _doubt(posterior: Posterior, logs: np.ndarray, numbers: np.ndarray) -> float:
    """Return how many times wider spreads must be for promises to have been kept.

    Each problem's runs are predicted from all other problems', the one predicted best is chosen
    among them, and what that lost is compared with the loss to expect. Chosen is what looks best,
    so this hinges on the few predictions that are far off, which an average over all errors would
    not show.
    """
    rng = np.random.default_rng(0)
    lost, promised = PRIOR_LOSS, {d: PRIOR_LOSS * d / DOUBTS[1] for d in DOUBTS}
    problems = _several(numbers)
    left_out = posterior.groups_left_out(problems)
    for here, (off, covariance) in zip(problems, left_out, strict=True):
        mean = logs[here] - off
        drawn = rng.standard_normal((DRAWS // 4, len(here))) @ np.linalg.cholesky(covariance).T
        pick = int(np.argmin(mean))
        lost += _loss(logs[None, here], pick)
        for d in DOUBTS:
            promised[d] += _loss(mean + d * drawn, pick)
    return next((d for d in DOUBTS if promised[d] >= lost), DOUBTS[-1])


def _several(numbers: np.ndarray) -> list[np.ndarray]:
    """Return where the runs of each problem are that has several, if not all of them."""
    problems = [np.flatnonzero(numbers == problem) for problem in np.unique(numbers)]
    return [here for here in problems if 1 < len(here) < len(numbers)]


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
