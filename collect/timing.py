"""CPU and GPU timers, Timing, median_interval."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np
from scipy.special import bdtr

from foretune.device import Device
from foretune.kernel import Kernel, Launch, SelfTimedLaunch
from foretune.lazy import require
from foretune.problem import Problem

MIN_SAMPLES = 3
"""Taken even when the time box is over."""
MIN_SAMPLE_S = 50e-6
"""A sample of a shorter launch times several back to back, so the clock's grain does not show."""


class Timer:
    """Times launches that return when their work is done, by the host's clock.

    Other devices have their own, see `foretune.collect.timing`.

    Attributes:
        interface: what offers graphs of launches, such as ``torch.cuda``; None on the host.
    """

    interface: Any = None

    def batch_size(self, fastest_ms: float) -> int:
        """Return how many launches of this time, in milliseconds, make one sample long enough."""
        return max(1, int(np.ceil(MIN_SAMPLE_S * 1e3 / max(fastest_ms, 1e-6))))

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the mean time of ``batch_size`` launches back to back, in milliseconds."""
        start = time.perf_counter_ns()
        for _ in range(batch_size):
            launch()
        return (time.perf_counter_ns() - start) * 1e-6 / batch_size

    def wait(self) -> None:
        """Return when everything launched is done."""


CPU_TIMER = Timer()


@dataclass(frozen=True)
class Timing:
    """When to stop repeating.

    Attributes:
        max_seconds: seconds after which no more samples are taken, warm-up included; three always
            are.
        warmup_s: least time of warm-up; the clock frequency and the caches settle in it.
        relative_width: stop once the interval of the median is this narrow, relative to it.
        min_repeats: samples before the interval is looked at.
        max_repeats: never more.
        early_stop_ratio: stop once the lower bound is this many times above the incumbent's upper
            bound.
    """

    max_seconds: float = 0.25
    warmup_s: float = 0.02
    relative_width: float = 0.01
    min_repeats: int = 5
    max_repeats: int = 1000
    early_stop_ratio: float = 1.3


def median_interval(samples: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median of ``samples``.

    With fewer than six samples no interval reaches 95 %: the extremes are returned.
    """
    ordered = np.sort(samples)
    rank = _rank(len(ordered), confidence)
    return float(ordered[rank]), float(ordered[-1 - rank])


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    below = bdtr(np.arange(n + 1), n, 0.5)  # scipy.stats would take a second to import
    return max(int(np.searchsorted(below, (1 - confidence) / 2)) - 1, 0)


def time_launch(
    launch: Launch,
    timing: Timing,
    incumbent_ms: float = np.inf,
    timer: Timer = CPU_TIMER,
) -> np.ndarray:
    """Return the times of single launches of ``launch`` in milliseconds, warm-up left out.

    Args:
        launch: what is timed; on the host it returns when the work is done.
        timing: when to stop.
        incumbent_ms: upper bound of the best time so far: a launch that is clearly slower stops
            early.
        timer: of the device it runs on.
    """
    deadline = time.perf_counter() + timing.max_seconds
    batch = _warm_up(launch, timing.warmup_s, timer)
    samples: list[float] = []
    next_check = timing.min_repeats
    while len(samples) < timing.max_repeats:
        samples.append(_sample_ms(launch, batch, timer))
        timed_out = time.perf_counter() > deadline
        if timed_out and len(samples) >= MIN_SAMPLES:
            break
        if len(samples) < next_check:
            continue
        low, high = median_interval(np.array(samples))
        converged = len(samples) >= 6 and high - low <= timing.relative_width * low
        if converged or low > timing.early_stop_ratio * incumbent_ms:
            break
        next_check = min(int(next_check * 1.25) + 1, next_check + 50)
    return np.array(samples)


def time_interleaved(
    launches: Mapping[str, Launch],
    max_seconds: float,
    min_rounds: int = 7,
    max_rounds: int = 400,
    timer: Timer = CPU_TIMER,
) -> dict[str, np.ndarray]:
    """Return times in milliseconds of several launches measured in turn, each round in a new order.

    Drift of the machine hits all of them alike; entry ``i`` of every array is from round ``i``.
    Before each sample the launch runs once untimed: what the one before it left in the caches (or
    its threads that still wait) is not charged to it.
    """
    rng = np.random.default_rng(0)
    names = list(launches)
    batches = {name: _warm_up(launch, 0.02, timer) for name, launch in launches.items()}
    rounds: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + max_seconds
    for i in range(max_rounds):
        if i >= min_rounds and time.perf_counter() > deadline:
            break
        for j in rng.permutation(len(names)):
            launches[names[j]]()
            sample_ms = _sample_ms(launches[names[j]], batches[names[j]], timer)
            rounds[names[j]].append(sample_ms)
    return {name: np.array(times) for name, times in rounds.items()}


def _warm_up(launch: Launch, min_seconds: float, timer: Timer) -> int:
    """Run until ``min_seconds`` is over; return how many launches make one sample long enough."""
    start = time.perf_counter()
    fastest = np.inf
    launches = 0
    while launches < 1 or time.perf_counter() - start < min_seconds:
        fastest = min(fastest, _sample_ms(launch, 1, timer))
        launches += 1
    return timer.batch_size(fastest)


def _sample_ms(launch: Launch, batch: int, timer: Timer) -> float:
    if isinstance(launch, SelfTimedLaunch):
        return launch.sample_ms(timer, batch)
    return timer.sample_ms(launch, batch)


DELAY_CYCLES = 60_000
"""The device waits per launch that is queued meanwhile: some 30 µs."""


def delay_kernel_start(interface: Any, launches: int = 1) -> None:
    """Let a device wait while so many launches are queued: they then start on time.

    Args:
        interface: ``torch.cuda``, or what stands for it; one that cannot wait is left alone.
        launches: that follow.
    """
    if (sleep := getattr(interface, "_sleep", None)) is not None:
        sleep(DELAY_CYCLES * (launches + 1))


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
