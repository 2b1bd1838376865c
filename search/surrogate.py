"""Surrogate search: a Gaussian process on what the prior gets wrong.

The prior, a predictor trained on other problems or devices, gives every configuration a mean. What
is measured here corrects it: how far it can be trusted at all (a multiple of it, which tends to
minus one where it misleads), and by a smooth function of the configuration's `Coordinates`. A few
early proposals go where the prior does not lead, for else it would never be caught. Without a prior
the process does all the work, after a first design that spreads the measurements as far apart as
they will go. The next configuration is the one of largest expected improvement (Jones, Schonlau and
Welch, Journal of Global Optimization 13, 1998) times its probability to run.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from foretune.models.process.posterior import Posterior
from foretune.models.process.terms import Multiple
from foretune.search.acquisition import log_expected_improvement
from foretune.search.coordinates import Coordinates
from foretune.search.costs import log_seconds
from foretune.search.feasibility import Feasibility
from foretune.search.forecast import Forecast
from foretune.search.pool import pool
from foretune.search.searcher import Searcher
from foretune.search.surrogate_process import (
    MULTIPLE,
    OFFSET,
    REFIT,
    STEPS,
    most_telling,
    one_thread,
    surrogate_process,
)
from foretune.space import Configuration

POOL = 8000
"""Candidates the process looks at; of a larger space some, which change as it learns (`pool`)."""
FIRST = 6
"""Without a prior, measurements of the first design."""
CONTRASTS = (2, 4, 8)
"""With a prior from elsewhere, after so many proposals one is far from all others instead: where
everything that was measured is what the prior likes, nothing shows that it is wrong."""
UNLIKELY = 0.15
"""Where some failed, what is less likely to run than this share of the likeliest waits."""
LEAST_VALID = 0.05
"""No prior is believed that says of nearly everything that it cannot run."""


class SurrogateSearcher(Searcher):
    """Expected improvement under prior plus Gaussian-process correction."""

    uses_prior = True

    def _prepare(self) -> None:
        self._coordinates = Coordinates(self.space, self.problem, self.device)
        self._believed, self._scale, amplitude = self._read_prior()
        axes = len(self._coordinates)
        self._process = surrogate_process(axes, amplitude, (OFFSET, Multiple(axes, MULTIPLE)))
        self._posterior: Posterior | None = None
        self._fitted = 0
        self._seen: set[int] = set()
        """Configurations that were looked at."""
        self._known: list[int] = []
        """Those of them that the posterior was told of, in its order."""
        tells = self.prior is not None and np.ptp(self.prior.p_valid) > 0
        believed = self._runs() if tells else None
        seed = int(self.rng.integers(2**31))
        self._feasibility = Feasibility(self._coordinates.of, believed, seed)
        self._seconds: dict[int, float] = {}
        """What measurements took, by configuration number, where time is the budget."""
        self._judged = 0, -1
        """Measurements and failures that `_p_valid` takes into account."""
        self._refresh_pool()

    def _propose(self, n: int) -> list[int]:
        with one_thread():
            return self._choose(n)

    def _choose(self, n: int) -> list[int]:
        guided, enough = self._believed is not None, self._enough()
        self._judge()
        if enough:
            self._learn_all()
        chosen: list[int] = []
        while len(chosen) < n:
            free = ~np.isin(self._pool, [*self.proposed, *chosen])
            if not free.any():
                chosen += [i for i in self.random_numbers(n) if i not in chosen][: n - len(chosen)]
            elif self._in_doubt() and len(self.proposed) + len(chosen) in CONTRASTS:
                runs = self._p_valid >= min(0.5, self._p_valid[free].max())
                chosen.append(self._farthest(free & runs, chosen, self._coordinates.of))
            elif enough:
                chosen.append(self._improver(free, chosen))
            elif guided:
                promise = np.log(self._p_valid) - self._prior_of(self._pool)
                chosen.append(int(self._pool[np.argmax(np.where(free, promise, -np.inf))]))
            elif self._mostly_fails():
                likely = self._p_valid >= self.rng.random() * self._p_valid[free].max()
                chosen.append(int(self.rng.choice(self._pool[free & likely])))
            else:
                chosen.append(self._farthest(free, chosen, self._screening))
        return chosen

    def _in_doubt(self) -> bool:
        """Whether there is a prior that nobody has checked on this device."""
        return self._believed is not None and self.prior is not None and self.prior.foreign

    def _enough(self) -> bool:
        """Whether there is anything to learn from."""
        successes = sum(np.isfinite(v) for v in self.told.values())
        return successes > 0 and (self._believed is not None or len(self.told) >= FIRST)

    def _mostly_fails(self) -> bool:
        """Whether extremes fail more often than not: then they show nothing of what is fast."""
        failed = sum(not np.isfinite(v) for v in self.told.values())
        return 2 * failed > max(len(self.told), 2)

    def _screening(self, numbers: np.ndarray) -> np.ndarray:
        """Return where configurations stand along the parameters, one as long as the other.

        Spread out along these, corners come first, as in a two-level screening design: a few
        measurements show every main effect.
        """
        last = np.array([max(len(v) - 1, 1) for v in self.space.parameters.values()])
        return self.space.codes_of(numbers) / last

    def _farthest(
        self, free: np.ndarray, chosen: list[int], place: Callable[[np.ndarray], np.ndarray]
    ) -> int:
        """Return the candidate ``place``d farthest from all proposed; the first one is random."""
        candidates = self._pool[free]
        others = [*self.proposed, *chosen]
        if not others:
            return int(self.rng.choice(candidates))
        points, known = place(candidates), place(np.array(others))
        squares = (known**2).sum(axis=1) - 2 * points @ known.T
        return int(candidates[np.argmax((points**2).sum(axis=1) + squares.min(axis=1))])

    def regret(self) -> float:
        """Return how much slower than the optimum `best` is expected to be, relative.

        Infinite before anything ran, without a prior before the end of the first design, and with
        one from elsewhere before the last of the `CONTRASTS`.
        """
        forecast = self._forecast()
        return math.inf if forecast is None else forecast.regret

    def gain(self) -> float:
        """Return by how much one more measurement is expected to improve on `best`, relative."""
        forecast = self._forecast()
        free = ~np.isin(self._pool, list(self.proposed))
        return math.inf if forecast is None else forecast.gain(free)

    def took(self, seconds: Mapping[Configuration, float]) -> None:
        """Learn what measurements cost: from now on, improvement counts by the second.

        That is expected improvement per second (Snoek, Larochelle and Adams, NeurIPS 2012).
        """
        self._seconds |= {self.space.index(config): s for config, s in seconds.items()}

    def _forecast(self) -> Forecast | None:
        """Return what is known of all candidates; None before the searcher can tell."""
        if not self._enough() or (self._in_doubt() and len(self.told) <= CONTRASTS[-1]):
            return None
        with one_thread():
            self._judge()
            self._learn_all()
            posterior = self._told_posterior()
            values = [self.told.get(i, math.nan) for i in self._pool.tolist()]
            return Forecast(self._pool, posterior, self._p_valid, np.array(values))

    def _told_posterior(self) -> Posterior:
        """Return the posterior of the logarithms of all candidates, nothing being under way."""
        assert self._posterior is not None
        y, offset = self._residuals()
        self._posterior.prior = self._scale * (self._prior_of(self._pool) + offset)
        self._posterior.scale = self._scale
        self._posterior.tell(self._scale * y)
        return self._posterior

    def _improver(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate of largest expected improvement, ``chosen`` being under way."""
        posterior = self._told_posterior()
        pending = [*(self.proposed - self.told.keys()), *chosen]
        if pending:  # believe of those what is expected: their neighbours gain nothing
            posterior.add(self._points(np.array(pending)))
        best = min(np.log(v) for v in self.told.values() if np.isfinite(v))
        promise = self._promise(best, posterior) + np.log(self._p_valid)
        if self._seconds:  # improvement per second
            measured = self._coordinates.of(np.array(list(self._seconds)))
            candidates = self._coordinates.of(self._pool)
            promise -= log_seconds(measured, candidates, self._seconds, self.rng)
        if self._judged[1] > 0:  # no hope of improvement makes up for what hardly ever runs
            free = free & (self._p_valid >= UNLIKELY * self._p_valid[free].max())
        posterior.forget(len(pending))
        return int(self._pool[np.argmax(np.where(free, promise, -np.inf))])

    def _promise(self, best: float, posterior: Posterior) -> np.ndarray:
        """Return the logarithm of the expected improvement on ``best``."""
        return log_expected_improvement(posterior, best)

    def _learn_all(self) -> None:
        """Bring the posterior up to everything told so far."""
        new = [i for i in self.told if i not in self._seen]
        self._seen.update(new)
        known = np.isin(list(self.told), self._pool).all()
        if self._posterior is None or not known or len(self.told) >= REFIT * self._fitted:
            self._fitted = len(self.told)
            if len(self._pool) < len(self.space):
                self._refresh_pool()
            if self._believed is None:
                logs = np.log([v for v in self.told.values() if np.isfinite(v)])
                self._scale = float(np.std(logs)) or 1.0
            ran = {i: v for i, v in self.told.items() if np.isfinite(v)}
            at = np.array(list(ran))
            at = at[most_telling(np.array(list(ran.values())), self.rng)]
            self._known = at.tolist()
            X, y = self._points(at), self._residuals()[0]
            self._process = self._process.fitted(X, y, STEPS)
            self._posterior = Posterior(self._process, X, y, self._points(self._pool))
        elif new := [i for i in new if np.isfinite(self.told[i])]:
            self._known += new
            self._posterior.add(self._points(np.array(new)))

    def _residuals(self) -> tuple[np.ndarray, float]:
        """Return what the prior got wrong of `_known`, in units of scale, and the usual error."""
        logs = np.log([self.told[i] for i in self._known]) / self._scale
        wrong = logs - self._prior_of(np.array(self._known))
        offset = float(np.median(wrong))
        return wrong - offset, offset

    def _read_prior(self) -> tuple[np.ndarray | None, float, float]:
        """Return the prior in units of its own spread, that unit, and how wrong it may be."""
        if self.prior is None or not np.ptp(self.prior.log_mean):
            return None, 1.0, 1.0
        scale = float(np.std(self.prior.log_mean))
        believed = (self.prior.log_mean - self.prior.log_mean.mean()) / scale
        return believed, scale, float(np.clip(self.prior.log_spread / scale, 0.2, 1.0))

    def _points(self, numbers: np.ndarray) -> np.ndarray:
        """Return configurations as the process sees them."""
        return np.column_stack([self._coordinates.of(numbers), self._prior_of(numbers)])

    def _prior_of(self, numbers: np.ndarray) -> np.ndarray:
        return np.zeros(len(numbers)) if self._believed is None else self._believed[numbers]

    def _refresh_pool(self) -> None:
        """Choose the candidates."""
        promise = None if self._believed is None else np.log(self._runs()) - self._believed
        self._pool = pool(self, POOL, promise)
        self._judged = 0, -1
        self._judge()

    def _judge(self) -> None:
        """Bring up to date how likely the candidates are to run."""
        failed = sum(not np.isfinite(v) for v in self.told.values())
        judged, known = self._judged
        if failed != known or (failed and len(self.told) >= REFIT * judged):
            self._judged = len(self.told), failed
            self._p_valid = self._feasibility.of(self._pool, self.told)

    def _runs(self) -> np.ndarray:
        """Return how likely every configuration is to run, by the prior."""
        assert self.prior is not None
        return np.maximum(self.prior.p_valid, LEAST_VALID)
