"""A searcher for the Pareto front of several objectives.

It follows ParEGO (Knowles, IEEE Transactions on Evolutionary Computation 10, 2006): the
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
from foretune.search.pareto_front import pareto_front
from foretune.search.searcher import AskTell, Prior, Searcher
from foretune.space import Configuration, SearchSpace

AUGMENTATION = 0.05
"""Knowles' weight of the sum; it breaks ties of the maximum."""
WEIGHT_STEPS = 4
"""Steps between two ends of the weights: five weightings of two objectives."""


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


def weightings(n_objectives: int) -> list[tuple[float, ...]]:
    """Return evenly spread weights that sum to 1; none is zero."""
    # Points of a lattice whose coordinates sum to WEIGHT_STEPS, moved inside by half a step.
    total = WEIGHT_STEPS + n_objectives / 2
    points = product(range(WEIGHT_STEPS + 1), repeat=n_objectives)
    lattice = [point for point in points if sum(point) == WEIGHT_STEPS]
    return [tuple((steps + 0.5) / total for steps in point) for point in lattice]


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
        self._kind = kind
        self._problem = problem
        self._device = device
        self._rng = np.random.default_rng(seed)
        self._proposed: set[int] = set()
        self._remaining_weights: list[tuple[float, ...]] = []
        """Weightings whose turn comes in this round, the next one last."""
        self._searchers: dict[tuple[float, ...], Searcher] = {}
        """A searcher per weighting, all for the same ideal."""
        self._ideal: npt.NDArray[np.float64] | None = None

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` new configurations, each for the next weighting."""
        proposals: list[Configuration] = []
        for _ in range(n):
            searcher = self._next_searcher()
            searcher.proposed |= self._proposed
            new = searcher.ask(1)
            proposals += new
            self._proposed.update(map(self.space.index, new))
        return proposals

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
        measurements = list(self.observed.values())
        values = self._values()
        front = np.flatnonzero(pareto_front(values))
        by_first_objective = front[np.argsort(values[front, 0], kind="stable")]
        return [measurements[i] for i in by_first_objective]

    def _next_searcher(self) -> Searcher:
        """Return the searcher of the next weighting; all are remade when the ideal moves."""
        prior_logs = self._prior_logs()
        ideal = self._ideal_point(prior_logs)
        if self._ideal is None or (ideal != self._ideal).any():
            self._ideal = ideal
            self._searchers = {}

        # Each round has all weightings, in a new order.
        if not self._remaining_weights:
            weights_of_round = weightings(len(self.objectives))
            order = self._rng.permutation(len(weights_of_round))
            self._remaining_weights = [weights_of_round[i] for i in order]
        weights = self._remaining_weights.pop()
        if weights not in self._searchers:
            scalarization = Chebyshev(self.objectives, weights, ideal)
            self._searchers[weights] = self._make_searcher(scalarization, prior_logs)
        return self._searchers[weights]

    def _make_searcher(
        self, scalarization: Chebyshev, prior_logs: npt.NDArray[np.float64]
    ) -> Searcher:
        """Return a searcher that has learned all measurements so far."""
        prior = None
        if self.priors:
            prior = Prior(
                log_mean=scalarization.combine_logs(prior_logs),
                log_spread=max(prior.log_spread for prior in self.priors),
                p_valid=np.min([prior.p_valid for prior in self.priors], axis=0),
            )
        searcher = make_searcher(
            self._kind,
            self.space,
            scalarization,
            seed=int(self._rng.integers(2**31)),
            prior=prior,
            problem=self._problem,
            device=self._device,
        )
        searcher.tell(self.observed.values())
        return searcher

    def _values(self) -> npt.NDArray[np.float64]:
        """Return the objectives of all measurements, shape (measurements, objectives)."""
        columns = [
            [objective.value_of(measurement) for measurement in self.observed.values()]
            for objective in self.objectives
        ]
        return np.array(columns, dtype=float).T

    def _prior_logs(self) -> npt.NDArray[np.float64]:
        """Return the log priors, each corrected by its median error on the measurements."""
        if not self.priors:
            return np.empty((0, len(self.objectives)))
        prior_logs = np.column_stack([prior.log_mean for prior in self.priors])
        values = self._values()
        is_known = np.isfinite(values).all(axis=1)
        if not is_known.any():
            return prior_logs
        numbers = np.array([self.space.index(config) for config in self.observed])
        log_errors = np.log(values[is_known]) - prior_logs[numbers[is_known]]
        return prior_logs + np.median(log_errors, axis=0)

    def _ideal_point(self, prior_logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the log of the best value of each objective: measured, else predicted."""
        values = self._values()
        known = values[np.isfinite(values).all(axis=1)]
        logs = np.log(known) if len(known) else prior_logs
        if not len(logs):
            return np.zeros(len(self.objectives))
        return logs.min(axis=0)
