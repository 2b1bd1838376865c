"""The CPU taken apart: levels are found in curves, and the probes measure what they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from machine_probe import dissection
from machine_probe.dissection import (
    Dissection,
    Level,
    MemoryCurve,
    find_levels,
    working_sets,
)

from foretune.device import SPECS, available_cores

SIZES = working_sets(1 << 17)
FASTER = np.linspace(200, 10, len(SIZES))


def curve(ends_kib, latencies_ns, sizes=SIZES):
    """Return latencies that step up beyond each end."""
    return np.array([latencies_ns[sum(size > end for end in ends_kib)] for size in sizes])


@settings(deadline=None)
@given(
    l1=st.sampled_from([32, 48, 64, 128]),
    l2_over_l1=st.integers(8, 40),
    l3_over_l2=st.integers(3, 20),
    noise=st.floats(0, 0.2),
    seed=st.integers(0, 100),
)
def test_the_ends_of_levels_are_found(l1, l2_over_l1, l3_over_l2, noise, seed):
    ends = [l1, l1 * l2_over_l1, l1 * l2_over_l1 * l3_over_l2]
    rng = np.random.default_rng(seed)
    rounds = curve(ends, [1.2, 4.0, 16.0, 90.0]) * (1 + noise * rng.random((2, len(SIZES))))
    levels = find_levels(SIZES, rounds, FASTER)
    assert [v.name for v in levels] == ["L1", "L2", "L3", "memory"]
    for level, end in zip(levels, ends, strict=False):
        assert end / 1.3 <= level.size_kib <= end
    assert [v.latency_ns for v in levels] == pytest.approx([1.2, 4.0, 16.0, 90.0], rel=noise + 1e-9)
    assert all(v.read_gbps in FASTER for v in levels)


def test_a_disturbed_value_ends_no_level():
    rounds = np.array([curve([32, 1024], [1.0, 4.0, 80.0])] * 2)
    rounds[:, 3] *= 30
    levels = find_levels(SIZES, rounds, FASTER)
    assert [(v.name, v.size_kib) for v in levels] == [
        ("L1", 32.0),
        ("L2", 1024.0),
        ("memory", math.inf),
    ]


def test_a_flat_curve_is_memory_alone():
    (level,) = find_levels(SIZES, np.ones((2, len(SIZES))), FASTER)
    assert (level.name, level.latency_ns) == ("memory", 1.0)


def test_rates_of_levels_whose_rounds_differ_are_no_specs():
    levels = (
        Level("L1", 32.0, 1.0, 200.0, 0.01),
        Level("L2", 512.0, 4.0, 100.0, 0.4),
        Level("memory", math.inf, 80.0, 20.0, 0.05),
    )
    curve = MemoryCurve((4.0,), (1.0,), (9.0,), levels)
    found = Dissection(curve, {}, math.nan, {}, 1.0, 1.0, 1.0)
    assert found.specs == {"l1_gbps": 200.0, "memory_ns": 80.0}
    assert found.specs.keys() <= SPECS.keys()
    assert curve.to_frame().to_dict("list") == {
        "sizes_kib": [4.0],
        "latency_ns": [1.0],
        "read_gbps": [9.0],
    }


def test_a_chase_visits_every_line_once():
    buffer = dissection._Buffer(16)
    buffer._chaser(8)
    ring = buffer._lines[:1024]
    visited = []
    at = 0
    for _ in range(128):
        visited.append(at)
        at = int(ring[at])
    assert at == 0
    assert sorted(visited) == list(range(0, 1024, 8))


def test_reading_adds_every_number():
    buffer = dissection._Buffer(16)
    buffer._numbers[:] = 1.0
    assert buffer._read(buffer._numbers[:1024], 3) == 3 * 1024


def test_the_whole_of_it():
    found = dissection.dissect_cpu(max_kib=8)
    assert found.memory.levels[-1].name == "memory"
    assert len(found.memory.to_frame()) == len(working_sets(8))
    assert min(found.memory.latency_ns) > 0
    assert found.fma_gflops.keys() == {
        f"{t} x {b}" for t in ("fp32", "fp64") for b in (128, 256, 512)
    }
    assert min(found.call_us, found.parallel_us, found.page_us) > 0
    several = available_cores() > 1
    assert bool(found.core_to_core_ns) == several
    assert math.isnan(found.loaded_latency_ns) != several
