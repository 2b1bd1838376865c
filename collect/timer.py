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

from foretune.kernel import Launch, TimedLaunch

LEAST_SAMPLES = 3
"""Taken even when the time box is over."""
LEAST_SAMPLE_S = 50e-6
"""A sample of a shorter launch times several back to back, so the clock's grain does not show."""


class Stopwatch:
    """Times launches that return when their work is done, by the host's clock.

    Other devices have their own, see `foretune.collect.device_timer`.

    Attributes:
        interface: what offers graphs of launches, such as ``torch.cuda``; None on the host.
    """

    interface: Any = None

    def batch(self, fastest_ms: float) -> int:
        """Return how many launches of this time, in milliseconds, make one sample long enough."""
        return max(1, int(np.ceil(LEAST_SAMPLE_S * 1e3 / max(fastest_ms, 1e-6))))

    def sample_ms(self, launch: Launch, batch: int) -> float:
        """Return the mean time of ``batch`` launches back to back, in milliseconds."""
        start = time.perf_counter_ns()
        for _ in range(batch):
            launch()
        return (time.perf_counter_ns() - start) * 1e-6 / batch

    def wait(self) -> None:
        """Return when everything launched is done."""


HOST = Stopwatch()


@dataclass(frozen=True)
class Timing:
    """When to stop repeating.

    Attributes:
        box_s: seconds after which no more samples are taken, warm-up included; three always are.
        warmup_s: least time of warm-up; the clock frequency and the caches settle in it.
        relative_width: stop once the interval of the median is this narrow, relative to it.
        min_repeats: samples before the interval is looked at.
        max_repeats: never more.
        hopeless: stop once the lower bound is this many times above the incumbent's upper bound.
    """

    box_s: float = 0.25
    warmup_s: float = 0.02
    relative_width: float = 0.01
    min_repeats: int = 5
    max_repeats: int = 1000
    hopeless: float = 1.3


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
    stopwatch: Stopwatch = HOST,
) -> np.ndarray:
    """Return the times of single launches of ``launch`` in milliseconds, warm-up left out.

    Args:
        launch: what is timed; on the host it returns when the work is done.
        timing: when to stop.
        incumbent_ms: upper bound of the best time so far: a launch that is clearly slower stops
            early.
        stopwatch: of the device it runs on.
    """
    deadline = time.perf_counter() + timing.box_s
    batch = _warm_up(launch, timing.warmup_s, stopwatch)
    samples: list[float] = []
    check_at = timing.min_repeats
    while len(samples) < timing.max_repeats:
        samples.append(_sample_ms(launch, batch, stopwatch))
        late = time.perf_counter() > deadline
        if late and len(samples) >= LEAST_SAMPLES:
            break
        if len(samples) < check_at:
            continue
        low, high = median_interval(np.array(samples))
        settled = len(samples) >= 6 and high - low <= timing.relative_width * low
        if settled or low > timing.hopeless * incumbent_ms:
            break
        check_at = min(int(check_at * 1.25) + 1, check_at + 50)
    return np.array(samples)


def time_interleaved(
    launches: Mapping[str, Launch],
    box_s: float,
    min_rounds: int = 7,
    max_rounds: int = 400,
    stopwatch: Stopwatch = HOST,
) -> dict[str, np.ndarray]:
    """Return times in milliseconds of several launches measured in turn, each round in a new order.

    Drift of the machine hits all of them alike; entry ``i`` of every array is from round ``i``.
    Before each sample the launch runs once untimed: what the one before it left in the caches (or
    its threads that still wait) is not charged to it.
    """
    rng = np.random.default_rng(0)
    names = list(launches)
    batches = {name: _warm_up(launch, 0.02, stopwatch) for name, launch in launches.items()}
    rounds: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + box_s
    for i in range(max_rounds):
        if i >= min_rounds and time.perf_counter() > deadline:
            break
        for j in rng.permutation(len(names)):
            launches[names[j]]()
            sample_ms = _sample_ms(launches[names[j]], batches[names[j]], stopwatch)
            rounds[names[j]].append(sample_ms)
    return {name: np.array(times) for name, times in rounds.items()}


def _warm_up(launch: Launch, at_least_s: float, stopwatch: Stopwatch) -> int:
    """Run until ``at_least_s`` is over; return how many launches make one sample long enough."""
    start = time.perf_counter()
    fastest = np.inf
    launches = 0
    while launches < 1 or time.perf_counter() - start < at_least_s:
        fastest = min(fastest, _sample_ms(launch, 1, stopwatch))
        launches += 1
    return stopwatch.batch(fastest)


def _sample_ms(launch: Launch, batch: int, stopwatch: Stopwatch) -> float:
    if isinstance(launch, TimedLaunch):
        return launch.sample_ms(stopwatch, batch)
    return stopwatch.sample_ms(launch, batch)
