"""The load generator against a toy server over HTTP."""

import numpy as np
import pytest
from served_toys import toy_server

from foretune.plan import Workload
from foretune.plan.prove.client import Prompts, serve_load
from foretune.plan.prove.figures import summarize_run
from foretune.plan.prove.load import Load
from foretune.plan.prove.server import free_port

PROMPTS = Prompts("toy", vocab=1000)
WORKLOAD = Workload(isl=12, osl=3)


@pytest.fixture
def url(tmp_path):
    with toy_server(tmp_path, "--slots", "2", "--step-ms", "30") as server:
        server.wait_until_healthy(60)
        yield server.url


def most_at_once(requests):
    """Return the most requests that were in flight together."""
    moments = [(r.sent_s, 1) for r in requests] + [(r.last_s, -1) for r in requests]
    in_flight = np.cumsum([change for _, change in sorted(moments)])
    return int(in_flight.max())


def test_client_closed_loop_keeps_requests_in_flight(url):
    load = Load(WORKLOAD, concurrency=3)
    served = serve_load(url, load, PROMPTS, seed=0, limit_s=60)
    assert len(served) == load.count == 9
    assert most_at_once(served) == 3
    assert {(r.prompt_tokens, r.tokens, r.error) for r in served} == {(12, 3, "")}
    assert all(r.sent_s < r.first_s < r.last_s for r in served)
    assert summarize_run(served).tokens == 27


def test_client_open_loop_sends_at_given_times(url):
    load = Load(WORKLOAD, rate=20.0)
    short = Load(Workload(isl=12, osl=1), rate=load.rate)
    arrivals_s = short.requests(seed=1).arrival_ms[:20] / 1e3
    served = serve_load(url, short, PROMPTS, seed=1, limit_s=60)
    sent_s = np.sort([r.sent_s for r in served])[:20]
    # No request is sent before its moment; they do not wait for answers.
    assert np.all(np.diff(np.append(0, sent_s - sent_s[0])) >= 0)
    assert sent_s[-1] - sent_s[0] >= 0.9 * (arrivals_s[-1] - arrivals_s[0])
    assert len(served) == short.count


def test_client_without_server_gives_errors(tmp_path):
    load = Load(WORKLOAD, concurrency=2)
    served = serve_load(f"http://127.0.0.1:{free_port()}", load, PROMPTS, seed=0, limit_s=5)
    assert len(served) == load.count
    assert all("Cannot connect" in r.error for r in served)


def test_prompts_share_only_their_prefix():
    rng = np.random.default_rng(0)
    first = PROMPTS.draw(20, 8, rng)
    second = PROMPTS.draw(20, 8, rng)
    assert first[:8] == second[:8]
    assert first[8:] != second[8:]
    assert len(first) == 20
    assert all(250 <= word < 750 for word in first)


def test_loads_are_the_same_for_simulator_and_client():
    load = Load(WORKLOAD, rate=2.0)
    assert np.array_equal(load.requests(3).arrival_ms, load.requests(3).arrival_ms)
    assert not np.array_equal(load.requests(3).arrival_ms, load.requests(4).arrival_ms)
    assert Load(WORKLOAD, concurrency=1).count == 4
