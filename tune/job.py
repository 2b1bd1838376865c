"""A session: what one tuning job has at hand, said once and handed down whole."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from foretune.collect import Runner
from foretune.collect.machine_load import wait_until_idle
from foretune.collect.power import explain_missing_meter, find_meter
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import ConstrainedObjective, Limit, Objective, limitable_columns_of
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search.drivers import run
from foretune.search.loop import SearchResult, search
from foretune.search.searcher import AskTell
from foretune.search.stopping import Stopping
from foretune.space import Configuration, SearchSpace
from foretune.tune.record import SharedMeasurementCache

if TYPE_CHECKING:
    from foretune.search.factory import SearcherKind

C = TypeVar("C", bound=Hashable)

DEFAULT_BUDGET = 10
"""Measurements of a search, where nobody says how many, nor how long."""
DEFAULT_STOPPING = Stopping(DEFAULT_BUDGET)
MAX_PARALLEL = 4
"""Configurations of a problem that are measured at the same time at most: what the first of them
would tell comes too late for the others."""
DEFAULT_REGRET = 0.03
"""Accepted where measuring goes on until the regret is small, and nobody says how small."""


@dataclass(frozen=True)
class TuningJob:
    """What a tuning job has at hand, whatever the problem.

    Attributes:
        kernel: what is tuned.
        runner: measures; its device is the one tuned for.
        cache: what is known, and where measurements go.
        objectives: what is minimised.
        limits: what breaks one of them failed, to a search, and never wins.
        searcher: registered name, `Searcher` class, or a sampler of Optuna.
        stopping: when a search is over.
        seed: of everything random.
        progress: told what happens.
        patience_s: how long to wait for a machine that does nothing else.

    Raises:
        MeterUnavailable: objectives or limits need power, which this machine cannot measure.
    """

    kernel: Kernel
    runner: Runner
    cache: SharedMeasurementCache
    objectives: tuple[Objective, ...] = (Objective.TIME,)
    limits: tuple[Limit, ...] = ()
    searcher: "SearcherKind" = "surrogate"
    stopping: Stopping = DEFAULT_STOPPING
    seed: int = 0
    progress: Progress = SILENT
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        needs = [f"objective {o.value!r}" for o in self.objectives if o.needs_power]
        way_out = "use --objective time" if needs else "leave that limit out"
        needs += [f"limit {limit.column!r}" for limit in self.limits if limit.needs_power]
        if needs and find_meter(self.device.kind, self.device.index) is None:
            reason = explain_missing_meter(self.device.kind)
            raise MeterUnavailable(f"{needs[0]} needs a power meter: {reason}; {way_out}")

    @property
    def device(self) -> Device:
        """What is tuned for."""
        return self.runner.device

    @property
    def constrained_objectives(self) -> tuple[ConstrainedObjective, ...]:
        """The objectives, each within the limits."""
        return tuple(ConstrainedObjective(objective, self.limits) for objective in self.objectives)

    def clock(self) -> float:
        """Return seconds since any beginning: searches end by them."""
        return time.monotonic()

    def wait_until_idle(self) -> None:
        """Wait until the machine does nothing else, as long as patience lasts."""
        wait_until_idle(self.runner.watch, self.patience_s, self.progress)

    def start_progress(self, problem: Problem, space: SearchSpace) -> None:
        """Tell progress that a search begins."""
        total = len(space) if self.stopping.measurements is None else self.stopping.measurements
        self.progress.start(f"tuning {problem}", min(total, len(space)))

    def known(self, problem: Problem, space: SearchSpace) -> list[Measurement]:
        """Return what others measured of a problem's space, if it says all the goals ask."""
        found = self.cache.known(problem)
        return [m for m in found if m.config in space and self._is_complete(m)]

    def search(
        self,
        searcher: AskTell[C],
        measure: Callable[[tuple[C, ...]], Iterable[Measurement]],
        known: Sequence[Measurement] = (),
    ) -> SearchResult:
        """Run a search to its end; ``measure`` returns one measurement per proposal."""
        parallel = min(self.runner.parallelism, MAX_PARALLEL)
        loop = search(searcher, self.stopping, known=known, parallel=parallel, clock=self.clock)
        return run(loop, measure)

    def measure(
        self, work: Iterable[tuple[Problem, Configuration]], incumbent_ms: float = math.inf
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration, stored ones first.

        Raises:
            UsageError: a limit is on a column that runs of this kernel do not have.
        """
        missing = []
        for problem, config in work:
            found = self.cache.find(problem, config)
            if found is not None and self._is_complete(found):
                yield found
            else:
                missing.append((problem, config))
        for measurement in self.runner.run_many(self.kernel, missing, incumbent_ms):
            self.cache.append(measurement)
            self._check_limits(measurement)
            yield measurement

    def _check_limits(self, measurement: Measurement) -> None:
        for limit in self.limits:  # a meter may miss a run; anything else is never there or always
            if measurement.ok and not limit.needs_power and math.isnan(limit.value_of(measurement)):
                raise UsageError(
                    f"limit {limit}: runs of {self.kernel.name} do not say their {limit.column}; "
                    f"they say {', '.join(limitable_columns_of(measurement))}"
                )

    def no_feasible_error(self, measured: int, default_breaks: str) -> MeasurementError:
        """Return the error of a search that found nothing within its limits."""
        listed = ", ".join(map(str, self.limits))
        return MeasurementError(
            f"none of {measured} configurations measured keeps to {listed}, nor does the default "
            f"({default_breaks}): raise the limit or --budget"
        )

    def _is_complete(self, measurement: Measurement) -> bool:
        return all(goal.is_known(measurement) for goal in self.constrained_objectives)


def make_stopping(
    budget: int | str | None, regret: float | None, seconds: float | None = None
) -> Stopping:
    """Return when a search is over.

    Args:
        budget: new measurements at most; ``"auto"``: until the expected regret is small; None is
            `BUDGET`, or as many as there is time for.
        regret: accepted, relative; None is `REGRET` with ``"auto"``, else any.
        seconds: of wall time at most.

    Raises:
        UsageError: the budget is neither, or a number is negative.
    """
    if budget == "auto":
        return Stopping(None, DEFAULT_REGRET if regret is None else regret, seconds)
    if budget is None:
        return Stopping(DEFAULT_BUDGET if seconds is None else None, regret, seconds)
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise UsageError(f"budget is {budget!r}: give a number or 'auto'")
    return Stopping(budget, regret, seconds)
