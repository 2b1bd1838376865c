"""What limits a judged candidate."""

import math

import numpy as np
import pytest

from foretune.collect.isolated_implementation import IsolatedImplementation, Work
from foretune.device import Device
from foretune.problem import Problem
from foretune.tune.roofline_share import roofline_share

DEVICE = Device(
    "CPU", "cpu", specs={"memory_gbps": 10, "fp32_gflops": 100, "l1_kib": 32, "l2_kib": 1024}
)
PROBLEM = Problem(n=1)
MB = 10**6


@pytest.mark.parametrize(
    ("work", "time_ms", "bottleneck"),
    [
        (Work(8 * MB, 1e6, "fp32"), 1.0, "memory"),
        (Work(MB, 8e7, "fp32"), 1.0, "arithmetic"),
        (Work(MB, 1e6, "fp32"), 1.0, "neither"),
        (Work(8 * MB, math.nan, "fp32"), 1.0, "memory"),
        (Work(MB, 8e7, "fp64"), 1.0, "neither"),
    ],
)
def test_bottleneck_is_the_roof_that_is_nearest(work, time_ms, bottleneck):
    share = roofline_share(PROBLEM, work, time_ms, DEVICE)
    assert share.bottleneck == bottleneck
    assert "limits it" in share.headline


def test_shares_are_rates_over_the_device(tmp_path):
    share = roofline_share(PROBLEM, Work(5 * MB, 2e7, "fp32"), 1.0, DEVICE)
    assert share.gbps == pytest.approx(5)
    assert share.memory_share == pytest.approx(0.5)
    assert share.arithmetic_share == pytest.approx(0.2)
    assert share.level == "memory"
    assert roofline_share(PROBLEM, Work(MB // 2, 1, "fp32"), 1.0, DEVICE).level == "l2"


def test_unknown_rates_give_no_share():
    share = roofline_share(PROBLEM, Work(MB, math.nan, "fp32"), 1.0, Device("CPU", "cpu"))
    assert math.isnan(share.memory_share)
    assert "unknown" in share.headline


def test_work_counts_inputs_and_outputs():
    implementation = IsolatedImplementation(
        lambda x: x.sum(axis=1), lambda seed, n: (np.full((n, 4), float(seed)),)
    )
    implementation.prepare({"n": 10}, [1])
    work = implementation.work()
    assert work.bytes == 10 * 4 * 8 + 10 * 8
    assert work.precision == "fp64"


def test_work_counts_the_operations_of_torch():
    torch = pytest.importorskip("torch")
    implementation = IsolatedImplementation(
        lambda a, b: a @ b, lambda seed, n: (torch.ones(n, n), torch.ones(n, n))
    )
    implementation.prepare({"n": 8}, [1])
    assert implementation.work() == Work(3 * 8 * 8 * 4, 2 * 8**3, "fp32")
