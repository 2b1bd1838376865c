"""Allocates one budget over several problems by expected loss.

The expected loss is a problem's number of calls, times its expected time, times the expected regret
of the current choice. The time of a problem without measurements follows from its work and the rate
on other problems. Measurements reduce losses, so only the largest are recomputed (Minoux's
accelerated greedy algorithm, 1978).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.search.searcher import AskTell
from foretune.search.surrogate import SurrogateSearcher
from foretune.search.surrogate_model import FitCache
from foretune.space import Configuration, SearchSpace

MIN_SUCCESSES = 8  # number of successes of a kernel from which a choice is predicted
REGRET_OFFSET = 0.1
"""Added to every regret, because the model may be overconfident. For the same reason, losses are
divided by the number of measurements."""


@dataclass(frozen=True)
class WorkloadProblem:
    """A problem of a workload.

    Problems of one ``kernel`` inform each other. ``calls`` is the number of calls, ``work`` is
    proportional to the expected time, for example operations; ``default`` runs without tuning.
    Raises UsageError if calls or work are not positive.
    """

    kernel: str
    problem: Problem
    space: SearchSpace
    calls: float
    work: float
    default: Configuration

    def __post_init__(self) -> None:
        for name, value in (("calls", self.calls), ("work", self.work)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(
                    f"{name} of {self.kernel}, {self.problem} is {value}: give a number above 0"
                )


WorkloadItem = tuple[WorkloadProblem, Configuration]


class WorkloadSearcher(AskTell[WorkloadItem]):
    """Proposes which problem to measure next, and with which configuration."""

    def __init__(
        self,
        parts: Sequence[WorkloadProblem],
        objective: Scalarization = Objective.TIME,
        seed: int = 0,
        device: Device | None = None,
    ) -> None:
        self.parts, self.objective, self.seed, self.device = list(parts), objective, seed, device
        self.measured: list[list[Measurement]] = [[] for _ in parts]  # measurements of each part
        self._fits: dict[str, FitCache] = {part.kernel: FitCache() for part in self.parts}
        self._proposed: list[set[Configuration]] = [set() for _ in parts]
        self._searchers: dict[int, tuple[int, SurrogateSearcher]] = {}
        """Searcher of each part, with the number of measurements when it was made."""
        self._losses: dict[int, tuple[tuple[int, int], float]] = {}
        """Expected loss by part, with the numbers of measurements and proposals at that time."""
        self._numbers = {(part.kernel, part.problem): i for i, part in enumerate(self.parts)}

    def ask(self, n: int = 1) -> list[WorkloadItem]:
        """Return up to ``n`` problems, each with the configuration to measure."""
        asked = list[WorkloadItem]()
        while len(asked) < n and (number := self._neediest()) is not None:
            part = self.parts[number]
            fresh = part.default not in self._proposed[number] and not self.measured[number]
            if fresh and part.default in part.space and not self._success_count(part.kernel):
                config = part.default
            else:
                searcher = self.searcher(number)
                searcher.proposed.update(map(part.space.index, self._proposed[number]))
                config = searcher.ask()[0]
            self._proposed[number].add(config)
            asked.append((part, config))
        return asked

    def _neediest(self) -> int | None:
        """Return the part with the largest expected loss; None if all are exhausted."""
        open_parts = [
            i for i, part in enumerate(self.parts) if len(self._proposed[i]) < len(part.space)
        ]
        state = self._measured_count, sum(map(len, self._proposed))
        while open_parts:
            worst = max(open_parts, key=lambda i: self._losses.get(i, (state, math.inf))[1])
            if worst in self._losses and self._losses[worst][0] == state:
                return worst
            self._losses[worst] = state, self.expected_loss_ms(worst)
        return None

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements of any part, proposed or not."""
        for measurement in measurements:
            number = self._numbers[measurement.kernel, measurement.problem]
            self.measured[number].append(measurement)
            self._proposed[number].add(measurement.config)

    def choice(self, number: int) -> Configuration:
        """Return the best measured configuration of a part, else the best predicted.

        Returns the default while the kernel has too few measurements to learn from.
        """
        part = self.parts[number]
        searcher = self.searcher(number)
        if (best := searcher.best()) is not None:
            return best
        if self._success_count(part.kernel) < MIN_SUCCESSES:
            return part.default
        forecast = searcher.search_posterior()
        assert forecast is not None
        return part.space[int(forecast.indices[np.argmin(forecast.expected_regrets)])]

    def expected_loss_ms(self, number: int) -> float:
        """Return the workload's expected loss in ms from the current choice for a part."""
        part, shares = self.parts[number], 1 + len(self._proposed[number])
        if not self.measured[number] and not self._success_count(part.kernel):
            return part.calls * part.work * self._objective_per_work(part.kernel) / shares
        forecast = self.searcher(number).search_posterior()
        regret = min(1.0 if forecast is None else forecast.expected_regret, 1.0) + REGRET_OFFSET
        expected = self._best(number)  # else an estimate from its work
        if not math.isfinite(expected):
            expected = part.work * self._objective_per_work(part.kernel)
        return part.calls * expected * regret / shares

    def searcher(self, number: int) -> SurrogateSearcher:
        """Return the searcher of a part, which has all measurements of its kernel."""
        made, searcher = self._searchers.get(number, (-1, None))
        if searcher is None or made != self._measured_count:
            part = self.parts[number]
            others = [
                m
                for other, found in zip(self.parts, self.measured, strict=True)
                if other.kernel == part.kernel and other is not part
                for m in found
            ]
            searcher = SurrogateSearcher(
                part.space,
                self.objective,
                self.seed,
                None,
                part.problem,
                self.device,
                others,
                fits=self._fits[part.kernel],
            )
            searcher.tell(self.measured[number])
            self._searchers[number] = self._measured_count, searcher
        return searcher

    @property
    def _measured_count(self) -> int:
        return sum(map(len, self.measured))

    def _success_count(self, kernel: str) -> int:
        known = zip(self.parts, self.measured, strict=True)
        return sum(m.ok for part, found in known if part.kernel == kernel for m in found)

    def _best(self, number: int) -> float:
        """Return the smallest measured objective of a part, or infinity."""
        found = [self.objective.value_of(m) for m in self.measured[number]]
        return min((v for v in found if math.isfinite(v)), default=math.inf)

    def _objective_per_work(self, kernel: str) -> float:
        """Return the median objective per work of the kernel, else of all kernels, else 1."""
        best = map(self._best, range(len(self.parts)))
        rates = {i: b / self.parts[i].work for i, b in enumerate(best) if math.isfinite(b)}
        of_kernel = [rate for i, rate in rates.items() if self.parts[i].kernel == kernel]
        return float(np.median(of_kernel or list(rates.values()) or [1.0]))
