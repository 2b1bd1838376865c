"""The interface of searchers: `ask` for configurations, `tell` measurements."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace

DEFAULT_FREEDOM = 10.0
"""Degrees of freedom of a prior's errors whose spread is calibrated."""
PRIOR_CHECKS = (2, 4, 8)
"""With a prior from another device, the proposals after these numbers are far from all others. If
only the prior's favorites were measured, its errors would stay hidden."""
C = TypeVar("C")


@dataclass(frozen=True)
class Prior:
    """Prior over the configurations of a space.

    ``log_mean`` is the log of every configuration's expected objective, ``log_spread`` the
    deviation of its error, ``p_valid`` the probability to run. A ``foreign`` prior comes from
    another device: searchers check it early. ``log_mean_of`` returns the log means of measurements
    of other problems; None if unknown. ``ranks``: whether the first measurements follow its order;
    a rough rule has many ties.

    ``orders`` are log means of several orders by name, whose mean is ``log_mean``: they take turns
    at the first measurements. ``orders_of`` returns what each said of measurements of other
    problems, NaN if unknown. The errors follow a Student law with ``error_freedom`` degrees of
    freedom: few mean that ``log_spread`` is far too small for some kernels.
    """

    log_mean: np.ndarray
    log_spread: float
    p_valid: np.ndarray
    foreign: bool = True
    log_mean_of: Callable[[Sequence[Measurement]], np.ndarray] | None = None
    ranks: bool = True
    orders: Mapping[str, np.ndarray] = field(default_factory=dict)
    orders_of: Callable[[Sequence[Measurement]], Mapping[str, np.ndarray]] | None = None
    error_freedom: float = DEFAULT_FREEDOM

    def log_means(self, measurements: Sequence[Measurement], space: SearchSpace) -> np.ndarray:
        """Return the log means of other problems' measurements; the median if unknown."""
        if self.log_mean_of is not None and measurements:
            return self.log_mean_of(measurements)
        usual = float(np.median(self.log_mean))
        indices = [space.index_or_none(m.config) for m in measurements]
        return np.array([usual if i is None else float(self.log_mean[i]) for i in indices])


class AskTell(Protocol[C]):
    """The interface that the search loop needs; `C` is a configuration, or a problem with one."""

    def ask(self, n: int = 1) -> list[C]:
        """Return up to ``n`` new proposals; none when nothing is left."""

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Learn from measurements, proposed or not."""

    def expected_regret(self) -> float:
        """Return how much slower the incumbent is than the optimum; infinite if unknown."""
        return math.inf

    def expected_improvement(self) -> float:
        """Return the expected gain of one more measurement, relative; infinite if unknown."""
        return math.inf


class Searcher(AskTell[Configuration]):
    """Searches one space for the configuration with the smallest objective.

    A searcher only knows its space and its measurements: no devices, files or clocks. It never
    proposes a configuration twice. The same seed and measurements give the same proposals.
    ``prior`` predicts every configuration. The sizes of the ``problem`` and the cores of the
    ``device`` give numbers of tiles and waves. ``other_measurements`` are of the same kernel on
    other problems; most searchers ignore them.
    """

    uses_prior: bool = False
    """Whether it uses its prior; otherwise `GuidedSearcher` wraps it."""

    def __init__(
        self,
        space: SearchSpace,
        objective: Scalarization = Objective.TIME,
        seed: int = 0,
        prior: Prior | None = None,
        problem: Problem | None = None,
        device: Device | None = None,
        other_measurements: Sequence[Measurement] = (),
    ) -> None:
        if prior is not None and not len(prior.log_mean) == len(prior.p_valid) == len(space):
            raise UsageError(
                f"the prior is for {len(prior.log_mean):,} configurations, the space has "
                f"{len(space):,}: predict this space"
            )
        self.space = space
        self.objective = objective
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.prior = prior
        self.problem = problem or Problem()
        self.device = device
        self.other_measurements = other_measurements
        self.proposed: set[int] = set()
        self.observed: dict[int, float] = {}
        """Objective by configuration number; infinite for failures."""
        self._prepare()

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` new configurations; fewer when the space is exhausted."""
        n = min(n, len(self.space) - len(self.proposed))
        numbers = self._propose(n) if n > 0 else []
        self.proposed.update(numbers)
        return [self.space[i] for i in numbers]

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements, proposed by this searcher or not.

        Raises SpaceError if a configuration is not in the space.
        """
        self.tell_values(
            {self.space.index(m.config): self.objective.value_of(m) for m in measurements}
        )

    def tell_values(self, new_values: dict[int, float]) -> None:
        """Learn objective values by configuration number; infinite for failures."""
        self.proposed.update(new_values)
        self.observed.update(new_values)
        self._learn(new_values)

    def best(self) -> Configuration | None:
        """Return the incumbent, the best measured configuration; None before the first success."""
        finite = {i: value for i, value in self.observed.items() if np.isfinite(value)}
        return self.space[min(finite, key=lambda i: finite[i])] if finite else None

    def _prepare(self) -> None:
        """Initialize the searcher's own state; the arguments are already stored."""

    @abstractmethod
    def _propose(self, n: int) -> list[int]:
        """Return ``n`` configuration numbers that are not in ``self.proposed``."""

    def _learn(self, new_values: dict[int, float]) -> None:
        """Learn new objective values by configuration number; ``observed`` already has them."""

    def random_indices(self, n: int) -> list[int]:
        """Return ``n`` different unproposed numbers, uniformly at random."""
        size = len(self.space)
        if self.space.is_too_large_to_enumerate:
            drawn = self.space.sample_indices(n + len(self.proposed), self.rng)
            return [i for i in drawn.tolist() if i not in self.proposed][:n]
        if len(self.proposed) + n > size // 2:
            free = np.setdiff1d(np.arange(size), list(self.proposed))
            return [int(i) for i in self.rng.choice(free, size=n, replace=False)]
        chosen: dict[int, None] = {}
        while len(chosen) < n:
            i = int(self.rng.integers(size))
            if i not in self.proposed:
                chosen.setdefault(i)
        return list(chosen)


class RandomSearcher(Searcher):
    """Proposes configurations uniformly at random."""

    def _propose(self, n: int) -> list[int]:
        return self.random_indices(n)


class ExhaustiveSearcher(Searcher):
    """Proposes every configuration, by predicted objective if there is a prior."""

    uses_prior = True

    def _prepare(self) -> None:
        if self.prior is None:
            order = np.arange(len(self.space.codes))
        else:
            order = np.argsort(self.prior.log_mean, kind="stable")
        self._order = iter(order.tolist())

    def _propose(self, n: int) -> list[int]:
        return list(islice((i for i in self._order if i not in self.proposed), n))
