"""Latencies at a request rate, against queueing theory: `plan/serve/arrivals.py`."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan.serve.arrivals import MIN_GOODPUT_SHARE, LoadCurve
from foretune.plan.serve.requirements import Requirements


def curve(in_flight, ttft_ms, tpot_ms, osl=11, requirements=None):
    loads = pd.DataFrame({"batch": in_flight, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms})
    return LoadCurve(loads, osl, requirements or Requirements())


def test_load_curve_one_request_at_a_time_is_mm1_queue():
    """M/M/1: one request at a time of 100 + 10 x 10 = 200 ms, so 5 per second."""
    load = curve([1], [100], [10]).at(2.5)
    assert load.in_flight == pytest.approx(0.5 / (1 - 0.5))
    assert load.tpot_ms == pytest.approx(10)
    # Little: 1 request in flight at 2.5 per second stays 400 ms, 100 of them for further tokens.
    assert load.ttft_ms == pytest.approx(300)


def test_load_curve_constant_latency_is_mmc_queue():
    """M/M/c: Erlang's C formula gives the mean number in flight."""
    places = 4
    each_s = 0.2
    load = curve([1, places], [100, 100], [10, 10]).at(15.0)
    offered = 15.0 * each_s
    busy = offered / places
    terms = [offered**k / math.factorial(k) for k in range(places)]
    last = offered**places / math.factorial(places) / (1 - busy)
    waits = last / (sum(terms) + last)
    assert load.in_flight == pytest.approx(offered + waits * busy / (1 - busy), rel=1e-6)


def test_load_curve_rate_above_capacity_has_no_load():
    line = curve([1, 8], [100, 200], [10, 20])
    assert line.max_per_s == pytest.approx(8 / 0.4)
    assert line.at(1.01 * line.max_per_s) is None
    assert line.at(0.0) is None


def test_goodput_is_highest_rate_within_limits():
    requirements = Requirements(ttft_ms=400)
    line = curve([1, 2, 4], [100, 100, 100], [10, 10, 10], requirements=requirements)
    most = line.goodput()
    assert 0 < most < line.max_per_s
    assert line.at(most).goodput_share == pytest.approx(MIN_GOODPUT_SHARE, abs=1e-3)
    assert curve([1], [100], [10], requirements=Requirements(tpot_ms=5)).goodput() == pytest.approx(
        0, abs=1e-6
    )


@given(
    st.floats(0.05, 0.9),
    st.floats(0.05, 0.9),
    st.floats(1, 2000),
    st.floats(1, 200),
    st.floats(1, 3),
)
def test_load_curve_higher_rate_is_slower_with_less_goodput(first, second, ttft, tpot, slower):
    requirements = Requirements(ttft_ms=2 * ttft, tpot_ms=2 * tpot)
    line = curve(
        [1, 4, 32],
        [ttft, ttft * slower, ttft * slower**2],
        [tpot, tpot * slower, tpot * slower**2],
        requirements=requirements,
    )
    low, high = (line.at(share * line.max_per_s) for share in sorted((first, second)))
    assert low.in_flight <= high.in_flight * (1 + 1e-9)
    assert low.ttft_ms <= high.ttft_ms * (1 + 1e-9)
    assert low.tpot_ms <= high.tpot_ms * (1 + 1e-9)
    assert low.goodput_share >= high.goodput_share - 1e-9
