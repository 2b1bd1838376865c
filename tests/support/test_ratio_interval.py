"""Student's interval of a ratio."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from foretune.support.ratio_interval import ratio_interval


@given(
    logs=st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=30),
    error=st.floats(1e-4, 0.4),
)
def test_ratio_interval_is_that_of_students_t(logs, error):
    mean, variance = np.mean(logs), np.var(logs, ddof=1)
    interval = ratio_interval(mean, variance=variance, n=len(logs), error=error)
    scale = math.sqrt(variance / len(logs))
    logs_of_ends = stats.t.ppf([error, 1 - error], len(logs) - 1) * scale + mean
    with np.errstate(over="ignore"):
        expected = np.exp(logs_of_ends)
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-6)
    assert interval.ratio == pytest.approx(math.exp(mean))


def test_ratio_interval_of_the_inverse_is_the_inverse():
    one = ratio_interval(0.3, variance=0.02, n=5, error=0.05)
    other = ratio_interval(-0.3, variance=0.02, n=5, error=0.05)
    assert (1 / other.high, 1 / other.low) == pytest.approx((one.low, one.high))


def test_ratio_interval_covers_as_often_as_stated():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2_000):
        logs = rng.normal(0.1, 0.05, 5)
        interval = ratio_interval(logs.mean(), variance=logs.var(ddof=1), n=5, error=0.05)
        inside += interval.low <= math.exp(0.1) <= interval.high
    assert 0.88 < inside / 2_000 < 0.92
