"""Servers in a power budget: by hand, and what must hold whatever the figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from foretune.errors import UsageError
from foretune.plan import find_system
from foretune.plan.cost.power import OperatorPower
from foretune.plan.fleet.budget import best, oversubscriptions
from foretune.plan.fleet.server import PowerPhase, Server
from foretune.plan.serve.deployments.power import apply_power_cap


def server(read=400.0, write=200.0, part=0.25, host=800.0):
    phases = (PowerPhase(part, read, 1.0), PowerPhase(1.0 - part, write, 0.1))
    return Server(8, phases, idle_w=50.0, limit_w=400.0, host_w=host, tokens_per_s=1000.0)


def test_a_server_by_hand():
    # A quarter of the time 8 · 400 W, else 8 · 200 W: 2000 W on average, and 800 W of the host.
    draw = server().under_cap(400.0)
    assert (draw.mean_w, draw.slowdown) == (pytest.approx(2800.0), pytest.approx(1.0))
    assert draw.spread_w == pytest.approx((0.25 * 0.75) ** 0.5 * 1600.0)
    assert server().provisioned_w == 4000.0
    assert server().peak_w(400.0) == pytest.approx(4000.0)


def test_a_cap_by_hand():
    # Answers, at 200 W, do not feel a cap of 300 W; prompts take as much longer as `capped` says.
    power, slow = apply_power_cap(400.0, 300.0, 50.0, 1.0)
    draw = server().under_cap(300.0)
    assert draw.slowdown == pytest.approx(0.25 * slow + 0.75)
    lasts = 0.25 * slow
    assert draw.mean_w == pytest.approx(800 + 8 * (lasts * power + 0.75 * 200) / (lasts + 0.75))


def test_how_many_fit_by_hand():
    # Steady servers of 2400 W (no phase differs): the budget by their power, whatever the chance.
    steady = server(read=200.0)
    found = oversubscriptions(steady, 48_000.0, shares=(1.0,))[0]
    assert (found.servers, found.provisioned, found.extra_share) == (
        20,
        12,
        pytest.approx(20 / 12 - 1),
    )
    assert found.tokens_per_s == pytest.approx(20_000.0)
    assert found.mean_w == pytest.approx(48_000.0)


def test_the_budget_holds_but_for_the_chance():
    one = server()
    found = oversubscriptions(one, 1e6, shares=(1.0,), overload_share=0.01)[0]
    draw, z = one.under_cap(400.0), norm.isf(0.01)
    assert found.servers * draw.mean_w + z * found.servers**0.5 * draw.spread_w <= 1e6
    more = found.servers + 1
    assert more * draw.mean_w + z * more**0.5 * draw.spread_w > 1e6
    assert found.servers > found.provisioned


def test_few_servers_may_all_peak_at_once():
    assert oversubscriptions(server(), 4000.0, shares=(1.0,))[0].servers == 1


def test_a_budget_for_not_one():
    with pytest.raises(UsageError, match="1 kW is not enough for a server"):
        oversubscriptions(server(), 1000.0)


@given(
    st.floats(5e3, 1e6), st.floats(1.0, 3.0), st.floats(60.0, 400.0), st.floats(60.0, 400.0),
    st.floats(0.0, 1.0),
)  # fmt: skip
def test_more_power_never_feeds_fewer(budget, factor, read, write, part):
    one = server(read, write, part)
    less, more = oversubscriptions(one, budget), oversubscriptions(one, factor * budget)
    assert all(b.servers >= a.servers for a, b in zip(less, more, strict=True))
    assert best(more).tokens_per_s >= best(less).tokens_per_s
    assert all(a.servers >= a.provisioned for a in less)
    slowdowns = [a.slowdown for a in less]
    assert slowdowns == sorted(slowdowns)


def test_the_server_of_a_planned_deployment():
    import pandas as pd

    h200 = find_system("h200_sxm")
    awake = OperatorPower(h200.device, "h200_sxm").active_idle_w
    busy_w = 0.25 * 600 + 0.75 * 300
    row = pd.Series(
        {
            "gpus": 8, "tokens_per_s_per_gpu": 500.0, "prefill_share": 0.25,
            "prefill_power_w": 600.0, "decode_power_w": 300.0,
            "power_w": 0.8 * busy_w + 0.2 * awake,
        }
    )  # fmt: skip
    made = Server.from_candidate(row, h200, host_w=100.0)
    assert [p.share for p in made.phases] == pytest.approx([0.2, 0.6, 0.2])
    assert made.mean_w == pytest.approx(8 * row["power_w"] + 800.0)
    assert (made.tokens_per_s, made.limit_w) == (4000.0, 700.0)
