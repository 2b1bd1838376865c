"""What a call tells of the tiles that its candidates launch."""

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

import torch
import triton

from foretune import Configuration, Device, Problem
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import BlockShapes, ShapeLaw, TileShape, tile_launches

M, N, K = 1000, 512, 2048
DEVICE = Device("NVIDIA H200", "gpu")


def meta(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


def call(grid, **arguments):
    return Call("kernel", "", Problem(), arguments, DEVICE, grid)


def product(m="BLOCK_M", n="BLOCK_N", batch=1, **arguments):
    grid = lambda meta: (triton.cdiv(M, meta[m]) * triton.cdiv(N, meta[n]), batch)  # noqa: E731
    given = {"a": meta(M, K), "b": meta(K, N).t().contiguous().t(), "c": meta(M, N)}
    return call(grid, **given, **arguments)


@pytest.mark.parametrize(
    "names",
    [
        ("BLOCK_M", "BLOCK_N", "BLOCK_K"),
        ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
        ("BM", "BN", "BK"),
        ("TILE_M", "TILE_N", "TILE_K"),
        ("rows", "columns", "depth"),
    ],
)
@pytest.mark.parametrize("sizes", [{}, {"M": M, "N": N, "K": K}])
def test_a_product_is_known_by_names_or_by_its_grid(names, sizes):
    values = dict(zip(names, (64, 128, 32), strict=True))
    config = Configuration({**values, "GROUP_M": 8, "num_warps": 8, "num_stages": 4})
    (launch,) = tile_launches(product(*names[:2], **sizes), [config])
    assert (launch.tile_m, launch.tile_n, launch.tile_k) == (64, 128, 32)
    assert (launch.size_k, launch.steps, launch.tiles) == (K, K / 32, 16 * 4)
    assert (launch.warps, launch.stages) == (8, 4)
    assert launch.step_bytes == 2 * 32 * (64 + 128)
    assert (launch.transposed_a, launch.transposed_b, launch.exact) == (0, 1, 0)


def test_batches_and_splits_count():
    config = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, SPLIT_K=4)
    (launch,) = tile_launches(product(batch=8), [config])
    assert (launch.tiles, launch.steps) == (16 * 8 * 8, K / 32 / 4)


def test_persistent_programs_take_tiles_in_turn():
    arguments = product(M=M, N=N, K=K).arguments
    config = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    tiles = 16 * 8
    few = lambda m: (min(20, triton.cdiv(M, m["BLOCK_M"]) * triton.cdiv(N, m["BLOCK_N"])),)  # noqa: E731
    for grid in (few, (20,)):
        (launch,) = tile_launches(call(grid, **arguments), [config])
        assert launch.tiles == tiles


def test_a_grid_of_persistent_programs_says_nothing_of_the_rows():
    """As in grouped products, whose tokens no argument names."""
    given = {"x": meta(M, K), "w": meta(8, N, K), "y": meta(M, N), "N": N, "K": K}
    small, large = (Configuration(BLOCK_M=e, BLOCK_N=e, BLOCK_K=32) for e in (64, 256))
    exponents = {"BLOCK_M": (1.0, 1.0, 0.0, 0.0), "BLOCK_N": (1.0, 0.0, 1.0, 0.0)}
    law = ShapeLaw(small, BlockShapes((TileShape(64, 64, 32),), 64 * 64), exponents)
    for programs, tiles in ((132, [132, 132]), (4, [16 * 8, 4 * 2])):  # no fewer than programs
        persistent = call(lambda meta, n=programs: (n,), **given, NUM_TOKENS=M)
        launches = tile_launches(persistent, [small, large], law)
        assert [(one.tiles, one.size_m) for one in launches] == [(n, M) for n in tiles]
    several = call(lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),), **given)
    assert {one.size_m for one in tile_launches(several, [small, large], law)} == {M}


@pytest.mark.parametrize(
    ("said", "exact"),
    [({}, 0), ({"ALLOW_TF32": True}, 0), ({"ALLOW_TF32": False}, 1), ({"PRECISION": "ieee"}, 1)],
)
def test_32_bits_are_exact_where_the_kernel_is_told(said, exact):
    given = {name: meta(K, K, dtype=torch.float32) for name in "abc"}
    grid = lambda m: (triton.cdiv(K, m["BLOCK_M"]), triton.cdiv(K, m["BLOCK_N"]))  # noqa: E731
    config = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    (launch,) = tile_launches(call(grid, **given, **said), [config])
    assert launch.exact == exact


def attention(**arguments):
    given = {name: meta(2, 8, 1024, 128, dtype=torch.bfloat16) for name in ("q", "k", "v", "o")}
    return call(lambda m: (triton.cdiv(1024, m["BLOCK_M"]), 16), **given, **arguments)


@pytest.mark.parametrize(("arguments", "steps"), [({"N_CTX": 1024}, 16), ({}, 1)])
def test_attention_walks_along_keys(arguments, steps):
    config = Configuration(BLOCK_M=128, BLOCK_N=64)
    (launch,) = tile_launches(attention(**arguments), [config])
    assert (launch.tile_k, launch.tiles, launch.steps) == (128, 8 * 16, steps)
    assert launch.sums == 128 * (64 + 128)
    assert launch.kept_bytes == 128 * 128 * 2


def test_other_kernels_are_left_to_the_estimate():
    x = {"x": meta(M, N), "y": meta(M, N)}
    one = call(lambda m: (triton.cdiv(N, m["BLOCK"]),), **x)
    assert tile_launches(one, [Configuration(BLOCK=64)]) is None
    grid = lambda m: (triton.cdiv(M, m["BLOCK_M"]), triton.cdiv(N, m["BLOCK_N"]))  # noqa: E731
    assert tile_launches(call(grid, **x), [Configuration(BLOCK_M=64, BLOCK_N=64)]) is None
    rows = call(lambda m: (triton.cdiv(M, m["BLOCK_M"]),), **x)
    assert tile_launches(rows, [Configuration(BLOCK_M=64, BLOCK_N=64)]) is None
    no_grid = call(None, **x)
    assert tile_launches(no_grid, [Configuration(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)]) is None


def test_a_grid_that_raises_is_no_harm():
    def grid(meta):
        raise ValueError("not asked like this")

    config = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    arguments = product(M=M, N=N, K=K).arguments
    (launch,) = tile_launches(call(grid, **arguments), [config])
    assert launch.tiles == 16 * 8
