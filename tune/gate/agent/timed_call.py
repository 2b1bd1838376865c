"""Times a call in turns of several bursts, each of several calls."""

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from foretune.tune.gate.agent.gpu_events import NoGpuUsed, gpu_synchronizer, time_on_gpu

ONE_THREAD = 1.02
"""Largest ratio of the process's CPU time to the calling thread's in a burst of one thread."""
CALIBRATION_NS = 250_000
"""Nanoseconds that calls take together when their number per burst is chosen.

A burst is short, so that some have a core for themselves: work on its other hardware thread slows
all calls down by up to a factor of two.
"""
CALIBRATION_BURSTS = 3
"""Bursts that are timed with each number of calls."""
MAX_CALLS = 1 << 20
"""Largest number of calls in a burst."""

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
NO_ARGUMENTS: Arguments = ((), {})


class TimedCall:
    """A call that a benchmark times, and how its arguments are made outside the timed part.

    Args:
        call: what is timed.
        make_arguments: returns positional and keyword arguments for a seed.
        calls: number of calls in a burst; None if it may be chosen.
        after_burst: called after each burst, untimed.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        make_arguments: Callable[[int], Arguments] | None = None,
        calls: int | None = None,
        after_burst: Callable[..., object] | None = None,
    ) -> None:
        self._call = call
        self._make_arguments = make_arguments
        self._after_burst = after_burst
        self.calls = calls

    def count_calls(self, seed: int) -> dict[str, Any]:
        """Return how many calls take `CALIBRATION_NS`, and how long one takes in nanoseconds."""
        calls = self.calls or 1
        self.turn(calls, 1, seed)  # warms up
        while True:
            # Other processes may interrupt a burst: the fastest one counts.
            turn = self.turn(calls, CALIBRATION_BURSTS, seed)
            burst_ns = min(ns for ns in (*turn["wall_ns"], *turn["cpu_ns"]) if ns is not None)
            enough = burst_ns >= CALIBRATION_NS or calls >= MAX_CALLS
            if self.calls is not None or enough:
                return {"calls": calls, "call_ns": burst_ns / calls}
            calls *= 2

    def turn(self, calls: int, bursts: int, seed: int) -> dict[str, Any]:
        """Return the nanoseconds of each burst by the clock, and of its thread on the CPU.

        The CPU time is None if another thread worked, or the call waited for anything but the CPU.
        """
        wall_ns = []
        cpu_ns = []
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for number in range(bursts):
                if number == 0 or self.calls is not None:
                    arguments = self._arguments(seed + number)
                wall, cpu = _time_burst(self._call, arguments, calls)
                wall_ns.append(wall)
                cpu_ns.append(cpu)
                if self._after_burst is not None:
                    self._after_burst(*arguments[0], **arguments[1])
        finally:
            if was_enabled:
                gc.enable()
        return {"wall_ns": wall_ns, "cpu_ns": cpu_ns}

    def gpu_turn(self, calls: int, seed: int) -> dict[str, Any]:
        """Return the nanoseconds of each call on the GPU; a fixed number of calls shares inputs."""
        gpu_ns: list[int] = []
        while len(gpu_ns) < calls:
            args, kwargs = self._arguments(seed + len(gpu_ns))
            together = min(self.calls or calls, calls - len(gpu_ns))
            gpu_ns += time_on_gpu(partial(self._call, *args, **kwargs), together)
            if self._after_burst is not None:
                self._after_burst(*args, **kwargs)
        return {"gpu_ns": gpu_ns}

    def result(self, seed: int) -> Any:
        """Return the result of one call, untimed."""
        args, kwargs = self._arguments(seed)
        return self._call(*args, **kwargs)

    def _arguments(self, seed: int) -> Arguments:
        return NO_ARGUMENTS if self._make_arguments is None else self._make_arguments(seed)


class ProgramCall:
    """A program that is started once per burst; the same interface as `TimedCall`.

    ``start`` starts the program and waits for its end; it returns the nanoseconds by the clock,
    those without waiting for a CPU (None if the system does not tell), and its result.
    """

    calls = 1

    def __init__(self, start: Callable[[], tuple[int, int | None, Any]]) -> None:
        self._start = start

    def count_calls(self, seed: int) -> dict[str, Any]:
        """Return one call, and how long it takes in nanoseconds, with the program's start."""
        start = time.perf_counter_ns()
        self._start()
        return {"calls": 1, "call_ns": time.perf_counter_ns() - start}

    def turn(self, calls: int, bursts: int, seed: int) -> dict[str, Any]:
        """Return the nanoseconds of each run by the clock, and without waiting for a CPU."""
        times = [self._start()[:2] for _ in range(bursts)]
        return {"wall_ns": [wall for wall, _ in times], "cpu_ns": [cpu for _, cpu in times]}

    def gpu_turn(self, calls: int, seed: int) -> dict[str, Any]:
        """Raise NoGpuUsed: another process's use of a GPU is not seen."""
        raise NoGpuUsed("it is a program, whose use of a GPU is not seen")

    def result(self, seed: int) -> Any:
        """Return the result of one run."""
        return self._start()[2]


def _time_burst(
    call: Callable[..., Any], arguments: Arguments, calls: int
) -> tuple[int, int | None]:
    args, kwargs = arguments
    synchronize = gpu_synchronizer()
    if synchronize is not None:
        synchronize()
    waits = _count_waits()
    process_start = time.process_time_ns()
    thread_start = time.thread_time_ns()
    start = time.perf_counter_ns()
    if args or kwargs:
        for _ in itertools.repeat(None, calls):
            call(*args, **kwargs)
    else:
        for _ in itertools.repeat(None, calls):
            call()
    synchronize = gpu_synchronizer()  # the calls may be the first that use a GPU
    if synchronize is not None:
        synchronize()
    wall = time.perf_counter_ns() - start
    thread = time.thread_time_ns() - thread_start
    process = time.process_time_ns() - process_start
    is_alone = process <= ONE_THREAD * thread and _count_waits() == waits
    return wall, thread if is_alone and synchronize is None else None


def _count_waits() -> float:
    """Return how often this thread waited for anything other than the CPU; NaN if unknown."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:  # not Linux
        return math.nan
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def peak_memory_mib(call: Callable[[], object]) -> float | None:
    """Return the peak of this process's memory during a call, in MiB; None if it is not known."""
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # Linux: forget the peak so far
    except OSError:
        return None
    gc.collect()
    call()
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


def waited_for_cpu_ns(process: int | str) -> int | None:
    """Return how long a process was ready to run but had no CPU; None if it is not known."""
    try:
        with open(os.path.join("/proc", str(process), "schedstat")) as counters:
            return int(counters.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
