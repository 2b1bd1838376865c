"""Several objectives: the Pareto front, its hypervolume, and a searcher.

The searcher follows ParEGO (Knowles, IEEE Transactions on Evolutionary Computation 10, 2006): the
augmented Chebyshev function combines the objectives into one number, also for concave parts of a
front. Unlike Knowles', it combines logarithms, so that 10 % of one objective trades for 10 % of
another. Fixed weights take turns, so that each one's searcher can keep learning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from foretune.device import Device
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.search.factory import SearcherKind, make_searcher
from foretune.search.searcher import AskTell, Prior, Searcher
from foretune.space import Configuration, SearchSpace

AUGMENTATION = 0.05  # Knowles' weight of the sum; it breaks ties of the maximum
CHUNK = 256  # number of points that are compared with all others at a time
WEIGHT_STEPS = 4  # steps between two ends of the weights: five weightings of two objectives


def pareto_front(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of ``values`` (points, objectives) that no other row dominates.

    A row dominates another if it is nowhere larger and somewhere smaller. Equal rows do not
    dominate each other. Rows with infinity or NaN are never on the front.
    """
    points = np.asarray(values, dtype=float)
    if not len(points):
        return np.zeros(0, dtype=bool)
    front = np.isfinite(points).all(axis=1)
    start = 0
    while len(some := start + np.flatnonzero(front[start:])[:CHUNK]):
        others = points[:, None]  # each beside some that nothing dominates so far
        worse = np.all(others >= points[some], axis=2) & np.any(others > points[some], axis=2)
        front &= ~np.any(worse, axis=1)
        start = int(some[-1]) + 1
    return front


def hypervolume(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the exact volume that ``values`` (points, objectives) dominate below ``reference``.

    Computed by slices along the last objective (While et al., IEEE Transactions on Evolutionary
    Computation 10, 2006), down to four objectives, whose slices share a grid of the first two.
    """
    points, corner = np.asarray(values, dtype=float), np.asarray(reference, dtype=float)
    points = points[(points < corner).all(axis=1)] if len(points) else points
    if not len(points):
        return 0.0
    points = points[pareto_front(points)]
    flat = max(4 - len(corner), 0)  # fewer objectives: as thick as 1 along the others
    return _volume(
        np.hstack([points, np.zeros((len(points), flat))]), np.append(corner, np.ones(flat))
    )


def _volume(points: npt.NDArray[np.float64], corner: npt.NDArray[np.float64]) -> float:
    points = points[np.argsort(points[:, -1])]
    depths = np.diff(points[:, -1], append=corner[-1])
    if len(corner) > 4:
        below = (_volume(points[: i + 1, :-1], corner[:-1]) for i in range(len(points)))
        return float(sum(d * v for d, v in zip(depths, below, strict=True)))
    x, columns = np.unique(points[:, 0], return_inverse=True)
    y, rows = np.unique(points[:, 1], return_inverse=True)
    widths, lengths = np.diff(x, append=corner[0]), np.diff(y, append=corner[1])
    heights = np.zeros((len(x), len(y)))
    """The dominated height so far, along the third objective; it never decreases along an axis."""
    slices, volume = np.empty(len(points)), 0.0
    for n, (i, j, height) in enumerate(zip(columns, rows, corner[2] - points[:, 2], strict=True)):
        end_i = heights[:, j].searchsorted(height)
        end_j = heights[i].searchsorted(height)
        raised = heights[i:end_i, j:end_j]
        gain = np.maximum(height - raised, 0.0)
        raised += gain
        volume += widths[i:end_i] @ gain @ lengths[j:end_j]
        slices[n] = volume
    return float(depths @ slices)


@dataclass(frozen=True, eq=False)
class Chebyshev:
    """The augmented Chebyshev function of several log objectives, as one objective.

    ``max_i w_i (log f_i − log f_i*) + ρ Σ_i w_i (log f_i − log f_i*)`` with ρ = `AUGMENTATION`,
    weights w that sum to 1, and the ``ideal`` log f*. Values are its exponential, because searchers
    take logarithms.
    """

    objectives: Sequence[Scalarization]
    weights: Sequence[float]
    ideal: npt.NDArray[np.float64]

    def value_of(self, measurement: Measurement) -> float:
        """Return the combined value; infinite if an objective is infinite or unknown."""
        values = np.array([goal.value_of(measurement) for goal in self.objectives])
        if not np.isfinite(values).all():
            return float("inf")
        return float(np.exp(self.combine_logs(np.log(values))))

    def combine_logs(self, logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the combined log value, from log objectives of shape (…, objectives)."""
        parts = np.asarray(self.weights) * (logs - self.ideal)
        return parts.max(-1) + AUGMENTATION * parts.sum(-1)


def weightings(objectives: int) -> list[tuple[float, ...]]:
    """Return evenly spread weights that sum to 1; none is zero."""
    steps = product(range(WEIGHT_STEPS + 1), repeat=objectives)
    lattice = (w for w in steps if sum(w) == WEIGHT_STEPS)
    return [tuple((i + 0.5) / (WEIGHT_STEPS + objectives / 2) for i in w) for w in lattice]


class ParetoSearcher(AskTell[Configuration]):
    """Searches one space for the Pareto front of several objectives.

    The weightings take turns, in a new random order each round. All ``objectives`` are minimized;
    each has one of the ``priors``. Searchers of the ``kind`` must learn from each other's
    proposals. ``observed``: newest measurement of each configuration.
    """

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[Scalarization] = (Objective.TIME, Objective.ENERGY),
        seed: int = 0,
        priors: Sequence[Prior] | None = None,
        problem: Problem | None = None,
        device: Device | None = None,
        kind: SearcherKind = "surrogate",
    ) -> None:
        self.space = space
        self.objectives = tuple(objectives)
        self.priors = priors and tuple(priors)
        self.observed: dict[Configuration, Measurement] = {}
        self._kind, self._problem, self._device = kind, problem, device
        self._rng = np.random.default_rng(seed)
        self._proposed: set[int] = set()
        self._remaining_weights: list[tuple[float, ...]] = []
        self._searchers: dict[tuple[float, ...], Searcher] = {}
        self._ideal: npt.NDArray[np.float64] | None = None

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` new configurations, each for the next weighting."""
        asked: list[Configuration] = []
        for _ in range(n):
            searcher = self._next_searcher()
            searcher.proposed |= self._proposed
            asked += (new := searcher.ask(1))
            self._proposed.update(map(self.space.index, new))
        return asked

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements, proposed by this searcher or not.

        Raises SpaceError if a configuration is not in the space.
        """
        new_measurements = list(measurements)
        self._proposed.update([self.space.index(m.config) for m in new_measurements])
        self.observed.update({m.config: m for m in new_measurements})
        for searcher in self._searchers.values():
            searcher.tell(new_measurements)

    def front(self) -> list[Measurement]:
        """Return the measurements that no other dominates, sorted by the first objective."""
        if not self.observed:
            return []
        runs, values = list(self.observed.values()), self._values()
        on_it = np.flatnonzero(pareto_front(values))
        return [runs[i] for i in on_it[np.argsort(values[on_it, 0], kind="stable")]]

    def _next_searcher(self) -> Searcher:
        """Return the searcher of the next weighting; all are remade when the ideal moves."""
        prior_logs = self._prior_logs()
        ideal = self._ideal_point(prior_logs)
        if self._ideal is None or (ideal != self._ideal).any():
            self._ideal, self._searchers = ideal, {}
        if not self._remaining_weights:
            every = weightings(len(self.objectives))
            self._remaining_weights = [every[i] for i in self._rng.permutation(len(every))]
        weights = self._remaining_weights.pop()
        if weights not in self._searchers:
            goal = Chebyshev(self.objectives, weights, ideal)
            self._searchers[weights] = self._make_searcher(goal, prior_logs)
        return self._searchers[weights]

    def _make_searcher(
        self, scalarization: Chebyshev, prior_logs: npt.NDArray[np.float64]
    ) -> Searcher:
        prior = None
        if self.priors:
            spread = max(p.log_spread for p in self.priors)
            p_valid = np.min([p.p_valid for p in self.priors], axis=0)
            prior = Prior(scalarization.combine_logs(prior_logs), spread, p_valid)
        seed = int(self._rng.integers(2**31))
        searcher = make_searcher(
            self._kind, self.space, scalarization, seed, prior, self._problem, self._device
        )
        searcher.tell(self.observed.values())
        return searcher

    def _values(self) -> npt.NDArray[np.float64]:
        """Return the objectives of all measurements, shape (measurements, objectives)."""
        rows = [[goal.value_of(m) for goal in self.objectives] for m in self.observed.values()]
        return np.array(rows).reshape(-1, len(self.objectives))

    def _prior_logs(self) -> npt.NDArray[np.float64]:
        """Return the log priors, each corrected by its median error on the measurements."""
        if not self.priors:
            return np.empty((0, len(self.objectives)))
        logs = np.column_stack([p.log_mean for p in self.priors])
        values = self._values()
        known = np.isfinite(values).all(axis=1)
        if not known.any():
            return logs
        numbers = np.array([self.space.index(c) for c in self.observed])[known]
        return logs + np.median(np.log(values[known]) - logs[numbers], axis=0)

    def _ideal_point(self, prior_logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the log of the best value of each objective: measured, else predicted."""
        values = self._values()
        known = values[np.isfinite(values).all(axis=1)]
        logs = np.log(known) if len(known) else prior_logs
        return logs.min(axis=0) if len(logs) else np.zeros(len(self.objectives))
