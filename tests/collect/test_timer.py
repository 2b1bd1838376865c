import itertools
import time

import numpy as np
import pytest

from foretune.collect.timing import (
    MIN_SAMPLE_S,
    Timing,
    median_interval,
    time_interleaved,
    time_launch,
)


def test_median_interval_is_the_binomial_one():
    # Hahn and Meeker, table of order statistics: ranks 40 and 61 of 100 enclose the median at 95 %.
    low, high = median_interval(np.arange(1, 101, dtype=float))
    assert (low, high) == (40, 61)


def test_few_samples_give_the_extremes():
    assert median_interval(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)


def test_median_interval_covers():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        low, high = median_interval(rng.exponential(size=31))
        hits += low <= np.log(2) <= high
    assert hits / 400 >= 0.94


def wait(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_launches_are_timed():
    samples = time_launch(lambda: wait(2e-3), Timing(max_seconds=0.1, warmup_s=0.01))
    assert len(samples) >= 5
    assert samples.min() >= 2.0  # it cannot take less, whatever the machine does


def test_short_launches_are_timed_together():
    calls = itertools.count()
    samples = time_launch(
        lambda: next(calls), Timing(max_seconds=0.05, warmup_s=0.005, max_repeats=20)
    )
    assert next(calls) > 10 * len(samples)
    assert (samples < 1e3 * MIN_SAMPLE_S).all()


def test_hopeless_launches_stop_early():
    timing = Timing(max_seconds=60, warmup_s=0.0, relative_width=0.0, max_repeats=500)
    samples = time_launch(lambda: wait(1e-3), timing, incumbent_ms=0.1)
    assert len(samples) == timing.min_repeats


def test_max_repeats_end_it():
    timing = Timing(max_seconds=60, warmup_s=0.0, relative_width=0.0, max_repeats=12)
    assert len(time_launch(lambda: wait(1e-4), timing)) == 12


def test_interleaving_takes_turns():
    order = []
    launches = {name: lambda n=name: (order.append(n), wait(MIN_SAMPLE_S)) for name in "abc"}
    samples = time_interleaved(launches, max_seconds=0.0, min_rounds=60)
    assert {name: len(s) for name, s in samples.items()} == {"a": 60, "b": 60, "c": 60}
    # Each sample after an untimed launch of its own; every round all of them; nobody always after
    # the same one.
    turns = order[-360:]
    assert turns[::2] == turns[1::2]
    rounds = [turns[i : i + 6 : 2] for i in range(0, 360, 6)]
    assert all(sorted(r) == list("abc") for r in rounds)
    assert {"".join(r) for r in rounds} == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_errors_of_a_launch_reach_the_caller():
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        time_launch(broken, Timing())
