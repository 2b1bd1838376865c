"""Parts of the time of a tiled launch, counted by hand: `features/families/tiles.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.features.families.gemm import Gemm
from foretune.features.families.inductor import InductorMm
from foretune.features.families.tiles import (
    L2_SPEEDUP,
    PIPELINING_EXPONENT,
    STEP_LATENCY_MS,
    TiledLaunch,
)
from foretune.features.roofline import row_limits_ms, row_parts_ms

DEVICE = {"cores": 4.0, "memory_gbps": 1000.0, "fp16_gflops": 4000.0, "l1_kib": 128.0}
RUN = {
    "kernel": "inductor_mm",
    "device": "d",
    "problem.M": 256.0,
    "problem.N": 320.0,
    "problem.K": 128.0,
    "problem.mat1_dtype": "float16",
    "problem.mat2_dtype": "float16",
    "config.BLOCK_M": 64.0,
    "config.BLOCK_N": 64.0,
    "config.BLOCK_K": 32.0,
    "config.num_warps": 4.0,
    "config.num_stages": 3.0,
    **{f"device.{name}": value for name, value in DEVICE.items()},
}


def launch(**changed):
    sizes = {
        "blocks": 9.0,
        "steps": 10.0,
        "flops": 1e6,
        "step_bytes": 16384.0,
        "sums": 4096.0,
        "warps": 4.0,
        "stages": 3.0,
        "moved_bytes": 5e6,
        "dtype": "fp16",
    }
    return TiledLaunch(**{**sizes, **changed})


def test_parts_ms_equals_count_by_hand():
    parts = launch().parts_ms(DEVICE)
    assert parts["operations"] == pytest.approx(3 * 10 * 1e6 / (4000e6 / 4))  # three whole waves
    assert parts["cache"] == pytest.approx(9 * 10 * 16384 / (L2_SPEEDUP * 1000e6))
    assert parts["memory"] == pytest.approx(5e6 / 1000e6)
    # two blocks fit by shared memory (3 × 16 KiB each of 128), so nine need two rounds
    assert launch().resident(DEVICE) == 2
    assert parts["latency"] == pytest.approx(STEP_LATENCY_MS * 2 * 10 / 2**PIPELINING_EXPONENT)


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({"stages": 9.0}, 1),
        ({"warps": 32.0, "stages": 1.0}, 1),
        ({"sums": 1e5}, 1),
        ({"sums": 64.0, "step_bytes": 64.0, "warps": 1.0}, 32),
    ],
)
def test_resident_blocks_per_core(changed, held):
    """By shared memory, threads, registers; one at least, thirty-two at most."""
    assert launch(**changed).resident(DEVICE) == held


def test_ratio_of_launches_does_not_depend_on_device_size():
    """Twice the device and twice the blocks are alike."""
    one = launch().features(DEVICE)
    twice = launch(blocks=18.0).features({**DEVICE, "cores": 8.0})
    assert one == pytest.approx(twice)


def test_row_parts_of_known_launch():
    rows = pd.DataFrame([RUN, {**RUN, "config.BLOCK_M": 128.0}])
    parts = row_parts_ms(InductorMm(), rows)
    assert parts.shape == (2, 4)
    assert parts[0, 0] == pytest.approx(5 * 4 * 2 * 64 * 64 * 32 / 1e9)  # 20 tiles on 4 cores
    slow = row_parts_ms(InductorMm(), rows.drop(columns=["device.fp16_gflops"]))
    assert np.isfinite(slow).all()  # a rate that is not known is no limit
    unknown = rows.drop(columns=["device.fp16_gflops", "device.memory_gbps"])
    assert np.isnan(row_parts_ms(InductorMm(), unknown)).all()


def test_row_parts_without_launch_are_the_limits():
    rows = pd.DataFrame([RUN]).drop(columns=["problem.mat1_dtype", "problem.mat2_dtype"])
    np.testing.assert_array_equal(row_parts_ms(Gemm(), rows), row_limits_ms(Gemm(), rows))
    assert np.isnan(row_parts_ms(None, rows)).all()
