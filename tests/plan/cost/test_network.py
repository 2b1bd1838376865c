"""Exchanges between nodes."""

from dataclasses import replace

import pytest

from foretune.plan.cost.network import HOP_MS, network_ms
from foretune.plan.cost.operator import collective
from foretune.plan.cost.steps import operator_table
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.catalog import find_system

H100 = find_system("h100_sxm")  # nodes of 8, adapters of 50 GB/s


def test_network_ms_ring_over_two_nodes_uses_all_adapters_of_a_node():
    ms = network_ms("all_gather", size=8e8, ranks=16, stride=1, system=H100)

    # 15/16 of the message over 8 adapters of 50 GB/s, and one hop
    assert ms == pytest.approx(HOP_MS + 15 / 16 * 8e8 / (400 * 1e6))


def test_operator_timer_exchange_beyond_node_takes_network_model():
    sums = operator_table(
        [
            collective("all_reduce", "sum", phase="decode", count=1, elements=4e5, devices=n)
            for n in (8, 16)
        ]
    )
    timer = OperatorTimer(H100.device, None, "h100_sxm", links=H100)

    times = timer.times(sums)

    expected = network_ms("all_reduce", size=8e5, ranks=16, stride=1, system=H100)
    assert times.ms[1] == pytest.approx(expected)
    assert list(times.source) == ["roofline", "predicted"]


def test_operator_timer_exchange_within_rack_of_fast_links_needs_no_network():
    sums = operator_table(
        [collective("all_reduce", "sum", phase="decode", count=1, elements=4e5, devices=16)]
    )
    rack = replace(H100, domain_gpus=72)

    times = OperatorTimer(rack.device, None, "h100_sxm", links=rack).times(sums)

    assert times.source[0] == "roofline"
