"""Tests timers, stopping rules and the interval of the median: `collect/timing.py`."""

import itertools
import time

import numpy as np
import pytest
from fake_clock import FakeClock

from foretune.collect import timing
from foretune.collect.timing import (
    MIN_SAMPLE_S,
    MIN_SAMPLES,
    ColdCpuTimer,
    Timing,
    median_interval,
    time_launch,
)
from foretune.kernel import SelfTimedLaunch


def test_median_interval_matches_binomial_distribution():
    # Hahn and Meeker, table of order statistics: ranks 40 and 61 of 100 enclose the median at 95 %.
    low, high = median_interval(np.arange(1, 101, dtype=float))
    assert (low, high) == (40, 61)


def test_median_interval_few_samples_give_range():
    assert median_interval(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)


def test_median_interval_covers_median_in_95_percent():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        low, high = median_interval(rng.exponential(size=31))
        hits += low <= np.log(2) <= high
    assert hits / 400 >= 0.94


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_time_launch_uses_real_clock():
    def launch():
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass

    samples = time_launch(launch, Timing(max_seconds=0.02, warmup_s=0.0))
    assert len(samples) >= MIN_SAMPLES
    assert samples.min() >= 2.0  # a busy machine can only make it longer


def test_time_launch_steady_launches_stop_at_narrow_interval(clock):
    samples = time_launch(clock.launch(2.0), Timing(max_seconds=60, warmup_s=0.01))
    assert samples == pytest.approx(np.full(7, 2.0))  # five samples have no 95 % interval


def test_time_launch_time_limit_includes_warm_up(clock):
    restless = clock.launch(*np.random.default_rng(0).uniform(9.0, 11.0, 100))
    start_s = clock.perf_counter()
    samples = time_launch(restless, Timing(max_seconds=0.2, warmup_s=0.05))
    assert 0.2 < clock.perf_counter() - start_s < 0.2 + 0.011
    assert len(samples) == pytest.approx((0.2 - 0.05) / 0.01, abs=2)


def test_time_launch_samples_slow_launches_three_times(clock):
    samples = time_launch(clock.launch(2000.0), Timing(max_seconds=0.25))
    assert samples == pytest.approx(np.full(MIN_SAMPLES, 2000.0))


def test_time_launch_times_short_launches_together(clock):
    calls = itertools.count()
    work = clock.launch(1e-3)

    def launch():
        next(calls)
        work()

    samples = time_launch(launch, Timing(warmup_s=0.0, relative_width=-1.0, max_repeats=20))
    assert samples == pytest.approx(np.full(20, 1e-3))
    assert next(calls) == 1 + 20 * 1e3 * MIN_SAMPLE_S / 1e-3


def test_cold_timer_flushes_before_each_launch_without_timing_it(clock, monkeypatch):
    timer = ColdCpuTimer(cache_bytes=0)
    flushed = []

    class Buffer:
        def fill(self, value):
            clock.launch(50.0)()  # milliseconds that must not count
            flushed.append(value)

    monkeypatch.setattr(timer, "_buffer", Buffer())
    limits = Timing(max_seconds=60, warmup_s=0.0, relative_width=-1.0, max_repeats=7)
    samples = time_launch(clock.launch(1e-3), limits, timer=timer)
    assert samples == pytest.approx(np.full(7, 1e-3))
    assert len(flushed) == 1 + 7  # the warm-up, and each sample
    assert len(set(flushed)) == len(flushed)


def test_cold_timer_buffer_is_as_large_as_the_cache():
    assert ColdCpuTimer(cache_bytes=2**29)._buffer.nbytes == 2**29


def test_time_launch_slow_launches_stop_early(clock):
    limits = Timing(max_seconds=60, warmup_s=0.0, relative_width=-1.0, max_repeats=500)
    samples = time_launch(clock.launch(1.0), limits, incumbent_ms=0.1)
    assert len(samples) == limits.min_repeats


def test_time_launch_stops_at_max_repeats(clock):
    limits = Timing(max_seconds=60, warmup_s=0.0, relative_width=-1.0, max_repeats=12)
    assert len(time_launch(clock.launch(0.1), limits)) == 12


def test_time_launch_one_run_is_not_warmed_up(clock):
    class OneRun(SelfTimedLaunch):
        is_one_run = True
        __call__ = clock.launch(1.0)

        def sample_ms(self, timer, batch):
            next(runs)
            clock.sleep(1e-3)
            return 1.0

    runs = itertools.count()
    time_launch(OneRun(), Timing(warmup_s=0.1, relative_width=-1.0, max_repeats=9))
    assert next(runs) == 9


def test_time_launch_raises_errors_of_launch():
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        time_launch(broken, Timing())
