"""Handing out work: to whichever worker is free, and to another one if that worker is lost.

It knows nothing of Ray: a `Crew` starts workers and carries messages. `benchmarks/fleet.py` runs
the same code on a simulated crew of a thousand.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from foretune.errors import ForetuneError, ForetuneWarning, MeasurementError

ATTEMPTS = 3
"""Workers that a piece of work may take along before it is held to blame."""
LOOK_S = 5.0
"""How often to look for devices that joined."""
PATIENCE_S = 600.0
"""How long to wait where there is work, and nobody to do it."""

Worker = Hashable


class Lost(Exception):
    """A worker was lost before it answered; the message says how."""


class Crew(Protocol):
    """Starts workers and carries messages; a worker has one thing to do at a time."""

    def places(self) -> int:
        """Return how many workers there may be now: one per device."""

    def start(self) -> Worker:
        """Start a worker; its first answer says that it is ready, or is a `ForetuneError`."""

    def send(self, worker: Worker, work: Any) -> None:
        """Give a worker something to do."""

    def receive(self, timeout_s: float) -> tuple[Worker, Any] | None:
        """Return the next answer, `Lost` if there will be none; None if the time is over."""


class Dispatcher:
    """Gives each free worker the next piece of work until all is done.

    A worker has one piece at a time: nothing waits behind a slow one, and nothing piles up. What a
    lost worker had is done by another; a worker that was given up is not listened to any more, so
    nothing is answered twice. A worker keeps to one group of work while there is some: what its
    pieces share is prepared once.

    Args:
        crew: the workers.
        hello: told the first answer of each.
        clock: seconds.
    """

    def __init__(
        self,
        crew: Crew,
        hello: Callable[[Any], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew, self._hello, self._clock = crew, hello, clock
        self._starting: set[Worker] = set()
        self._free: list[Worker] = []
        self._busy: dict[Worker, int | None] = {}
        self._group: dict[Worker, Hashable] = {}
        self._unfit = self._lost_starts = 0
        self._look_at = -float("inf")
        self._news_at = clock()

    def __len__(self) -> int:
        """Return how many workers are ready."""
        return len(self._free) + len(self._busy)

    def wait(self) -> None:
        """Return when a worker is ready.

        Raises:
            ForetuneError: none can start.
        """
        while not len(self):
            self._listen()

    def answers(self, work: Iterable[tuple[Hashable, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each piece of work and what came of it, in the order they get done.

        It is `Lost` where `ATTEMPTS` workers were lost with the same piece.

        Args:
            work: pieces, each with its group.

        Raises:
            ForetuneError: no worker can start, or there has been none for `PATIENCE_S`.
        """
        pieces = list(work)
        left, lost, unanswered = _Left(pieces), Counter[int](), len(pieces)
        try:
            while unanswered:
                self._hand_out(left, pieces)
                if (news := self._listen()) is None:
                    continue
                number, answer = news
                left.stop(pieces[number][0])
                if isinstance(answer, Lost):
                    lost[number] += 1
                    if lost[number] < ATTEMPTS:
                        left.put_back(pieces[number][0], number)
                        continue
                unanswered -= 1
                yield number, answer
        finally:  # whoever stops here does not want the rest
            self._busy = dict.fromkeys(self._busy)

    def _hand_out(self, left: "_Left", pieces: Sequence[tuple[Hashable, Any]]) -> None:
        self._staff()
        while self._free and left:
            worker = self._free.pop()  # the last to be free: it has everything at hand
            number = left.take(self._group.get(worker))
            self._group[worker], work = pieces[number]
            self._busy[worker] = number
            self._crew.send(worker, work)

    def _listen(self) -> tuple[int, Any] | None:
        """Wait for an answer; None where there is none yet, or only somebody's first."""
        self._staff()
        news = self._crew.receive(LOOK_S)
        if news is None:
            if not len(self) and self._clock() > self._news_at + PATIENCE_S:
                raise MeasurementError(
                    f"no free device for {PATIENCE_S / 60:.0f} minutes: what was measured is kept; "
                    "see whether nodes are up or other jobs hold them, and start the command again"
                )
            return None
        worker, answer = news
        self._news_at = self._clock()
        if worker in self._starting:
            self._starting.remove(worker)
            self._begin(worker, answer)
            return None
        number = self._busy.pop(worker)
        if isinstance(answer, Lost):
            self._look_at = self._news_at  # its device may be there still
            self._say(f"a worker was lost, its work goes to another: {answer}")
        else:
            self._free.append(worker)
        return None if number is None else (number, answer)

    def _begin(self, worker: Worker, answer: Any) -> None:
        if not isinstance(answer, (Lost, ForetuneError)):
            self._hello(answer)
            self._free.insert(0, worker)
            self._lost_starts = 0
            return
        if isinstance(answer, Lost):
            self._lost_starts += 1
            if self._lost_starts < ATTEMPTS:  # its node may just have gone: look again
                self._say(f"a worker was lost as it started: {answer}")
                return
        self._unfit, self._lost_starts = self._unfit + 1, 0
        error = MeasurementError(f"{answer}") if isinstance(answer, Lost) else answer
        if not (len(self) or self._starting) and self._crew.places() <= self._unfit:
            raise error
        self._say(f"going on without a device: {error}")

    def _say(self, text: str) -> None:
        warnings.warn(text, ForetuneWarning, stacklevel=3)

    def _staff(self) -> None:
        """Start a worker for every device that has none; one that proved unfit gets no other."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_S
        if not (len(self) or self._starting):  # who was unfit may have left
            self._unfit = 0
        vacant = self._crew.places() - self._unfit - len(self) - len(self._starting)
        self._starting.update(self._crew.start() for _ in range(vacant))


class _Left:
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

    def stop(self, group: Hashable) -> None:
        """Note that a worker does nothing of a group any more."""
        self._workers[group] -= 1

    def put_back(self, group: Hashable, number: int) -> None:
        """Take back what was not done."""
        self._numbers.setdefault(group, deque()).appendleft(number)

    def _share(self, group: Hashable) -> float:
        return len(self._numbers[group]) / (1 + self._workers[group])
