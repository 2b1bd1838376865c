"""Launches of tiles, from the names or the grid of a call: `tune/triton/tiles/launch.py`."""

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

import torch
import triton

from foretune import Configuration, Device, Problem
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import BlockShapes, ShapeLaw, TileShape, tile_launches

M = 1000
N = 512
K = 2048
DEVICE = Device("NVIDIA H200", "gpu")
TILE = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
SMALL = Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
LARGE = Configuration(BLOCK_M=256, BLOCK_N=256, BLOCK_K=32)
LAW = ShapeLaw(
    SMALL,
    BlockShapes((TileShape(64, 64, 32),), elements=64 * 64),
    {"BLOCK_M": (1.0, 1.0, 0.0, 0.0), "BLOCK_N": (1.0, 0.0, 1.0, 0.0)},
)
"""The shapes of a product whose block has 64 × 64 sums and a fixed depth of 32."""


def meta(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


def call(grid, **arguments):
    return Call("kernel", "", Problem(), arguments, DEVICE, grid)


def product(m="BLOCK_M", n="BLOCK_N", batch=1, **arguments):
    """Return a call of a product whose second operand is transposed."""

    def grid(meta):
        return triton.cdiv(M, meta[m]) * triton.cdiv(N, meta[n]), batch

    operands = {"a": meta(M, K), "b": meta(K, N).t().contiguous().t(), "c": meta(M, N)}
    return call(grid, **operands, **arguments)


def grouped_product(grid, **arguments):
    """Return a call of a product in which no argument is named M."""
    operands = {"x": meta(M, K), "w": meta(8, N, K), "y": meta(M, N)}
    return call(grid, **operands, N=N, K=K, **arguments)


def attention(**arguments):
    tensors = {name: meta(2, 8, 1024, 128, dtype=torch.bfloat16) for name in ("q", "k", "v", "o")}
    return call(lambda meta: (triton.cdiv(1024, meta["BLOCK_M"]), 16), **tensors, **arguments)


@pytest.mark.parametrize(
    "names",
    [
        ("BLOCK_M", "BLOCK_N", "BLOCK_K"),
        ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
        ("BM", "BN", "BK"),
        ("TILE_M", "TILE_N", "TILE_K"),
        ("rows", "columns", "depth"),
    ],
    ids=lambda names: names[0],
)
@pytest.mark.parametrize("sizes", [{}, {"M": M, "N": N, "K": K}], ids=["unnamed", "named"])
def test_tile_launches_product_is_known_by_names_or_grid(names, sizes):
    tile = dict(zip(names, (64, 128, 32), strict=True))
    config = Configuration({**tile, "GROUP_M": 8, "num_warps": 8, "num_stages": 4})

    (launch,) = tile_launches(product(*names[:2], **sizes), [config])

    assert (launch.tile_m, launch.tile_n, launch.tile_k) == (64, 128, 32)
    assert launch.size_k == K
    assert launch.steps == K / 32
    assert launch.tiles == 16 * 4  # of 64 × 128 in 1000 × 512
    assert (launch.warps, launch.stages) == (8, 4)
    assert launch.step_bytes == 2 * 32 * (64 + 128)
    assert (launch.transposed_a, launch.transposed_b) == (0, 1)
    assert launch.exact == 0


def test_tile_launches_batch_multiplies_tiles():
    (launch,) = tile_launches(product(batch=8), [TILE])
    assert launch.tiles == 8 * (16 * 8)


def test_tile_launches_split_divides_steps():
    config = Configuration({**TILE, "SPLIT_K": 4})
    (launch,) = tile_launches(product(), [config])
    assert launch.steps == K / 32 / 4


@pytest.mark.parametrize(
    "grid",
    [
        (20,),
        lambda meta: (min(20, triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])),),
    ],
    ids=["fixed", "at most 20"],
)
def test_tile_launches_few_persistent_programs_compute_all_tiles(grid):
    arguments = product(M=M, N=N, K=K).arguments
    (launch,) = tile_launches(call(grid, **arguments), [TILE])
    assert launch.tiles == 16 * 8


@pytest.mark.parametrize(
    ("programs", "small_tiles", "large_tiles"),
    [
        (132, 132, 132),  # more programs than tiles: every program counts as one
        (4, 16 * 8, 4 * 2),
    ],
)
def test_tile_launches_persistent_grid_takes_rows_from_operand(programs, small_tiles, large_tiles):
    persistent = grouped_product(lambda meta: (programs,), NUM_TOKENS=M)

    small, large = tile_launches(persistent, [SMALL, LARGE], LAW)

    assert (small.tiles, small.size_m) == (small_tiles, M)
    assert (large.tiles, large.size_m) == (large_tiles, M)


def test_tile_launches_divided_grid_takes_rows_from_grid():
    divided = grouped_product(lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),))
    small, large = tile_launches(divided, [SMALL, LARGE], LAW)
    assert small.size_m == large.size_m == M


@pytest.mark.parametrize(
    ("arguments", "exact"),
    [({}, 0), ({"ALLOW_TF32": True}, 0), ({"ALLOW_TF32": False}, 1), ({"PRECISION": "ieee"}, 1)],
)
def test_tile_launches_float32_is_exact_if_an_argument_says_so(arguments, exact):
    def grid(meta):
        return triton.cdiv(K, meta["BLOCK_M"]), triton.cdiv(K, meta["BLOCK_N"])

    operands = {name: meta(K, K, dtype=torch.float32) for name in "abc"}
    (launch,) = tile_launches(call(grid, **operands, **arguments), [TILE])
    assert launch.exact == exact


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [({"N_CTX": 512}, 512 / 64), ({}, 1)],
    ids=["named keys", "keys without a name"],
)
def test_tile_launches_attention_loops_over_keys(arguments, steps):
    config = Configuration(BLOCK_M=128, BLOCK_N=64)

    (launch,) = tile_launches(attention(**arguments), [config])

    assert launch.tiles == 8 * 16  # of 128 queries, in 16 heads of 1024
    assert launch.tile_k == 128  # the width of a head
    assert launch.steps == steps
    assert launch.sums == 128 * (64 + 128)  # scores and output
    assert launch.kept_bytes == 128 * 128 * 2  # queries


@pytest.mark.parametrize(
    ("grid", "config"),
    [
        (lambda meta: (triton.cdiv(N, meta["BLOCK"]),), Configuration(BLOCK=64)),
        (
            lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"])),
            Configuration(BLOCK_M=64, BLOCK_N=64),
        ),
        (
            lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),),
            Configuration(BLOCK_M=64, BLOCK_N=64),
        ),
        (None, Configuration(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)),
    ],
    ids=["one edge", "no depth", "no depth, grid of rows", "no grid"],
)
def test_tile_launches_other_kernels_have_none(grid, config):
    copy = call(grid, x=meta(M, N), y=meta(M, N))
    assert tile_launches(copy, [config]) is None


def test_tile_launches_grid_that_raises_leaves_names():
    def grid(meta):
        raise ValueError("this grid needs other arguments")

    arguments = product(M=M, N=N, K=K).arguments
    (launch,) = tile_launches(call(grid, **arguments), [TILE])
    assert launch.tiles == 16 * 8


def test_tile_launches_operands_are_the_matrices_with_the_depth():
    """A result and a bias come first, as in many signatures."""
    ordered = product(M=M, N=N, K=K)
    tensors = {"c": meta(M, N), "bias": meta(N), "a": meta(M, K), "b": meta(N, K).t()}
    launches = [
        tile_launches(call(ordered.grid, **arguments, M=M, N=N, K=K), [TILE])[0]
        for arguments in (tensors, {name: tensors[name] for name in ("a", "b", "c", "bias")})
    ]
    assert launches[0] == launches[1]
    assert launches[0].k_major == 1


def test_tile_launches_repeated_elements_are_moved_once():
    expanded = meta(K, N).expand(8, K, N)
    batched = {"a": meta(8, M, K), "b": expanded, "c": meta(8, M, N)}
    (launch,) = tile_launches(call(product(batch=8).grid, **batched, M=M, N=N, K=K), [TILE])
    assert launch.moved_bytes == 2 * (8 * M * K + K * N + 8 * M * N)


@pytest.mark.parametrize(("name", "is_count"), [("KSPLIT", True), ("SPLIT_SIZE", False)])
def test_tile_launches_split_of_any_name_divides_steps_if_it_multiplies_programs(name, is_count):
    def grid(meta):
        return *product().grid(meta), meta[name] if is_count else 2

    config = Configuration({**TILE, name: 4})
    (launch,) = tile_launches(call(grid, **product(M=M, N=N, K=K).arguments), [config])
    assert launch.steps == K / 32 / (4 if is_count else 1)


def test_tile_launches_largest_size_is_not_the_size():
    arguments = product(N=N, K=K).arguments
    (launch,) = tile_launches(call(product().grid, **arguments, max_M=100 * M), [TILE])
    assert launch.size_m == M


def test_tile_launches_width_of_all_heads_is_not_that_of_one():
    config = Configuration(BLOCK_M=128, BLOCK_N=64)
    (launch,) = tile_launches(attention(HIDDEN_DIM=4096, HEAD_DIM=64), [config])
    assert launch.tile_k == 64
