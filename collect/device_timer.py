"""Timing launches on a GPU: events in its own queue, and a cache that holds nothing of them.

A launch on a GPU returns before the work is done, so events are recorded around it, and something
that takes the device longer than the host needs to queue a launch runs first: otherwise the first
event would tick while the launch is still on its way. Where the last-level cache must be cold it is
overwritten; then, as where it may be warm, the device waits. An event itself takes a microsecond or
so, which every configuration pays alike.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from foretune.collect.holding import delay_kernel_start
from foretune.collect.timer import CPU_TIMER, Timer
from foretune.device import Device
from foretune.extras import require
from foretune.kernel import Kernel, Launch
from foretune.problem import Problem

FLUSH_BYTES = 2**28
"""Overwritten before a launch, and never less than twice the cache: 256 MiB."""
MAX_LAUNCHES = 20
"""In one sample; more would not be queued before the device is done waiting."""


class Event(Protocol):
    """A moment in the device's queue."""

    def record(self) -> None:
        """Ask the device to note the time when it gets here."""

    def synchronize(self) -> None:
        """Return when the device got here."""

    def elapsed_time(self, end: Any) -> float:
        """Return milliseconds from here to ``end``."""


class DeviceTimer(Timer):
    """Times launches by events in the device's queue.

    Args:
        event: makes an event that notes the time.
        synchronize: returns when the device is idle.
        before_sample: called before each sample with the number of launches that follow.
        max_launches: launches in one sample; one where each needs a cold cache.
        interface: ``torch.cuda``, or what stands for it.
    """

    def __init__(
        self,
        event: Callable[[], Event],
        synchronize: Callable[[], None],
        before_sample: Callable[[int], object],
        max_launches: int = 1,
        interface: Any = None,
    ) -> None:
        self.interface = interface
        self._event = event
        self._synchronize = synchronize
        self._before_sample = before_sample
        self._max_launches = max_launches

    def batch_size(self, fastest_ms: float) -> int:
        """Return how many launches of this time, in milliseconds, make one sample."""
        return min(super().batch_size(fastest_ms), self._max_launches)

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the mean time of ``batch_size`` launches between two events, in milliseconds."""
        start, end = self._event(), self._event()
        self._before_sample(batch_size)
        start.record()
        for _ in range(batch_size):
            launch()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / batch_size

    def wait(self) -> None:
        """Return when the device is idle.

        Raises:
            RuntimeError: a launch broke the device's context.
        """
        self._synchronize()


def timer_for(kernel: Kernel, problem: Problem, device: Device) -> Timer:
    """Return what times ``kernel`` on ``device``, which becomes torch's current one.

    The cache is flushed before each sample unless the problem says ``cache=warm``. A GPU kernel
    that runs on the CPU, because Triton interprets it, is timed by the host.

    Raises:
        MissingExtra: torch is not installed.
    """
    if kernel.device_kind == "cpu" or kernel.reports_own_time:
        return CPU_TIMER
    return gpu_timer(device, problem.get("cache") == "warm")


def gpu_timer(device: Device, warm_cache: bool = False) -> Timer:
    """Return what times launches on a GPU, which becomes torch's current one.

    Args:
        device: the GPU; without one that torch sees, the host times.
        warm_cache: whether what a launch left in the cache may stay there for the next.

    Raises:
        MissingExtra: torch is not installed.
    """
    torch = require("torch", "gpu", "timing a GPU kernel")
    if not torch.cuda.is_available():
        return CPU_TIMER
    torch.cuda.set_device(device.index)
    return _cached_gpu_timer(device.index, warm_cache)


@cache
def _cached_gpu_timer(index: int, warm_cache: bool) -> Timer:
    torch = require("torch", "gpu", "timing a GPU kernel")
    cuda = torch.cuda

    def event() -> Event:
        return cuda.Event(enable_timing=True)

    def delay(launches: int) -> None:
        delay_kernel_start(cuda, launches)

    if warm_cache:
        return DeviceTimer(event, cuda.synchronize, delay, MAX_LAUNCHES, cuda)
    size = max(FLUSH_BYTES, 2 * torch.cuda.get_device_properties(index).L2_cache_size)
    buffer = torch.empty(size, dtype=torch.int8, device=f"cuda:{index}")

    def flush(launches: int) -> None:
        buffer.zero_()
        delay(launches)

    return DeviceTimer(event, cuda.synchronize, flush, interface=cuda)
