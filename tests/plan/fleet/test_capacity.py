"""What instances sustain, by rooflines alone, so that no table is needed."""

import dataclasses

import pytest

from foretune.errors import UsageError
from foretune.plan import Formats, Requirements, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.fleet.capacity import Demand, instance_types

DEMANDS = [Demand(Workload(128, 64), 5.0), Demand(Workload(2048, 128), 0.5)]
PRICES = {"h100_sxm": 6.0, "l4": 0.8}
CLOCKS = StepTimerFactory(None)


def kinds(
    requirements=None, systems=("h100_sxm", "l4"), sizes=(1, 2), demands=DEMANDS, formats=None
):
    return instance_types(
        describe_model("meta-llama/Llama-2-7b-hf"),
        [find_system(s, PRICES) for s in systems],
        sizes,
        demands,
        CLOCKS,
        requirements,
        formats=formats or [Formats()],
    )


def most(found, system, demand=0):
    return max(k.rates[demand] / k.gpus for k in found if k.system == system)


def test_types_and_what_they_sustain():
    found = kinds()
    assert {k.system for k in found} == {"h100_sxm", "l4"}
    for kind in found:
        assert kind.gpus % kind.layout.gpus == 0
        assert kind.replicas == kind.gpus // kind.layout.gpus
        assert kind.usd_per_hour == kind.gpus * PRICES[kind.system]
        assert kind.power_w > kind.gpus * find_system(kind.system).power_limit_w
        assert kind.rates[0] > kind.rates[1] >= 0
        assert len(kind.in_flight) == 2
    assert most(found, "h100_sxm") > most(found, "l4") > 0


def test_tighter_limits_never_sustain_more():
    loose, tight = (
        kinds(Requirements(tpot_ms=100.0)),
        kinds(Requirements(tpot_ms=40.0, ttft_ms=2000.0)),
    )
    for system in PRICES:
        for demand in (0, 1):
            assert most(tight, system, demand) <= most(loose, system, demand) * (1 + 1e-9)


def test_instance_types_two_replicas_sustain_twice_the_rate():
    one, pairs = (kinds(sizes=(n,), systems=("h100_sxm",)) for n in (1, 2))
    twice = [k.rates for k in pairs if k.replicas == 2]
    assert twice == [pytest.approx([2 * rate for rate in k.rates]) for k in one]
    assert len(twice) == 1


def test_instance_types_accuracy_leaves_formats_out():
    choices = [Formats(), Formats("int4_wo"), Formats("mxfp4")]  # published, lossy, unknown
    kept = kinds(Requirements(accuracy=0.9999), formats=choices, systems=("h100_sxm",))
    assert {k.formats for k in kept} == {Formats()}


def test_requests_out_of_reach_say_what_is_nearest():
    with pytest.raises(
        UsageError, match=r"requests of 128\+64 tokens: the nearest is \d × h100_sxm"
    ):
        kinds(Requirements(tpot_ms=0.1))


def test_requests_that_fit_nowhere():
    long = [Demand(Workload(2_000_000, 10), 1.0)]
    with pytest.raises(
        UsageError, match=r"2000000\+10 tokens do not fit on an instance of up to 2 GPUs"
    ):
        kinds(demands=long)


def test_instance_types_system_without_price():
    system = dataclasses.replace(find_system("l4"), price_per_hour=None)
    with pytest.raises(UsageError, match="l4 has no price: add one with --prices"):
        instance_types(describe_model("meta-llama/Llama-2-7b-hf"), [system], [1], DEMANDS, CLOCKS)
