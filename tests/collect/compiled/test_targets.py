"""Tests targets by name, and how many blocks fit on a multiprocessor."""

import pytest

from foretune.collect.compiled.gpu_targets import get_target
from foretune.collect.compiled.static_features import occupancy_of
from foretune.errors import UnknownName


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sm_90", "sm_90"),
        ("SM90a", "sm_90"),
        ("cuda:90", "sm_90"),
        ("sm_120f", "sm_120"),
        ("hip:gfx942", "gfx942"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
    ],
)
def test_get_target_accepts_all_spellings(name, found):
    assert get_target(name).name == found


def test_get_target_unknown_name_is_refused():
    with pytest.raises(UnknownName, match=r"unknown target 'sm_91': .*sm_90"):
        get_target("sm_91")


# Block counts that CUDA's occupancy calculator gives.
@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "ctas", "limiter"),
    [
        ("sm_80", 4, 32, 0, 16, "registers"),
        ("sm_80", 8, 64, 0, 4, "registers"),
        ("sm_80", 8, 65, 0, 3, "registers"),
        ("sm_80", 4, 128, 48 * 1024, 3, "shared"),
        ("sm_80", 1, 16, 0, 32, "ctas"),
        ("sm_90", 4, 255, 100 * 1024, 2, "registers"),
        ("sm_90", 4, 168, 98304, 2, "shared"),
        ("sm_120", 8, 32, 0, 6, "warps"),
        ("gfx942", 4, 128, 0, 4, "registers"),
        ("gfx942", 4, 64, 20 * 1024, 3, "shared"),
        ("gfx942", 1, 16, 0, 32, "warps"),
    ],
)
def test_occupancy_of_counts_blocks_and_limiter(target, warps, registers, shared, ctas, limiter):
    needs = {"warps": warps, "registers": registers, "shared_bytes": shared}
    occupancy = occupancy_of(needs, get_target(target))
    assert occupancy.excess == ""
    found = occupancy.features
    assert (found["ctas_per_sm"], found["fits"]) == (ctas, 1)
    assert found[f"limited_by_{limiter}"] == 1
    assert sum(v for name, v in found.items() if name.startswith("limited_by_")) == 1
    assert found["warps_per_sm"] == ctas * warps
    assert 0 < found["occupancy"] <= 1


def test_occupancy_of_tensor_memory_limits_blocks():
    needs = {"warps": 4, "registers": 64, "shared_bytes": 1024, "tensor_memory": 256}
    found = occupancy_of(needs, get_target("sm_100")).features
    assert (found["ctas_per_sm"], found["limited_by_tensor_memory"]) == (2, 1)


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"shared_bytes": 200_000}, "200000 bytes of shared memory, sm_80 has 166912"),
        ({"warps": 16, "registers": 255}, "16 warps of 255 registers"),
        ({"warps": 64, "registers": 16}, "2048 threads"),
        ({"tensor_memory": 128}, "128 columns of tensor memory, sm_80 has 0"),
    ],
)
def test_occupancy_of_too_large_block_has_reason(needs, reason):
    usual = {"warps": 4, "registers": 32, "shared_bytes": 0}
    occupancy = occupancy_of({**usual, **needs}, get_target("sm_80"))
    assert occupancy.features["fits"] == 0
    assert occupancy.features["ctas_per_sm"] == 0
    assert reason in occupancy.excess
