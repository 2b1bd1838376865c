"""Times of calls, by the wall clock and by the CPU, and the timer that records both."""

import math
import time
from typing import Any

import numpy as np

from foretune.collect.timing import CPU_TIMER, Timer
from foretune.kernel import Launch

ONE_THREAD = 1.02
"""Largest ratio of the process's CPU time to the calling thread's in a launch of one thread."""


class CallTimes:
    """Wall and CPU times of calls, in ms by contender."""

    def __init__(self) -> None:
        self.wall_ms: dict[str, list[float]] = {}
        self.cpu_ms: dict[str, list[float]] = {}

    def append(self, key: str, wall_ms: float, cpu_ms: float) -> None:
        """Add a call."""
        self.wall_ms.setdefault(key, []).append(wall_ms)
        self.cpu_ms.setdefault(key, []).append(cpu_ms)

    def extend(self, other: "CallTimes") -> None:
        """Add other calls."""
        for key, values in other.wall_ms.items():
            self.wall_ms.setdefault(key, []).extend(values)
            self.cpu_ms.setdefault(key, []).extend(other.cpu_ms[key])

    def are_on_cpu(self, key: str) -> bool:
        """Whether the CPU times of most of a contender's calls are known."""
        return bool(np.isfinite(self.cpu_ms.get(key, math.nan)).mean() > 0.5)


class RecordingTimer(Timer):
    """A timer that keeps what the last timed call ``returned``, and its CPU time.

    ``cpu_ms`` is NaN unless the host's clock timed the call, which ran in this thread only and
    waited for nothing. Its time is then what it would take if no other process were given the CPU.
    ``cores`` and ``other_threads`` are those of `foretune.collect.comparison.Rounds`.
    """

    def __init__(self, timer: Timer) -> None:
        self.wrapped = timer
        self.forget()

    def forget(self) -> None:
        """Forget the last call: launches with clocks of their own do not use this one."""
        self.returned: Any = None
        self.cpu_ms = math.nan
        self.cores = math.nan
        self.other_threads = math.nan

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the mean time of ``batch_size`` launches back to back, in milliseconds."""

        def recorded() -> None:
            self.returned = launch()

        recorded.__wrapped__ = launch  # type: ignore[attr-defined]
        if self.wrapped is not CPU_TIMER:  # a device works while the host waits
            return self.wrapped.sample_ms(recorded, batch_size)
        waits = _waits()
        total = time.process_time_ns()
        start = time.thread_time_ns()
        sample_ms = self.wrapped.sample_ms(recorded, batch_size)
        thread_ns = time.thread_time_ns() - start
        total_ns = time.process_time_ns() - total
        alone = total_ns <= ONE_THREAD * thread_ns and _waits() == waits
        self.cpu_ms = thread_ns * 1e-6 / batch_size if alone else math.nan
        self.cores = total_ns * 1e-6 / (sample_ms * batch_size)
        self.other_threads = max(0.0, 1.0 - thread_ns / max(total_ns, 1))
        return sample_ms


def _waits() -> float:
    """Return how often this thread waited for anything other than the CPU; NaN if unknown."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:  # not Linux
        return math.nan
    return getrusage(RUSAGE_THREAD).ru_nvcsw
