"""The cheapest mix: against mixes computed by hand, and against trying all."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from foretune.errors import UsageError
from foretune.plan import Formats, Layout
from foretune.plan.fleet.capacity import InstanceType, pareto_instances
from foretune.plan.fleet.mix import Limits, cheapest_fleet, single_fleets

MOST = 3
RATES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 5.0])


def made(system, gpus, usd_per_gpu, rates):
    return InstanceType(
        system=system,
        gpus=gpus,
        layout=Layout(),
        formats=Formats(),
        usd_per_hour=gpus * usd_per_gpu,
        power_w=gpus * 500.0,
        rates=tuple(rates),
        in_flight=(1.0,) * len(rates),
    )


@st.composite
def markets(draw):
    """Two or three types for one or two lengths of requests, each length served by some type."""
    lengths = draw(st.integers(1, 2))
    kinds = [
        made(
            draw(st.sampled_from("ab")),
            draw(st.sampled_from([1, 2])),
            draw(st.sampled_from([1.0, 1.5, 4.0])),
            draw(st.lists(RATES, min_size=lengths, max_size=lengths)),
        )
        for _ in range(draw(st.integers(2, 3)))
    ]
    per_s = draw(st.lists(st.sampled_from([0.4, 1.0, 2.5]), min_size=lengths, max_size=lengths))
    return kinds, per_s


def tried(kinds, per_s):
    """The least cost of up to `MOST` instances of each type; None if no number of them does it."""
    priced = sorted(
        (sum(n * kind.usd_per_hour for n, kind in zip(counts, kinds, strict=True)), counts)
        for counts in itertools.product(range(MOST + 1), repeat=len(kinds))
    )
    return next((cost for cost, counts in priced if serves(kinds, per_s, counts)), None)


def serves(kinds, per_s, counts):
    """Whether requests can be spread over so many instances: a linear programme."""
    pairs = [(t, b) for t, kind in enumerate(kinds) for b, rate in enumerate(kind.rates) if rate]
    busy = np.zeros((len(kinds), len(pairs)))
    all_of = np.zeros((len(per_s), len(pairs)))
    for i, (t, b) in enumerate(pairs):
        busy[t, i], all_of[b, i] = per_s[b] / kinds[t].rates[b], 1.0
    if not pairs:
        return False
    answer = linprog(
        np.zeros(len(pairs)),
        A_ub=busy,
        b_ub=counts,
        A_eq=all_of,
        b_eq=np.ones(len(per_s)),
        bounds=(0, 1),
    )
    return answer.status == 0


def test_cheapest_fleet_by_hand(kind):
    # Short requests are cheap on the small one, 1 USD for 10/s; long ones on the large one, 1/s for
    # 4 USD. All on large ones: 20/20 + 2/1 = 3 of them, 12 USD; small ones cannot serve long ones.
    small = kind("small", 1.0, (10.0, 0.0))
    large = kind("large", 4.0, (20.0, 1.0))
    fleet = cheapest_fleet([small, large], [20.0, 2.0])
    assert [(s.kind.system, s.count, s.served) for s in fleet.shares] == [
        ("large", 2, (0.0, 1.0)),
        ("small", 2, (1.0, 0.0)),
    ]
    assert (fleet.usd_per_hour, fleet.power_w, fleet.optimality_gap) == (10.0, 2000.0, 0.0)
    alone = single_fleets([small, large], [20.0, 2.0])
    assert {name: one.usd_per_hour for name, one in alone.items()} == {"large": 12.0}


def test_cheapest_fleet_may_split_demand(kind):
    # 25/s: two small ones (20/s) and the idle half of what serves the long requests.
    small = kind("small", 1.0, (10.0, 0.0))
    large = kind("large", 4.0, (20.0, 1.0))
    fleet = cheapest_fleet([small, large], [25.0, 0.5])
    assert fleet.usd_per_hour == 6.0
    by = {share.kind.system: share for share in fleet.shares}
    assert by["small"].served[0] + by["large"].served[0] == pytest.approx(1.0)
    assert by["large"].utilization <= 1 + 1e-9
    assert by["small"].served[0] <= 20 / 25 + 1e-9
    assert fleet.gpus == {"large": 1, "small": 2}


def test_fewer_gpus_than_the_cheapest_takes(kind):
    small = kind("small", 1.0, (10.0,))
    large = kind("large", 4.0, (20.0,))
    assert cheapest_fleet([small, large], [30.0]).usd_per_hour == 3.0
    fleet = cheapest_fleet([small, large], [30.0], Limits({"small": 2}))
    assert fleet.gpus == {"large": 1, "small": 1}
    with pytest.raises(
        UsageError, match=r"without limits the cheapest fleet has 3 × small and 1\.5 kW"
    ):
        cheapest_fleet([small, large], [30.0], Limits({"small": 2, "large": 0}))


def test_power_is_a_limit(kind):
    # Three small ones of 500 W are cheapest; 1.2 kW leave one large one of 900 W and nothing else.
    small = kind("small", 1.0, (10.0,))
    large = kind("large", 4.0, (30.0,), watts=900.0)
    assert cheapest_fleet([small, large], [30.0]).gpus == {"small": 3}
    assert cheapest_fleet([small, large], [30.0], Limits(power_w=1200.0)).gpus == {"large": 1}
    assert single_fleets([small, large], [30.0], Limits(power_w=1200.0)).keys() == {"large"}


def test_power_that_nobody_knows_cannot_be_limited(kind):
    unknown = kind("new", 1.0, (10.0,), watts=float("nan"))
    assert cheapest_fleet([unknown], [5.0]).usd_per_hour == 1.0
    with pytest.raises(UsageError, match="power of new is unknown"):
        cheapest_fleet([unknown], [5.0], Limits(power_w=1e6))


def test_requests_that_no_type_serves(kind):
    with pytest.raises(UsageError, match="no instance type serves all"):
        cheapest_fleet([kind("small", 1.0, (10.0, 0.0))], [1.0, 1.0])


@given(markets())
@settings(max_examples=25, deadline=None)
def test_trying_all_finds_nothing_cheaper(market):
    kinds, per_s = market
    least = tried(kinds, per_s)
    try:
        fleet = cheapest_fleet(kinds, per_s)
    except UsageError:
        assert least is None
        return
    if least is not None:
        assert fleet.usd_per_hour <= least + 1e-6
    if max(share.count for share in fleet.shares) <= MOST:
        assert fleet.usd_per_hour == pytest.approx(least)
    counts = {share.kind: share.count for share in fleet.shares}
    assert serves(kinds, [0.9999 * r for r in per_s], [counts.get(k, 0) for k in kinds])


@given(markets(), st.data())
@settings(max_examples=25, deadline=None)
def test_cheapest_fleet_more_types_never_cost_more(market, data):
    kinds, per_s = market
    fewer = kinds[: data.draw(st.integers(1, len(kinds) - 1))]
    try:
        before = cheapest_fleet(fewer, per_s).usd_per_hour
    except UsageError:
        return
    assert cheapest_fleet(kinds, per_s).usd_per_hour <= before + 1e-6


@given(markets())
@settings(max_examples=25, deadline=None)
def test_types_left_out_make_no_difference(market):
    kinds, per_s = market
    priced = {"a": 1.0, "b": 3.0}  # one price per GPU of a system, as prices are
    kinds = [made(k.system, k.gpus, priced[k.system], k.rates) for k in kinds]
    kept = pareto_instances(kinds)
    assert set(kept) <= set(kinds)
    try:
        cost = cheapest_fleet(kinds, per_s).usd_per_hour
    except UsageError:
        with pytest.raises(UsageError):
            cheapest_fleet(kept, per_s)
        return
    assert cheapest_fleet(kept, per_s).usd_per_hour == pytest.approx(cost)


def test_pareto_instances_leaves_out_dominated_types(kind):
    one = kind("a", 1.0, (2.0, 1.0))
    two = kind("a", 2.0, (4.0, 2.0), gpus=2)
    better = kind("a", 2.0, (4.0, 2.5), gpus=2)
    elsewhere = kind("b", 9.0, (1.0, 0.5))
    assert pareto_instances([two, one]) == [one]
    assert set(pareto_instances([better, one, elsewhere])) == {one, better, elsewhere}
