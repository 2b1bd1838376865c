"""Handing out work: to whichever worker is free, and to another one if that worker is lost.

It knows nothing of Ray: a `WorkerPool` starts workers and carries messages. `benchmarks/fleet.py`
runs the same code on a simulated crew of a thousand.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from foretune.errors import ForetuneError, ForetuneWarning, MeasurementError

MAX_ATTEMPTS = 3
"""Workers that a piece of work may take along before it is held to blame."""
REFRESH_S = 5.0
"""How often to look for devices that joined."""
MAX_IDLE_S = 600.0
"""How long to wait where there is work, and nobody to do it."""

Worker = Hashable


class WorkerLost(Exception):
    """A worker was lost before it answered; the message says how."""


class WorkerPool(Protocol):
    """Starts workers and carries messages; a worker has one thing to do at a time."""

    def capacity(self) -> int:
        """Return how many workers there may be now: one per device."""

    def start(self) -> Worker:
        """Start a worker; its first answer says that it is ready, or is a `ForetuneError`."""

    def send(self, worker: Worker, work: Any) -> None:
        """Give a worker something to do."""

    def receive(self, timeout_s: float) -> tuple[Worker, Any] | None:
        """Return the next answer, `WorkerLost` if there will be none; None if the time is over."""


class Dispatcher:
    """Gives each free worker the next piece of work until all is done.

    A worker has one piece at a time: nothing waits behind a slow one, and nothing piles up. What a
    lost worker had is done by another; a worker that was given up is not listened to any more, so
    nothing is answered twice. A worker keeps to one group of work while there is some: what its
    pieces share is prepared once.

    Args:
        pool: the workers.
        on_ready: told the first answer of each.
        clock: seconds.
    """

    def __init__(
        self,
        pool: WorkerPool,
        on_ready: Callable[[Any], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._on_ready, self._clock = pool, on_ready, clock
        self._starting: set[Worker] = set()
        self._free: list[Worker] = []
        self._busy: dict[Worker, int | None] = {}
        self._group: dict[Worker, Hashable] = {}
        self._unusable = self._lost_starts = 0
        self._refresh_at = -float("inf")
        self._last_message_at = clock()

    def __len__(self) -> int:
        """Return how many workers are ready."""
        return len(self._free) + len(self._busy)

    def wait(self) -> None:
        """Return when a worker is ready.

        Raises:
            ForetuneError: none can start.
        """
        while not len(self):
            self._receive()

    def results(self, work: Iterable[tuple[Hashable, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each piece of work and what came of it, in the order they get done.

        It is `WorkerLost` where `ATTEMPTS` workers were lost with the same piece.

        Args:
            work: pieces, each with its group.

        Raises:
            ForetuneError: no worker can start, or there has been none for `PATIENCE_S`.
        """
        pieces = list(work)
        queue, lost, pending = _WorkQueue(pieces), Counter[int](), len(pieces)
        try:
            while pending:
                self._assign(queue, pieces)
                if (message := self._receive()) is None:
                    continue
                number, answer = message
                queue.release(pieces[number][0])
                if isinstance(answer, WorkerLost):
                    lost[number] += 1
                    if lost[number] < MAX_ATTEMPTS:
                        queue.put_back(pieces[number][0], number)
                        continue
                pending -= 1
                yield number, answer
        finally:  # whoever stops here does not want the rest
            self._busy = dict.fromkeys(self._busy)

    def _assign(self, queue: "_WorkQueue", pieces: Sequence[tuple[Hashable, Any]]) -> None:
        self._start_workers()
        while self._free and queue:
            worker = self._free.pop()  # the last to be free: it has everything at hand
            number = queue.take(self._group.get(worker))
            self._group[worker], work = pieces[number]
            self._busy[worker] = number
            self._pool.send(worker, work)

    def _receive(self) -> tuple[int, Any] | None:
        """Wait for an answer; None where there is none yet, or only somebody's first."""
        self._start_workers()
        message = self._pool.receive(REFRESH_S)
        if message is None:
            if not len(self) and self._clock() > self._last_message_at + MAX_IDLE_S:
                raise MeasurementError(
                    f"no free device for {MAX_IDLE_S / 60:.0f} minutes: what was measured is kept; "
                    "see whether nodes are up or other jobs hold them, and start the command again"
                )
            return None
        worker, answer = message
        self._last_message_at = self._clock()
        if worker in self._starting:
            self._starting.remove(worker)
            self._handle_start(worker, answer)
            return None
        number = self._busy.pop(worker)
        if isinstance(answer, WorkerLost):
            self._refresh_at = self._last_message_at  # its device may be there still
            self._warn(f"a worker was lost, its work goes to another: {answer}")
        else:
            self._free.append(worker)
        return None if number is None else (number, answer)

    def _handle_start(self, worker: Worker, answer: Any) -> None:
        if not isinstance(answer, (WorkerLost, ForetuneError)):
            self._on_ready(answer)
            self._free.insert(0, worker)
            self._lost_starts = 0
            return
        if isinstance(answer, WorkerLost):
            self._lost_starts += 1
            if self._lost_starts < MAX_ATTEMPTS:  # its node may just have gone: look again
                self._warn(f"a worker was lost as it started: {answer}")
                return
        self._unusable, self._lost_starts = self._unusable + 1, 0
        error = MeasurementError(f"{answer}") if isinstance(answer, WorkerLost) else answer
        if not (len(self) or self._starting) and self._pool.capacity() <= self._unusable:
            raise error
        self._warn(f"going on without a device: {error}")

    def _warn(self, text: str) -> None:
        warnings.warn(text, ForetuneWarning, stacklevel=3)

    def _start_workers(self) -> None:
        """Start a worker for every device that has none; one that proved unfit gets no other."""
        if self._clock() < self._refresh_at:
            return
        self._refresh_at = self._clock() + REFRESH_S
        if not (len(self) or self._starting):  # who was unfit may have left
            self._unusable = 0
        vacant = self._pool.capacity() - self._unusable - len(self) - len(self._starting)
        self._starting.update(self._pool.start() for _ in range(vacant))


class _WorkQueue:
    """What nobody does yet, by group."""

    def __init__(self, pieces: Iterable[tuple[Hashable, Any]]) -> None:
        self._numbers: dict[Hashable, deque[int]] = {}
        self._workers = Counter[Hashable]()
        for number, (group, _) in enumerate(pieces):
            self._numbers.setdefault(group, deque()).append(number)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def take(self, last: Hashable) -> int:
        """Return the next number of a group: the ``last`` one, or that with most per worker."""
        group = last if last in self._numbers else max(self._numbers, key=self._share)
        number = self._numbers[group].popleft()
        if not self._numbers[group]:
            del self._numbers[group]
        self._workers[group] += 1
        return number

    def release(self, group: Hashable) -> None:
        """Note that a worker does nothing of a group any more."""
        self._workers[group] -= 1

    def put_back(self, group: Hashable, number: int) -> None:
        """Take back what was not done."""
        self._numbers.setdefault(group, deque()).appendleft(number)

    def _share(self, group: Hashable) -> float:
        return len(self._numbers[group]) / (1 + self._workers[group])
