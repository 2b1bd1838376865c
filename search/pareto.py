"""Several objectives at once: the Pareto front, its hypervolume, and a searcher for it.

The searcher follows ParEGO (Knowles, IEEE Transactions on Evolutionary Computation 10, 2006): a
weighting of the objectives makes one number of them, by the augmented Chebyshev function, and a
searcher of single objectives minimises it, told of everything in that number. Unlike a weighted sum
it reaches parts of a front that bend inwards. Knowles works on costs scaled to 0 … 1, here it is
their logarithms: ten per cent of one objective against ten of another. And where he draws weights
anew for every proposal, here a few take turns, so that each has a searcher that goes on learning.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from foretune.device import Device
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.search.factory import make_searcher
from foretune.search.searcher import Prior, Searcher
from foretune.space import Configuration, SearchSpace

AUGMENTATION = 0.05
"""Knowles' weight of the sum beside the maximum: of two that tie, the one better in all wins."""
WEIGHT_STEPS = 4
"""Steps from one end of the weights to the other: five weightings of two objectives."""


def pareto_front(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which rows no other row dominates.

    One dominates another if it is nowhere larger and somewhere smaller; equals do not. What is
    infinite or NaN anywhere never belongs to the front.

    Args:
        values: smaller is better, shape (points, objectives).
    """
    points = np.asarray(values, dtype=float)
    if not len(points):
        return np.zeros(0, dtype=bool)
    front = np.isfinite(points).all(axis=1)
    for i in np.flatnonzero(front):
        if front[i]:  # whoever is dominated by a dominated point is dominated by its better, too
            front &= ~((points >= points[i]).all(axis=1) & (points > points[i]).any(axis=1))
    return front


def hypervolume(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the volume that ``values`` dominate within ``reference``, exactly.

    Slice by slice along the last objective, each slice's cross-section the same way (While et al.,
    IEEE Transactions on Evolutionary Computation 10, 2006): quick for two objectives or three.

    Args:
        values: smaller is better, shape (points, objectives).
        reference: the corner that bounds the volume; what is not below it adds nothing.
    """
    points, corner = np.asarray(values, dtype=float), np.asarray(reference, dtype=float)
    points = points[(points < corner).all(axis=1)] if len(points) else points
    if not len(points):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - points.min())
    points = points[pareto_front(points)]
    points = points[np.argsort(points[:, -1])]
    depths = np.diff(points[:, -1], append=corner[-1])
    sections = (hypervolume(points[: i + 1, :-1], corner[:-1]) for i in range(len(points)))
    return float(sum(d * s for d, s in zip(depths, sections, strict=True) if d))


@dataclass(frozen=True, eq=False)
class Chebyshev:
    """Several objectives made into one, the augmented Chebyshev function of their logarithms.

    ``max_i w_i (log f_i − log f_i*) + ρ Σ_i w_i (log f_i − log f_i*)`` with ρ = `AUGMENTATION`;
    given as its exponential, for searchers take logarithms.

    Attributes:
        objectives: what is combined.
        weights: of each, adding up to 1.
        ideal: logarithm of the best value of each, f*.
    """

    objectives: Sequence[Scalarization]
    weights: Sequence[float]
    ideal: npt.NDArray[np.float64]

    def value_of(self, measurement: Measurement) -> float:
        """Return the number of a measurement: infinite if an objective is, or unknown."""
        values = np.array([goal.value_of(measurement) for goal in self.objectives])
        if not np.isfinite(values).all():
            return float("inf")
        return float(np.exp(self.combine_logs(np.log(values))))

    def combine_logs(self, logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the logarithm of the number from logarithms, shape (…, objectives)."""
        parts = np.asarray(self.weights) * (logs - self.ideal)
        combined: npt.NDArray[np.float64] = parts.max(-1) + AUGMENTATION * parts.sum(-1)
        return combined


def weightings(objectives: int) -> list[tuple[float, ...]]:
    """Return weights evenly spread over all that add up to 1, none of them zero."""
    lattice = (
        w for w in product(range(WEIGHT_STEPS + 1), repeat=objectives) if sum(w) == WEIGHT_STEPS
    )
    return [tuple((i + 0.5) / (WEIGHT_STEPS + objectives / 2) for i in w) for w in lattice]


class ParetoSearcher:
    """Searches one space for the Pareto front of several objectives.

    The weightings take turns, in a new random order each time around.

    Args:
        space: what is searched.
        objectives: all are minimised.
        seed: of everything random.
        priors: predictions of every configuration, one per objective; None has none.
        problem: what is computed.
        device: where.
        kind: of searcher to ask; it should learn from what it did not propose itself.

    Attributes:
        observed: what was measured, by configuration; the newest counts.
    """

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[Scalarization] = (Objective.TIME, Objective.ENERGY),
        seed: int = 0,
        priors: Sequence[Prior] | None = None,
        problem: Problem | None = None,
        device: Device | None = None,
        kind: str | Callable[..., Searcher] = "surrogate",
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
        """Return up to ``n`` configurations not proposed before, each for the next weighting."""
        asked: list[Configuration] = []
        for _ in range(n):
            searcher = self._next_searcher()
            searcher.proposed |= self._proposed
            asked += (new := searcher.ask(1))
            self._proposed.update(map(self.space.index, new))
        return asked

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements, proposed by this searcher or not.

        Raises:
            SpaceError: one is of a configuration outside the space.
        """
        new_measurements = list(measurements)
        self._proposed.update([self.space.index(m.config) for m in new_measurements])
        self.observed.update({m.config: m for m in new_measurements})
        for searcher in self._searchers.values():
            searcher.tell(new_measurements)

    def expected_regret(self) -> float:
        """Return infinity: it is unknown."""
        return math.inf

    def expected_improvement(self) -> float:
        """Return infinity: it is unknown."""
        return math.inf

    def front(self) -> list[Measurement]:
        """Return the measurements that no other dominates, least of the first objective first."""
        if not self.observed:
            return []
        runs, values = list(self.observed.values()), self._values()
        on_it = np.flatnonzero(pareto_front(values))
        return [runs[i] for i in on_it[np.argsort(values[on_it, 0], kind="stable")]]

    def _next_searcher(self) -> Searcher:
        """Return the searcher of the next weighting; all are new when the ideal has moved."""
        prior_logs = self._prior_logs()
        ideal = self._ideal_point(prior_logs)
        if self._ideal is None or (ideal != self._ideal).any():
            self._ideal, self._searchers = ideal, {}
        if not self._remaining_weights:
            every = weightings(len(self.objectives))
            self._remaining_weights = [every[i] for i in self._rng.permutation(len(every))]
        weights = self._remaining_weights.pop()
        if weights not in self._searchers:
            self._searchers[weights] = self._make_searcher(
                Chebyshev(self.objectives, weights, ideal), prior_logs
            )
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
        """Return the objectives of everything told, shape (measurements, objectives)."""
        rows = [[goal.value_of(m) for goal in self.objectives] for m in self.observed.values()]
        return np.array(rows).reshape(-1, len(self.objectives))

    def _prior_logs(self) -> npt.NDArray[np.float64]:
        """Return the priors' logarithms, each less what it is usually off by here."""
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
        """Return the logarithm of the best value of each objective, measured or else believed."""
        values = self._values()
        known = values[np.isfinite(values).all(axis=1)]
        logs = np.log(known) if len(known) else prior_logs
        return logs.min(axis=0) if len(logs) else np.zeros(len(self.objectives))
