"""Shapes of blocks from a kernel's code (`tune/triton/tiles/by_code.py`), and their order."""

import numpy as np
import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton
import triton.language as tl

from foretune import Configuration, Device, Problem
from foretune.errors import ForetuneWarning
from foretune.search.encoding import KernelRuns
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory, row_launches
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import BlockShapes, TileShape, shape_law, tile_launches

M = 1024
N = 512
K = 2048
DEVICE = Device("NVIDIA H200", "gpu", "sm_90", specs={"cores": 132.0})


@triton.jit
def product(a, b, c, M, N, K, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr):
    rows = tl.program_id(0) * TALL + tl.arange(0, TALL)
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    sums = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for start in range(0, K, DEEP):
        depth = start + tl.arange(0, DEEP)
        left = tl.load(a + rows[:, None] * K + depth[None, :])
        right = tl.load(b + depth[:, None] * N + columns[None, :])
        sums = tl.dot(left, right, sums)
    tl.store(c + rows[:, None] * N + columns[None, :], sums.to(tl.float16))


@triton.jit
def scaled(x, y, columns, WIDTH: tl.constexpr, UNROLL: tl.constexpr):
    for i in tl.static_range(UNROLL):
        at = (tl.program_id(0) * UNROLL + i) * WIDTH + tl.arange(0, WIDTH)
        tl.store(y + at, 2.0 * tl.load(x + at, mask=at < columns), mask=at < columns)


def half(*shape):
    return torch.empty(shape, dtype=torch.float16)


def call(function, grid=None, **arguments):
    return Call(function.__name__, "", Problem(), arguments, DEVICE, grid, function=function)


def product_call(**constants):
    tensors = {"a": half(M, K), "b": half(K, N), "c": half(M, N)}
    grid = lambda meta: (triton.cdiv(M, meta["TALL"]), triton.cdiv(N, meta["WIDE"]))  # noqa: E731
    return call(product, grid, **tensors, M=M, N=N, K=K, **constants)


def prior_of(kernel_call, configs):
    runs = KernelRuns([kernel_call.problem] * len(configs), configs, [{}] * len(configs))
    return PriorFactory(kernel_call.kernel, "", DEVICE, Options()).make_prior(kernel_call, runs)


def test_shape_law_finds_the_parameters_that_multiply_a_product():
    configs = [
        Configuration(TALL=t, WIDE=w, DEEP=32, num_warps=4) for t in (32, 64) for w in (64, 128)
    ]
    law = shape_law(product_call(), configs)
    assert law.shapes.products == (TileShape(32, 64, 32),)
    assert law.controlling(0) == ["TALL", "WIDE", None]
    launches = tile_launches(product_call(), configs, law)
    assert [(t.tile_m, t.tile_n, t.tile_k) for t in launches] == [
        (32, 64, 32),
        (32, 128, 32),
        (64, 64, 32),
        (64, 128, 32),
    ]
    assert [t.tiles for t in launches] == [32 * 8, 32 * 4, 16 * 8, 16 * 4]


def test_prior_of_a_fixed_tile_orders_warps_and_stages():
    kernel_call = product_call(TALL=128, WIDE=128, DEEP=64)
    configs = [Configuration(num_warps=w, num_stages=s) for w in (1, 4, 8) for s in (2, 3, 8)]
    prior = prior_of(kernel_call, configs)
    best = configs[int(np.argmin(prior.log_mean))]
    assert best["num_warps"] > 1
    assert prior.p_valid[[c["num_stages"] == 8 for c in configs]].max() < 0.1  # no shared memory


def test_tile_launches_code_without_a_product_overrides_names():
    @triton.jit
    def sums(x, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
        at = tl.arange(0, BLOCK_M)[:, None] * N + tl.arange(0, BLOCK_N)[None, :]
        tl.store(y + at, tl.load(x + at) + BLOCK_K)

    grid = lambda m: (triton.cdiv(M, m["BLOCK_M"]), triton.cdiv(N, m["BLOCK_N"]))  # noqa: E731
    kernel_call = call(sums, grid, x=half(M, N), y=half(M, N), M=M, N=N, K=K)
    configs = [Configuration(BLOCK_M=64, BLOCK_N=64, BLOCK_K=k) for k in (16, 32)]
    assert tile_launches(kernel_call, configs) is not None  # by names alone
    assert tile_launches(kernel_call, configs, shape_law(kernel_call, configs)) is None


def test_row_order_prefers_sixteen_elements_per_thread():
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096)
    configs = [
        Configuration(WIDTH=w, UNROLL=2, num_warps=n) for w in (256, 2048) for n in (1, 4, 16)
    ]
    law = shape_law(kernel_call, configs)
    runs = KernelRuns([Problem()] * 6, configs, [{}] * 6)
    elements = [c["WIDTH"] / (32 * c["num_warps"]) for c in configs]
    rule = row_launches(runs, law).log_slowdowns()
    assert (
        np.argsort(rule, kind="stable").tolist()
        == np.argsort([abs(np.log2(e / 16)) for e in elements], kind="stable").tolist()
    )
    assert rule.argmin() == 4  # 2048 elements of 4 warps


def test_row_order_equal_rows_are_ties():
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096, WIDTH=1024, UNROLL=1)
    configs = [Configuration(num_warps=4, maxnreg=n) for n in (64, 128, 255)]
    assert np.ptp(prior_of(kernel_call, configs).log_mean) == 0


@pytest.mark.parametrize("arguments", [{}, {"x": object(), "y": 1, "columns": 1}])
def test_prior_without_code_is_none(arguments):
    configs = [Configuration(WIDTH=w, UNROLL=1) for w in (128, 256)]
    kernel_call = call(scaled, **arguments)
    assert shape_law(kernel_call, configs) is None
    assert prior_of(kernel_call, configs) is None


class Broken:
    """A tensor of a library whose code fails."""

    dtype = torch.float16

    def data_ptr(self):
        return 0

    @property
    def shape(self):
        raise RuntimeError("the storage is gone")


def test_shape_law_warns_of_an_error_that_no_launch_would_show():
    configs = [Configuration(WIDTH=w, UNROLL=1) for w in (128, 256)]
    kernel_call = call(scaled, x=Broken(), y=half(4096), columns=4096)
    with pytest.warns(ForetuneWarning, match="the code of scaled was not read .*storage is gone"):
        law = shape_law(kernel_call, configs)
    assert law is None


@pytest.mark.parametrize("broken", [{"WIDTH": 100}, {"num_warps": 3}])
def test_shape_law_first_entry_does_not_compile_and_the_second_tells(broken):
    """Neither value is a power of 2; pytest makes warnings errors."""
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096)
    plain = {"WIDTH": 128, "UNROLL": 1, "num_warps": 4}
    configs = [Configuration({**plain, **change}) for change in (broken, {}, {"WIDTH": 256})]
    law = shape_law(kernel_call, configs)
    assert law.base == configs[1]
    assert law.exponents == {"WIDTH": (1.0,)}


def test_shape_law_no_entry_compiles_is_none_in_silence():
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096)
    configs = [Configuration(WIDTH=w, UNROLL=1) for w in (100, 200)]
    assert shape_law(kernel_call, configs) is None


def test_shape_law_skips_a_value_that_does_not_compile():
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096)
    configs = [Configuration(WIDTH=w, UNROLL=1) for w in (128, 100, 256)]  # 100 is no power of 2
    assert shape_law(kernel_call, configs).exponents == {"WIDTH": (1.0,)}


def test_shape_law_skips_a_parameter_that_some_configurations_lack():
    kernel_call = call(scaled, x=half(4096), y=half(4096), columns=4096)
    configs = [Configuration(WIDTH=128, UNROLL=1, maxnreg=64), Configuration(WIDTH=256, UNROLL=1)]
    assert shape_law(kernel_call, configs).exponents == {"WIDTH": (1.0,)}


@pytest.mark.parametrize(
    ("code", "shapes"),
    [
        (
            "tt.dot %a, %b, %c : tensor<64x32xf16> * tensor<32x128xf16> -> tensor<64x128xf32>",
            BlockShapes((TileShape(64, 128, 32),), elements=64 * 128),
        ),
        (
            "tt.dot %a, %b, %c : tensor<2x64x32xf16> * tensor<2x32x16xf16> -> tensor<2x64x16xf32>",
            BlockShapes((TileShape(64, 16, 32),), elements=2 * 64 * 32),
        ),
        ("arith.addi %a, %b : i32", BlockShapes((), elements=1)),
    ],
    ids=["product", "batched product", "scalars"],
)
def test_block_shapes_are_read_from_code(code, shapes):
    assert BlockShapes.from_code(code) == shapes
