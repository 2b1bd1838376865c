"""Requests simulated step by step: `plan/engine/simulator.py`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import UsageError
from foretune.plan.engine.host import Host
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.simulator import Scheduler, simulate_requests
from foretune.plan.engine.stage_times import StageWork

NOTHING = Host(0.0, 0.0, 0.0, 0.0, 0.0, overlaps=False)


def stages(depth=1, step_ms=1.0, token_ms=0.0):
    """Give stages that share a step of so many milliseconds, and so many per token."""

    def work(load, padded):
        return [StageWork((step_ms + token_ms * (load.tokens + padded)) / depth, 4)] * depth

    return work


def scheduler(tokens=100, batch=8, cache=1e6, **more):
    return Scheduler(tokens, batch, cache, **{"host": NOTHING, "graph_sizes": (), **more})


def at_once(count, isl, osl, **more):
    return Requests.uniform(np.zeros(count), isl, osl, **more)


def test_simulate_requests_one_request_takes_step_per_token():
    table = simulate_requests(at_once(1, 10, 5), scheduler(), stages())
    assert table["ttft_ms"].tolist() == [1.0]
    assert table["last_ms"].tolist() == [5.0]
    assert table["tpot_ms"].tolist() == [1.0]


def test_simulate_requests_long_prompt_is_chunked():
    table = simulate_requests(at_once(1, 250, 1), scheduler(tokens=100), stages())
    assert table["ttft_ms"].tolist() == [3.0]
    with pytest.raises(UsageError, match="chunked"):
        simulate_requests(at_once(1, 250, 1), scheduler(tokens=100, chunked=False), stages())


def test_simulate_requests_unchunked_prompt_waits_for_empty_step():
    whole = simulate_requests(at_once(3, 60, 1), scheduler(tokens=100, chunked=False), stages())
    parts = simulate_requests(at_once(3, 60, 1), scheduler(tokens=100), stages())
    assert whole["ttft_ms"].tolist() == [1.0, 2.0, 3.0]
    assert parts["ttft_ms"].tolist() == [1.0, 2.0, 2.0]


def test_simulate_requests_cache_limits_admission():
    table = simulate_requests(at_once(3, 10, 10), scheduler(cache=40), stages())
    assert table["ttft_ms"].tolist() == [1.0, 1.0, 11.0]
    with pytest.raises(UsageError, match="exceeds the cache"):
        simulate_requests(at_once(1, 10, 40), scheduler(cache=40), stages())


def test_simulate_requests_cached_tokens_are_not_computed():
    cold = simulate_requests(at_once(1, 100, 2), scheduler(), stages(token_ms=0.1))
    warm = simulate_requests(at_once(1, 100, 2, cached=90), scheduler(), stages(token_ms=0.1))
    assert cold["ttft_ms"][0] == pytest.approx(11.0)
    assert warm["ttft_ms"][0] == pytest.approx(2.0)


def test_simulate_requests_pipeline_has_batch_per_stage():
    """Latency stays, throughput grows with the stages."""
    requests = at_once(64, 10, 50)
    one = simulate_requests(requests, scheduler(batch=8), stages(1), 1)["last_ms"].max()
    four = simulate_requests(requests, scheduler(batch=8), stages(4), 4)
    assert four["last_ms"].max() < 0.3 * one
    assert four["tpot_ms"].median() == pytest.approx(1.0, rel=0.05)


def test_simulate_requests_cpu_time_overlaps_or_adds():
    own = {"step_ms": 0.5, "request_ms": 0.0, "token_ms": 0.0, "active_ms": 0.0, "layer_ms": 0.0}
    hidden, added = (
        simulate_requests(at_once(1, 10, 5), scheduler(host=Host(**own, overlaps=beside)), stages())
        for beside in (True, False)
    )
    assert hidden["last_ms"][0] == pytest.approx(5.0)
    assert added["last_ms"][0] == pytest.approx(7.5)


def test_simulate_requests_decode_steps_are_padded_to_graph():
    padded = simulate_requests(at_once(3, 1, 5), scheduler(graph_sizes=(4,)), stages(token_ms=1.0))
    bare = simulate_requests(at_once(3, 1, 5), scheduler(), stages(token_ms=1.0))
    assert padded["tpot_ms"][0] == pytest.approx(5.0)
    assert bare["tpot_ms"][0] == pytest.approx(4.0)


def test_simulate_requests_drafted_tokens_shorten_answers():
    table = simulate_requests(
        at_once(1, 10, 9), scheduler(drafted=1, accepted_tokens=1.6), stages()
    )
    assert table["last_ms"][0] == 1 + 5


def test_simulate_requests_in_flight_next_arrives_when_one_ends():
    table = simulate_requests(at_once(4, 10, 5, in_flight=1), scheduler(), stages())
    assert table["arrived_ms"].tolist() == [0.0, 5.0, 10.0, 15.0]
    assert table["ttft_ms"].tolist() == [1.0] * 4


def test_simulate_requests_random_arrivals_are_md1_queue():
    """One request at a time, of equal length, is M/D/1: Pollaczek and Khinchine know its wait."""
    per_s = 600.0
    service_ms = 1.0
    requests = Requests.poisson(per_s, 40_000, 10, 1)
    table = simulate_requests(requests, scheduler(batch=1), stages(step_ms=service_ms))
    load = per_s * service_ms / 1e3
    wait = load * service_ms / (2 * (1 - load))
    assert table["ttft_ms"].mean() == pytest.approx(service_ms + wait, rel=0.05)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 9), st.floats(0, 40)), min_size=1, max_size=30
    ),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
    st.integers(60, 300),
)
def test_simulate_requests_every_request_is_served_in_order(sent, depth, batch, chunked, cache):
    sent = sorted(sent, key=lambda r: r[2])
    isl, osl, at_ms = (np.array(v) for v in zip(*sent, strict=True))
    requests = Requests(at_ms, isl, osl, np.zeros_like(isl))
    limits = scheduler(64, batch, cache, chunked=chunked)
    table = simulate_requests(requests, limits, stages(depth), depth)
    assert (table["first_ms"] > table["arrived_ms"]).all()
    assert (table["last_ms"] >= table["first_ms"]).all()
    assert (np.diff(table["first_ms"]) >= -depth).all()
    steps = table["last_ms"] - table["first_ms"]
    assert (steps >= (osl - 1) * (1 - 1e-9)).all()


def test_simulate_requests_overlap_removes_ended_request_late():
    late = scheduler(cache=20, host=Host(0.0, 0.0, 0.0, 0.0, 0.0))
    table = simulate_requests(at_once(2, 10, 5), late, stages())
    assert table["last_ms"][0] == 5.0
    assert table["ttft_ms"][1] == 7.0  # one more step before its place is free
