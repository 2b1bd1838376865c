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
    state = _State(searcher, stopping, parallel, clock, [*first])
    state.count = not (until_one_runs and stopping.measurements)
    if known:
        searcher.tell(known)
    state.begun = clock()
    while True:
        start = state.start_next()
        left = state.left
        if state.reason is not None and not state.pending:
            return SearchResult(state.measured, state.reason, searcher.expected_regret())
        expected = tuple(likely(left)) if start and left else ()
        state.report((yield Batch(start, expected, state.pending)))


@dataclass
class _State(Generic[C]):
    """The state of one search; `count` is whether the budget of measurements applies yet."""

    searcher: AskTell[C]
    stopping: Stopping
    parallel: int | Callable[[], int]
    clock: Callable[[], float]
    queue: list[C]
    count: bool = True
    begun: float = 0.0
    started: int = 0
    measured: int = 0
    reason: StopReason | None = None

    def __post_init__(self) -> None:
        self.queued = frozenset(self.queue)

    @property
    def pending(self) -> int:
        return self.started - self.measured

    @property
    def left(self) -> int:
        """How many more configurations may be started."""
        if self.reason is not None:
            return 0
        if not self.count or self.stopping.measurements is None:
            return sys.maxsize
        return self.stopping.measurements - self.started

    def start_next(self) -> tuple[C, ...]:
        """Return the configurations to start now; set `reason` when the search is over."""
        limit = self.parallel() if callable(self.parallel) else self.parallel
        room = max(0, min(limit - self.pending, self.left))
        if self.reason is None and (room or not self.pending):
            measured = self.measured if self.count else 0
            self.reason = self.stopping.reason(self.searcher, measured, self.clock() - self.begun)
        if self.reason is not None or not room:
            return ()
        start = self._propose(room)
        if not start:
            self.reason = "exhausted"
        self.started += len(start)
        return tuple(start)

    def _propose(self, n: int) -> list[C]:
        start = self.queue[:n]
        self.queue = self.queue[n:]
        while len(start) < n and (asked := self.searcher.ask(n - len(start))):
            start += [item for item in asked if item not in self.queued]
        return start

    def report(self, measurements: Sequence[Measurement]) -> None:
        if len(measurements) > self.pending:
            raise UsageError(
                f"{len(measurements)} measurements were sent for {self.pending} configurations: "
                "report each started configuration once"
            )
        if measurements:
            self.searcher.tell(measurements)
        self.measured += len(measurements)
        self.count = self.count or any(m.ok for m in measurements)


def run(
    loop: SearchLoop[C], measure: Callable[[tuple[C, ...]], Iterable[Measurement]]
) -> SearchResult:
    """Drive a search batch by batch: ``measure`` returns one measurement per configuration."""
    try:
        batch = next(loop)
        while batch.start:
            batch = loop.send(list(measure(batch.start)))
    except StopIteration as end:
        return end.value
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
