"""Timing launches on a shared, noisy machine.

Warm up, then repeat until the 95 % confidence interval of the median is narrow or the time box
ends. The interval is the distribution-free one from order statistics (Hahn and Meeker, Statistical
Intervals, 1991, section 5.2), because times are skewed and medians are what is reported.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import bdtr

from foretune.kernel import Launch, SelfTimedLaunch

MIN_SAMPLES = 3
"""Taken even when the time box is over."""
MIN_SAMPLE_S = 50e-6
"""A sample of a shorter launch times several back to back, so the clock's grain does not show."""


class Timer:
    """Times launches that return when their work is done, by the host's clock.

    Other devices have their own, see `foretune.collect.device_timer`.

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
        max_seconds: seconds after which no more samples are taken, warm-up included; three always are.
        warmup_s: least time of warm-up; the clock frequency and the caches settle in it.
        relative_width: stop once the interval of the median is this narrow, relative to it.
        min_repeats: samples before the interval is looked at.
        max_repeats: never more.
        early_stop_ratio: stop once the lower bound is this many times above the incumbent's upper bound.
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
