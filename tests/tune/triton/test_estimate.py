"""What is estimated of kernels that nobody has measured."""

import numpy as np
import pytest

pytest.importorskip("triton")

from foretune import Configuration, Device, Problem
from foretune.search.encoding import KernelRuns
from foretune.tune.triton.prior import estimate, tile_edges

DEVICE = Device("NVIDIA H200", "gpu", specs={"cores": 132.0})


def order(configs, programs):
    found = KernelRuns([Problem()] * len(configs), configs, [{"programs": p} for p in programs])
    return np.argsort(estimate(found, DEVICE.specs), kind="stable").tolist()


def test_tiny_tiles_of_a_product_load_too_much():
    small, large = (Configuration(BLOCK_M=b, BLOCK_N=b, num_warps=4) for b in (16, 128))
    assert order([small, large], [65536, 1024]) == [1, 0]


def test_tiles_that_spill_are_bad():
    fits, spills = (Configuration(BLOCK_M=256, BLOCK_N=256, num_warps=w) for w in (16, 4))
    assert order([spills, fits], [256, 256]) == [1, 0]


def test_idle_multiprocessors_are_bad():
    configs = [Configuration(BLOCK=b, num_warps=4) for b in (2048, 1024)]
    assert order(configs, [540, 1056]) == [1, 0]


@pytest.mark.parametrize(
    ("name", "edge"),
    [("BLOCK_M", "M"), ("BLOCK_SIZE_N", "N"), ("BLOCK", ""), ("BLOCK_SIZE", ""),
     ("TILE_K", "K"), ("BM", "M"), ("GROUP_M", None), ("num_warps", None)],
)  # fmt: skip
def test_tiles_are_known_by_their_names(name, edge):
    assert tile_edges(Configuration({name: 64})) == ({} if edge is None else {edge: 64.0})
