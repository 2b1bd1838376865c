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


@dataclass(frozen=True)
class _Progress:
    """How far the whole workload is; what was computed at another point is out of date."""

    measured: int
    proposed: int


@dataclass(frozen=True)
class _PartSearcher:
    """Searcher of a part, with the workload's number of measurements when it was made."""

    measured: int
    searcher: SurrogateSearcher


@dataclass(frozen=True)
class _PartLoss:
    """Expected loss of a part at some point."""

    progress: _Progress
    loss_ms: float


class WorkloadSearcher(AskTell[WorkloadItem]):
    """Proposes which problem to measure next, and with which configuration."""

    def __init__(
        self,
        parts: Sequence[WorkloadProblem],
        objective: Scalarization = Objective.TIME,
        seed: int = 0,
        device: Device | None = None,
    ) -> None:
        self.parts = list(parts)
        self.objective = objective
        self.seed = seed
        self.device = device
        self.measured: list[list[Measurement]] = [[] for _ in parts]
        """Measurements of each part."""
        self._proposed: list[set[Configuration]] = [set() for _ in parts]
        self._part_numbers = {(p.kernel, p.problem): i for i, p in enumerate(self.parts)}

        self._fits = {part.kernel: FitCache() for part in self.parts}
        self._searchers: dict[int, _PartSearcher] = {}
        self._losses: dict[int, _PartLoss] = {}

    def ask(self, n: int = 1) -> list[WorkloadItem]:
        """Return up to ``n`` problems, each with the configuration to measure."""
        asked = list[WorkloadItem]()
        while len(asked) < n:
            number = self._part_with_largest_loss()
            if number is None:  # all parts are exhausted
                break
            config = self._next_config(number)
            self._proposed[number].add(config)
            asked.append((self.parts[number], config))
        return asked

    def _next_config(self, number: int) -> Configuration:
        """Return what to measure next of a part."""
        part = self.parts[number]

        # While nothing of the kernel has run, a part starts with its default.
        is_new = not self.measured[number] and part.default not in self._proposed[number]
        if is_new and part.default in part.space and not self._success_count(part.kernel):
            return part.default

        searcher = self.searcher(number)
        searcher.proposed.update(part.space.index(config) for config in self._proposed[number])
        return searcher.ask()[0]

    def _part_with_largest_loss(self) -> int | None:
        """Return the part with the largest expected loss; None if all are exhausted.

        Measurements reduce losses, so a loss that is out of date counts as an upper bound. If the
        largest is up to date, it is the largest of all.
        """
        open_parts = [
            i for i, part in enumerate(self.parts) if len(self._proposed[i]) < len(part.space)
        ]
        now = _Progress(self._measured_count, proposed=sum(map(len, self._proposed)))
        while open_parts:
            largest = max(open_parts, key=self._last_loss)
            known = self._losses.get(largest)
            if known is not None and known.progress == now:
                return largest
            self._losses[largest] = _PartLoss(now, self.expected_loss_ms(largest))
        return None

    def _last_loss(self, number: int) -> float:
        known = self._losses.get(number)
        return math.inf if known is None else known.loss_ms

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements of any part, proposed or not."""
        for measurement in measurements:
            number = self._part_numbers[measurement.kernel, measurement.problem]
            self.measured[number].append(measurement)
            self._proposed[number].add(measurement.config)

    def choice(self, number: int) -> Configuration:
        """Return the best measured configuration of a part, else the best predicted.

        Returns the default while the kernel has too few measurements to learn from.
        """
        part = self.parts[number]
        searcher = self.searcher(number)
        best = searcher.best()
        if best is not None:
            return best
        if self._success_count(part.kernel) < MIN_SUCCESSES:
            return part.default

        posterior = searcher.search_posterior()
        assert posterior is not None
        best_predicted = int(np.argmin(posterior.expected_regrets))
        return part.space[int(posterior.indices[best_predicted])]

    def expected_loss_ms(self, number: int) -> float:
        """Return the workload's expected loss in ms from the current choice for a part."""
        part = self.parts[number]
        work_ms = part.work * self._objective_per_work(part.kernel)
        n_shares = 1 + len(self._proposed[number])
        if not self.measured[number] and not self._success_count(part.kernel):
            return part.calls * work_ms / n_shares

        posterior = self.searcher(number).search_posterior()
        expected_regret = 1.0 if posterior is None else min(posterior.expected_regret, 1.0)
        best_ms = self._best_objective(number)
        expected_ms = best_ms if math.isfinite(best_ms) else work_ms
        return part.calls * expected_ms * (expected_regret + REGRET_OFFSET) / n_shares

    def searcher(self, number: int) -> SurrogateSearcher:
        """Return the searcher of a part, which has all measurements of its kernel."""
        known = self._searchers.get(number)
        if known is not None and known.measured == self._measured_count:
            return known.searcher

        part = self.parts[number]
        searcher = SurrogateSearcher(
            part.space,
            self.objective,
            self.seed,
            prior=None,
            problem=part.problem,
            device=self.device,
            other_measurements=self._measurements_of_other_parts(part),
            fits=self._fits[part.kernel],
        )
        searcher.tell(self.measured[number])
        self._searchers[number] = _PartSearcher(self._measured_count, searcher)
        return searcher

    def _measurements_of_other_parts(self, part: WorkloadProblem) -> list[Measurement]:
        """Return the measurements of the kernel's other problems."""
        measurements: list[Measurement] = []
        for other, of_other in zip(self.parts, self.measured, strict=True):
            if other.kernel == part.kernel and other is not part:
                measurements += of_other
        return measurements

    @property
    def _measured_count(self) -> int:
        return sum(map(len, self.measured))

    def _success_count(self, kernel: str) -> int:
        return sum(
            measurement.ok
            for part, measurements in zip(self.parts, self.measured, strict=True)
            if part.kernel == kernel
            for measurement in measurements
        )

    def _best_objective(self, number: int) -> float:
        """Return the smallest measured objective of a part, or infinity."""
        values = [self.objective.value_of(m) for m in self.measured[number]]
        return min((value for value in values if math.isfinite(value)), default=math.inf)

    def _objective_per_work(self, kernel: str) -> float:
        """Return the median objective per work of the kernel, else of all kernels, else 1."""
        of_kernel: list[float] = []
        of_all: list[float] = []
        for number, part in enumerate(self.parts):
            best = self._best_objective(number)
            if not math.isfinite(best):
                continue
            of_all.append(best / part.work)
            if part.kernel == kernel:
                of_kernel.append(best / part.work)
        return float(np.median(of_kernel or of_all or [1.0]))
