"""The searcher's seam: `ask` for configurations, `tell` what came of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace


@dataclass(frozen=True)
class Prior:
    """What is believed about a space before anything of it is measured.

    Attributes:
        log_mean: natural logarithm of the expected objective of every configuration.
        log_spread: standard deviation of its error.
        p_valid: probability that each configuration runs.
        foreign: whether it comes from elsewhere and has to be checked early on; what was learned on
            this very device need not be.
        log_mean_of: returns what would have been believed likewise of measurements of other
            problems; None where nobody knows.
    """

    log_mean: np.ndarray
    log_spread: float
    p_valid: np.ndarray
    foreign: bool = True
    log_mean_of: Callable[[Sequence[Measurement]], np.ndarray] | None = None


C = TypeVar("C")


class AskTell(Protocol[C]):
    """What the search loop needs of a searcher; it may propose more than configurations."""

    def ask(self, n: int = 1) -> list[C]:
        """Return up to ``n`` proposals, each only once; none when nothing is left."""

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Learn from measurements, proposed or not."""

    def expected_regret(self) -> float:
        """Return the expected regret of the incumbent, relative; infinite if unknown."""

    def expected_improvement(self) -> float:
        """Return the expected gain of one more measurement, relative; infinite if unknown."""


class Searcher(ABC):
    """Searches one space for the configuration of least objective.

    It knows the space and what it was told, and nothing of devices, files or clocks. It never
    proposes a configuration twice, and the same seed and answers give the same proposals.

    Args:
        space: what is searched.
        objective: what is minimised.
        seed: of everything random.
        prior: predictions of every configuration. A searcher that cannot use one is guided by
            another that can (`foretune.search.guided`).
        problem: what is computed, where it is known: its sizes say how many tiles there are.
        device: where, if known.
        other_measurements: measurements of the same kernel on other problems; searchers that
            cannot use them ignore them.
    """

    uses_prior: bool = False
    """Whether it goes by its prior."""

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
                f"the prior is of {len(prior.log_mean):,} configurations, the space has "
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
        self.costs_s: dict[int, float] = {}
        """Seconds that measuring took, by configuration number, if known."""
        self._prepare()

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` configurations not proposed before; fewer when the space runs out."""
        n = min(n, len(self.space) - len(self.proposed))
        numbers = self._propose(n) if n > 0 else []
        self.proposed.update(numbers)
        return [self.space[i] for i in numbers]

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements, proposed by this searcher or not.

        Raises:
            SpaceError: one is of a configuration outside the space.
        """
        values: dict[int, float] = {}
        for m in measurements:
            values[index := self.space.index(m.config)] = self.objective.value_of(m)
            if math.isfinite(m.cost_s):
                self.costs_s[index] = m.cost_s
        self.tell_values(values)

    def tell_values(self, new_values: dict[int, float]) -> None:
        """Learn objective values by configuration number; infinite for failures."""
        self.proposed.update(new_values)
        self.observed.update(new_values)
        self._learn(new_values)

    def best(self) -> Configuration | None:
        """Return the incumbent: the best configuration told of; None before the first success."""
        finite = {i: value for i, value in self.observed.items() if np.isfinite(value)}
        return self.space[min(finite, key=lambda i: finite[i])] if finite else None

    def expected_regret(self) -> float:
        """Return how much slower than the optimum `best` is expected to be, relative.

        Infinite where the searcher cannot tell.
        """
        return math.inf

    def expected_improvement(self) -> float:
        """Return by how much one more measurement is expected to improve on `best`, relative.

        Infinite where the searcher cannot tell.
        """
        return math.inf

    def _prepare(self) -> None:
        """Set up what the searcher keeps; space, objective, seed and prior are there."""

    @abstractmethod
    def _propose(self, n: int) -> list[int]:
        """Return ``n`` numbers of configurations that are not in ``self.proposed``."""

    def _learn(self, new_values: dict[int, float]) -> None:
        """Take in new objective values by configuration number; ``told`` has them already."""

    def random_indices(self, n: int) -> list[int]:
        """Return ``n`` different numbers that were not proposed, uniformly."""
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
