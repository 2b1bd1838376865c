"""CPU and GPU timers, stopping rules, and the confidence interval of a median."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.kernel import Kernel, Launch, SelfTimedLaunch
from foretune.problem import Problem
from foretune.support.lazy import require

MIN_SAMPLES = 3
"""Samples that are taken even after the time limit."""
MIN_INTERVAL_SAMPLES = 6
"""Below six samples, their range is no 95 % interval of the median."""
MIN_SAMPLE_S = 50e-6
"""Shorter launches are timed several at once, because of the clock's resolution."""
MAX_OWN_TIME = 1.1
"""Largest own time of a launch over the wall time of the call: other clocks round and drift."""

DELAY_CYCLES = 60_000
"""The delay per queued launch in device cycles: about 30 µs."""
CYCLES_PER_S = 3.2e9
"""Faster than most devices' clocks: a delay is rather too long than too short."""
MAX_DELAY_S = 5e-3
"""A call that waits for the device takes as long as the delay: it must not grow forever."""
MARGIN_OF_DELAY = 1.2
"""The delay over the time that the host took to queue as many launches before."""

FLUSH_BYTES = 2**28
"""Minimum size of the buffer that flushes the cache: 256 MiB, or twice the cache."""
MAX_LAUNCHES = 20
"""Launches per sample with a warm cache: queueing more would take longer than the delay."""
MAX_KNOWN = 256
"""Number of launches whose time on the host is kept."""


class Timer:
    """Times launches with the host's clock; ``interface`` is ``torch.cuda``, or a substitute."""

    interface: Any = None

    def batch_size(self, fastest_ms: float) -> int:
        """Return the number of launches in one sample, if one takes this many milliseconds."""
        return max(1, int(np.ceil(MIN_SAMPLE_S * 1e3 / max(fastest_ms, 1e-6))))

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the mean time of ``batch_size`` launches back to back, in milliseconds."""
        start = time.perf_counter_ns()
        for _ in range(batch_size):
            launch()
        return (time.perf_counter_ns() - start) * 1e-6 / batch_size

    def wait(self) -> None:
        """Wait until all launches are done."""


CPU_TIMER = Timer()


class ColdCpuTimer(Timer):
    """Times launches on the host whose operands have left the caches.

    Between two uses of a weight, a model reads all its other weights. A buffer as large as the
    last-level cache is written before every launch, so that the next one reads from memory.
    """

    def __init__(self, cache_bytes: float) -> None:
        self._buffer = np.empty(max(FLUSH_BYTES, int(cache_bytes)), dtype=np.uint8)
        self._written = 0

    def batch_size(self, fastest_ms: float) -> int:
        """Return 1: a second launch in a row would find its operands in the cache."""
        return 1

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the time of one launch, in milliseconds."""
        # Another value each time: equal pages may be merged.
        self._written = (self._written + 1) % 256
        self._buffer.fill(self._written)
        return super().sample_ms(launch, batch_size=1)


@dataclass(frozen=True)
class Timing:
    """When to stop repeating.

    Attributes:
        max_seconds: time limit in seconds, including the warm-up; three samples are always taken.
        warmup_s: minimum warm-up, in which the clock frequency and the caches settle.
        relative_width: stop when the interval of the median is this narrow, relative to it.
        min_repeats: number of samples before the first check of the interval.
        max_repeats: maximum number of samples.
        early_stop_ratio: stop when the lower bound exceeds the incumbent's upper bound by this
            factor.
    """

    max_seconds: float = 0.25
    warmup_s: float = 0.02
    relative_width: float = 0.01
    min_repeats: int = 5
    max_repeats: int = 1000
    early_stop_ratio: float = 1.3


def median_interval(samples: np.ndarray) -> tuple[float, float]:
    """Return the distribution-free 95 % interval of the median; below six samples, their range."""
    ordered = np.sort(samples)
    rank = _rank(len(ordered))
    return float(ordered[rank]), float(ordered[-1 - rank])


@lru_cache(maxsize=4096)
def _rank(n: int) -> int:
    """Return the rank from below of the interval's lower end, by the binomial distribution.

    Computed here: importing SciPy's would double the time that a process takes to start.
    """
    allowed = 0.025 * 2**n
    below = 0
    for rank in range(n):
        below += math.comb(n, rank)
        if below >= allowed:
            return max(rank - 1, 0)
    return 0


def time_launch(
    launch: Launch, timing: Timing, incumbent_ms: float = np.inf, timer: Timer = CPU_TIMER
) -> np.ndarray:
    """Return times of single launches in milliseconds, without the warm-up.

    On the host, a launch returns when its work is done. ``incumbent_ms`` is an upper bound of the
    best time so far; clearly slower launches stop early.
    """
    deadline = time.perf_counter() + timing.max_seconds
    batch = _warm_up(launch, timing.warmup_s, timer)
    samples: list[float] = []
    next_check = timing.min_repeats
    while len(samples) < timing.max_repeats:
        samples.append(sample_ms(launch, batch, timer))
        timed_out = time.perf_counter() > deadline
        if timed_out and len(samples) >= MIN_SAMPLES:
            break
        if len(samples) < next_check:
            continue

        # Stop if the median is known well enough, or is clearly worse than the best time.
        low, high = median_interval(np.array(samples))
        is_interval = len(samples) >= MIN_INTERVAL_SAMPLES
        converged = is_interval and high - low <= timing.relative_width * low
        clearly_slower = low > timing.early_stop_ratio * incumbent_ms
        if converged or clearly_slower:
            break

        # Check less and less often: sorting many samples takes time.
        next_check = min(int(next_check * 1.25) + 1, next_check + 50)
    return np.array(samples)


def _warm_up(launch: Launch, min_seconds: float, timer: Timer) -> int:
    """Warm up for ``min_seconds``; return the number of launches per sample."""
    if isinstance(launch, SelfTimedLaunch) and launch.is_one_run:
        return 1
    end = time.perf_counter() + min_seconds
    fastest_ms = sample_ms(launch, 1, timer)
    while time.perf_counter() < end:
        fastest_ms = min(fastest_ms, sample_ms(launch, 1, timer))
    return timer.batch_size(fastest_ms)


def sample_ms(launch: Launch, batch: int, timer: Timer) -> float:
    """Return milliseconds per launch; raise ValueError if the launch's own time is impossible."""
    if not isinstance(launch, SelfTimedLaunch):
        return timer.sample_ms(launch, batch)
    return possible_ms(partial(launch.sample_ms, timer, batch))


def possible_ms(measure: Callable[[], float]) -> float:
    """Return the own time of a launch; raise ValueError if it is longer than the call took."""
    start = time.perf_counter_ns()
    own_ms = float(measure())
    wall_ms = (time.perf_counter_ns() - start) * 1e-6
    if not 0 < own_ms <= MAX_OWN_TIME * wall_ms:
        raise ValueError(
            f"its own time of {own_ms:.3g} ms is impossible, it ran for {wall_ms:.3g} ms: check "
            "what it measures, and in which unit"
        )
    return own_ms


def delay_kernel_start(interface: Any, launches: int = 1, host_s: float = 0.0) -> None:
    """Delay a device until the timed launches are queued, so that they run without gaps.

    ``interface`` is ``torch.cuda`` or a substitute; one without ``_sleep`` gets no delay. The host
    took ``host_s`` to queue them before: a launch may be a call that launches many kernels.
    """
    sleep = getattr(interface, "_sleep", None)
    if sleep is None:
        return
    cycles_of_launches = DELAY_CYCLES * (launches + 1)
    cycles_of_host = int(CYCLES_PER_S * min(MARGIN_OF_DELAY * host_s, MAX_DELAY_S))
    sleep(max(cycles_of_launches, cycles_of_host))


class DeviceTimer(Timer):
    """Times launches by events in the device's queue.

    ``event`` makes an event like ``torch.cuda.Event``, ``synchronize`` returns when the device is
    idle, and ``before_sample`` is called with the number of launches that follow and the seconds
    that it took to queue as many of this launch before (0 at first). A sample has at most
    ``max_launches``: 1 if each needs a cold cache.
    """

    def __init__(
        self,
        event: Callable[[], Any],
        synchronize: Callable[[], None],
        before_sample: Callable[[int, float], object],
        max_launches: int = 1,
        interface: Any = None,
    ) -> None:
        self.interface = interface
        self._event = event
        self._synchronize = synchronize
        self._before_sample = before_sample
        self._max_launches = max_launches
        self._host_s: dict[int, float] = {}

    def batch_size(self, fastest_ms: float) -> int:
        """Return the number of launches in one sample, if one takes this many milliseconds."""
        return min(super().batch_size(fastest_ms), self._max_launches)

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        """Return the mean time of ``batch_size`` launches between two events, in milliseconds."""
        start = self._event()
        end = self._event()
        key = id(getattr(launch, "__wrapped__", launch))
        self._before_sample(batch_size, batch_size * self._host_s.get(key, 0.0))

        start.record()
        host_start = time.perf_counter()
        for _ in range(batch_size):
            launch()
        end.record()
        if len(self._host_s) >= MAX_KNOWN:
            self._host_s.clear()
        self._host_s[key] = (time.perf_counter() - host_start) / batch_size

        end.synchronize()
        return float(start.elapsed_time(end)) / batch_size

    def wait(self) -> None:
        """Wait until the device is idle; raise RuntimeError if a launch broke its context."""
        self._synchronize()


def timer_for(kernel: Kernel, problem: Problem, device: Device) -> Timer:
    """Return the timer of ``kernel`` on ``device``, which becomes torch's current device.

    The cache is flushed before each sample unless the problem has ``cache=warm``. GPU kernels that
    Triton interprets on the CPU get the host's timer. Raises MissingExtra without torch.
    """
    if kernel.device_kind == "cpu" or kernel.reports_own_time:
        return CPU_TIMER
    return gpu_timer(device, problem.get("cache") == "warm")


def gpu_timer(device: Device, warm_cache: bool = False) -> Timer:
    """Return the timer of a GPU, which becomes torch's current device.

    If torch sees no GPU, it is the host's timer. With ``warm_cache`` the cache is not flushed
    between launches. Raises MissingExtra without torch.
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
    make_event = partial(cuda.Event, enable_timing=True)
    delay = partial(delay_kernel_start, cuda)
    if warm_cache:
        return DeviceTimer(
            make_event, cuda.synchronize, delay, max_launches=MAX_LAUNCHES, interface=cuda
        )

    # Writing a buffer that is larger than the cache replaces all that it holds.
    size = max(FLUSH_BYTES, 2 * torch.cuda.get_device_properties(index).L2_cache_size)
    buffer = torch.empty(size, dtype=torch.int8, device=f"cuda:{index}")

    def flush(launches: int, host_s: float) -> None:
        buffer.zero_()
        delay(launches, host_s)

    return DeviceTimer(make_event, cuda.synchronize, flush, interface=cuda)
