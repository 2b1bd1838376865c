"""Timing single launches without waiting for them, and launches in the interpreter."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from foretune.collect.holding import delay_kernel_start
from foretune.tune.triton.place import device_interface


class EventTimer:
    """Times what is launched between `start` and `stop`, by events of the device.

    The device waits before the first: were its queue empty, that event would tick while the launch
    is still on its way. In the interpreter, where a launch returns when it is done, by the clock.
    """

    def __init__(self) -> None:
        self._interface = interface = device_interface()
        self._events = None
        if interface is not None:
            self._events = [interface.Event(enable_timing=True) for _ in range(2)]
        self._times = [0.0, 0.0]

    def start(self) -> None:
        """Begin."""
        delay_kernel_start(self._interface)
        self._record_event(0)

    def stop(self) -> None:
        """End; does not wait."""
        self._record_event(1)

    def elapsed_ms(self) -> float | None:
        """Return milliseconds in between; None while the device has not got there."""
        if self._events is None:
            return (self._times[1] - self._times[0]) * 1e3
        start, stop = self._events
        return float(start.elapsed_time(stop)) if stop.query() else None

    def _record_event(self, which: int) -> None:
        if self._events is None:
            self._times[which] = time.perf_counter()
        else:
            self._events[which].record()


def bench_in_interpreter(
    kernel_call: Callable[[], Any], quantiles: Sequence[float] = (0.5, 0.2, 0.8)
) -> list[float]:
    """Return quantiles of three runs in milliseconds; for logic, not for speed."""
    samples = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        samples.append((time.perf_counter() - start) * 1e3)
    ordered = sorted(samples)
    return [
        statistics.median(ordered) if q == 0.5 else ordered[round(q * (len(ordered) - 1))]
        for q in quantiles
    ]
