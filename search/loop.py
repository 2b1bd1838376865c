"""The search loop: a generator that yields what to measure and receives measurements.

Every search runs through it. A driver (`run`, `run_concurrently`) measures the configurations in
`Batch.start`, sends the measurements back, and repeats this until the generator returns. It may
send them in any order, one by one or together.
"""

import sys
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.result import Result
from foretune.search.searcher import AskTell
from foretune.search.stopping import Stopping, StopReason

C = TypeVar("C", bound=Hashable)  # a `Configuration`, or a problem with one


@dataclass(frozen=True)
class Batch(Generic[C]):
    """The next task of a driver.

    It measures ``start`` now; empty while the loop waits for ``pending`` ones (started and not yet
    reported, ``start`` included). ``likely`` are expected next, best first, to be compiled ahead.
    """

    start: tuple[C, ...]
    likely: tuple[C, ...] = ()
    pending: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(Result):
    """How a search ended.

    ``measured`` counts the reported measurements, failures included but not known ones. ``reason``
    is "exhausted" if nothing was left to measure. ``regret`` is the incumbent's expected regret,
    relative; infinite if unknown.
    """

    measured: int
    reason: StopReason
    regret: float


SearchLoop = Generator[Batch[C], Sequence[Measurement], SearchResult]


def search(
    searcher: AskTell[C],
    stopping: Stopping,
    *,
    known: Sequence[Measurement] = (),
    first: Sequence[C] = (),
    parallel: int | Callable[[], int] = 1,
    likely: Callable[[int], Sequence[C]] = lambda n: (),
    until_one_runs: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> SearchLoop[C]:
    """Run a search until ``stopping`` ends it: yield batches, receive their measurements.

    Each started configuration must be reported exactly once, failures included. One thread at a
    time may drive the loop.

    Args:
        searcher: proposes configurations; only the loop may call its `ask` and `tell`.
        stopping: the budget.
        known: earlier measurements; they do not count.
        first: measured before the searcher's proposals.
        parallel: maximum number of configurations in progress; a function if that changes, for
            example while other processes measure some.
        likely: returns configurations that may follow a batch, given how many the budget allows.
        until_one_runs: exceed the budget of measurements as long as all of them failed.
        clock: seconds since any fixed moment.

    Raises UsageError if more measurements were sent than configurations were started.
    """
    if known:
        searcher.tell(known)
    state = _State(searcher, stopping, parallel, clock, first=first, until_one_runs=until_one_runs)
    while True:
        start = state.start_next()
        n_left = state.n_left
        if state.reason is not None and not state.n_pending:
            return SearchResult(state.n_measured, state.reason, searcher.expected_regret())
        expected = tuple(likely(n_left)) if start and n_left else ()
        state.report((yield Batch(start, expected, state.n_pending)))


class _State(Generic[C]):
    """The state of one search: what was started and measured, and whether it is over.

    The search begins, and its seconds count, when the state is made.

    Attributes:
        reason: why the search is over; None while it goes on.
        n_started: number of configurations that were started.
        n_measured: number of those that were reported.
    """

    def __init__(
        self,
        searcher: AskTell[C],
        stopping: Stopping,
        parallel: int | Callable[[], int],
        clock: Callable[[], float],
        *,
        first: Sequence[C],
        until_one_runs: bool,
    ) -> None:
        self.reason: StopReason | None = None
        self.n_started = 0
        self.n_measured = 0
        self._searcher = searcher
        self._stopping = stopping
        self._parallel = parallel
        self._clock = clock
        self._start_s = clock()
        self._queue = [*first]
        self._first = frozenset(first)

        # While all measurements have failed, they may exceed the budget, unless it is none at all.
        may_exceed = until_one_runs and stopping.measurements != 0
        self._budget_applies = not may_exceed

    @property
    def n_pending(self) -> int:
        """Number of configurations that were started and not yet reported."""
        return self.n_started - self.n_measured

    @property
    def n_left(self) -> int:
        """How many more configurations may be started."""
        if self.reason is not None:
            return 0
        if not self._budget_applies or self._stopping.measurements is None:
            return sys.maxsize
        return self._stopping.measurements - self.n_started

    def start_next(self) -> tuple[C, ...]:
        """Return the configurations to start now; set `reason` when the search is over."""
        limit = self._parallel() if callable(self._parallel) else self._parallel
        n_room = max(0, min(limit - self.n_pending, self.n_left))

        # Without room, wait for pending measurements: estimating the regret takes time, and they
        # will change it. If none is pending, there is no room because the budget is spent.
        if self.reason is None and (n_room or not self.n_pending):
            self.reason = self._reason_to_stop()
        if self.reason is not None or not n_room:
            return ()

        start = self._propose(n_room)
        if not start:
            self.reason = "exhausted"
        self.n_started += len(start)
        return tuple(start)

    def _reason_to_stop(self) -> StopReason | None:
        n_counted = self.n_measured if self._budget_applies else 0
        elapsed_s = self._clock() - self._start_s
        return self._stopping.reason(self._searcher, n_counted, elapsed_s)

    def _propose(self, n: int) -> list[C]:
        """Return up to ``n`` configurations: those to be measured first, then proposals."""
        start = self._queue[:n]
        self._queue = self._queue[n:]
        while len(start) < n:
            proposals = self._searcher.ask(n - len(start))
            if not proposals:
                break
            # Until the first ones are measured, the searcher does not know that they were started.
            start += [config for config in proposals if config not in self._first]
        return start

    def report(self, measurements: Sequence[Measurement]) -> None:
        """Pass measurements to the searcher; UsageError if there are more than pending ones."""
        if len(measurements) > self.n_pending:
            raise UsageError(
                f"{len(measurements)} measurements were sent for {self.n_pending} configurations: "
                "report each started configuration once"
            )
        if measurements:
            self._searcher.tell(measurements)
        self.n_measured += len(measurements)
        if any(measurement.ok for measurement in measurements):
            self._budget_applies = True


def run(
    loop: SearchLoop[C], measure: Callable[[tuple[C, ...]], Iterable[Measurement]]
) -> SearchResult:
    """Drive a search batch by batch: ``measure`` returns one measurement per configuration.

    Raises UsageError if it returns too few.
    """
    try:
        batch = next(loop)
        while batch.start:
            batch = loop.send(list(measure(batch.start)))
    except StopIteration as end:
        return end.value
    # Every batch is measured at once, so the loop waits only for measurements that are missing.
    raise UsageError(f"{batch.pending} configurations have no measurement: return one for each")


def run_concurrently(
    loop: SearchLoop[C], submit: Callable[[C], object], finished: Callable[[], Measurement]
) -> SearchResult:
    """Drive a search on several devices; ``finished`` waits for the next measurement."""
    try:
        batch = next(loop)
        while True:
            for config in batch.start:
                submit(config)
            batch = loop.send([finished()])
    except StopIteration as end:
        return end.value
