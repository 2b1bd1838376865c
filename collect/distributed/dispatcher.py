"""Assigns work to free workers and retries on another worker after a loss.

The dispatcher is independent of Ray: a `WorkerPool` starts workers and carries messages.
`benchmarks/fleet.py` runs the same code on a thousand simulated workers.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from foretune.errors import ForetuneError, MeasurementError, warn

MAX_ATTEMPTS = 3
"""Number of workers that a piece of work may lose before it counts as the cause."""
REFRESH_S = 5.0
"""Period of the check for new devices."""
MAX_IDLE_S = 600.0
"""Time limit of a wait without any worker."""
RETIRE_S = 5.0
"""Seconds until a device that proved unfit is tried again; they double each time."""
MAX_RETIRE_S = 300.0
"""Maximum of those seconds."""

Worker = Hashable


class WorkerLost(Exception):
    """A worker was lost before it answered; the message gives the cause."""


class WorkerPool(Protocol):
    """Starts workers and carries messages; each worker does one piece of work at a time."""

    def capacity(self) -> int:
        """Return the present maximum number of workers: one per device."""

    def start(self) -> Worker:
        """Start a worker; its first answer is its device, or a `ForetuneError`."""

    def send(self, worker: Worker, work: Any) -> None:
        """Send a piece of work to a worker."""

    def receive(self, timeout_s: float) -> tuple[Worker, Any] | None:
        """Return the next worker and its answer or `WorkerLost`; None after the timeout."""


class Dispatcher:
    """Gives each free worker the next piece of work until all is done.

    A worker has one piece at a time, so no work queues behind a slow piece. Another worker repeats
    the piece of a lost worker. Answers of a lost worker are ignored, so each piece has one answer.
    A worker stays with one group of work as long as possible, because pieces of a group share their
    preparation. ``on_ready`` is called with the first answer of each worker; ``clock`` is a
    monotonic clock in seconds.
    """

    def __init__(
        self,
        pool: WorkerPool,
        on_ready: Callable[[Any], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._on_ready = on_ready
        self._clock = clock

        # Every worker is in one of these. A busy one has the number of its piece; None if nobody
        # waits for its answer any more.
        self._starting: set[Worker] = set()
        self._free: list[Worker] = []
        self._busy: dict[Worker, int | None] = {}
        self._group: dict[Worker, Hashable] = {}

        # Devices that proved unfit wait until these times, and the next one for so long.
        self._retired_until: list[float] = []
        self._retire_s = RETIRE_S
        self._lost_starts = 0
        self._was_ready = False

        self._refresh_at = -float("inf")
        self._last_answer_at = clock()

    def __len__(self) -> int:
        """Return the number of ready workers."""
        return len(self._free) + len(self._busy)

    def wait(self) -> None:
        """Wait until a worker is ready; raise ForetuneError if none can start."""
        while not len(self):
            self._receive()

    def results(self, work: Iterable[tuple[Hashable, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield number and answer of each piece of work, a pair (group, piece), when it is done.

        The answer is `WorkerLost` if `MAX_ATTEMPTS` workers were lost with the same piece. Raises
        ForetuneError if no worker can start, or there was none for `MAX_IDLE_S`.
        """
        pieces = list(work)
        queue = _WorkQueue(pieces)
        n_lost = Counter[int]()
        pending = len(pieces)
        try:
            while pending:
                self._assign(queue, pieces)
                message = self._receive()
                if message is None:
                    continue
                number, answer = message
                group, _ = pieces[number]
                queue.release(group)

                # Another worker repeats it, unless it is likely the cause of the losses.
                if isinstance(answer, WorkerLost):
                    n_lost[number] += 1
                    if n_lost[number] < MAX_ATTEMPTS:
                        queue.put_back(group, number)
                        continue

                pending -= 1
                yield number, answer
        finally:
            # After an early stop, the remaining answers are dropped.
            self._busy = dict.fromkeys(self._busy)

    def _assign(self, queue: "_WorkQueue", pieces: Sequence[tuple[Hashable, Any]]) -> None:
        """Give work to all free workers."""
        self._start_workers()
        while self._free and queue:
            # The most recent one: its preparation is still in memory.
            worker = self._free.pop()
            number = queue.take(self._group.get(worker))
            group, work = pieces[number]
            self._group[worker] = group
            self._busy[worker] = number
            self._pool.send(worker, work)

    def _receive(self) -> tuple[int, Any] | None:
        """Wait for number and answer of a piece; None after a timeout or a first answer."""
        self._start_workers()
        message = self._pool.receive(REFRESH_S)
        if message is None:
            if not len(self) and self._clock() > self._last_answer_at + MAX_IDLE_S:
                raise MeasurementError(
                    f"no free device for {MAX_IDLE_S / 60:.0f} minutes: all measurements are kept; "
                    "check that nodes are up and not busy, and start the command again"
                )
            return None

        worker, answer = message
        if worker in self._starting:
            self._starting.remove(worker)
            self._handle_start(worker, answer)
            return None

        number = self._busy.pop(worker)
        if isinstance(answer, WorkerLost):
            # Its device may still be available: check at once.
            self._refresh_at = self._clock()
            warn(f"lost a worker, its work goes to another one: {answer}")
        else:
            self._free.append(worker)
            self._last_answer_at = self._clock()
        if number is None:
            return None
        return number, answer

    def _handle_start(self, worker: Worker, answer: Any) -> None:
        """Take a worker's first answer: it is ready, was lost, or its device is unfit."""
        if not isinstance(answer, (WorkerLost, ForetuneError)):
            self._on_ready(answer)
            self._free.insert(0, worker)
            self._retire_s = RETIRE_S
            self._lost_starts = 0
            self._was_ready = True
            self._last_answer_at = self._clock()
            return

        # Its node may have left, which is no fault of its device: check again.
        if isinstance(answer, WorkerLost):
            self._lost_starts += 1
            if self._lost_starts < MAX_ATTEMPTS:
                warn(f"a worker was lost during its start: {answer}")
                return

        # The device is unfit: go on without it for a while, longer each time.
        self._lost_starts = 0
        self._retired_until.append(self._clock() + self._retire_s)
        warn(f"continuing without a device for {self._retire_s:.0f} s: {answer}")
        self._retire_s = min(2 * self._retire_s, MAX_RETIRE_S)

        # If no other worker is there or can come, say why.
        may_recover = isinstance(answer, WorkerLost) and self._was_ready
        if may_recover or len(self) or self._starting:
            return
        if self._pool.capacity() > len(self._retired_until):
            return
        if isinstance(answer, WorkerLost):
            raise MeasurementError(f"{answer}")
        raise answer

    def _start_workers(self) -> None:
        """Start a worker for every free device, except those that recently proved unfit."""
        now = self._clock()
        if now < self._refresh_at:
            return
        self._refresh_at = now + REFRESH_S
        self._retired_until = [until for until in self._retired_until if until > now]
        n_retired = len(self._retired_until)
        n_vacant = self._pool.capacity() - n_retired - len(self) - len(self._starting)
        for _ in range(n_vacant):
            self._starting.add(self._pool.start())


class _WorkQueue:
    """Pieces of work without a worker, by group."""

    def __init__(self, pieces: Iterable[tuple[Hashable, Any]]) -> None:
        self._numbers: dict[Hashable, deque[int]] = {}
        self._workers = Counter[Hashable]()
        for number, (group, _) in enumerate(pieces):
            self._numbers.setdefault(group, deque()).append(number)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def take(self, last: Hashable) -> int:
        """Return the next number of group ``last``, or of the group with most work per worker."""
        group = last if last in self._numbers else max(self._numbers, key=self._work_per_worker)
        number = self._numbers[group].popleft()
        if not self._numbers[group]:
            del self._numbers[group]
        self._workers[group] += 1
        return number

    def _work_per_worker(self, group: Hashable) -> float:
        return len(self._numbers[group]) / (1 + self._workers[group])

    def release(self, group: Hashable) -> None:
        """Record that a worker finished a piece of a group."""
        self._workers[group] -= 1

    def put_back(self, group: Hashable, number: int) -> None:
        """Return a piece that a worker was lost with: it is the group's next one."""
        self._numbers.setdefault(group, deque()).appendleft(number)
