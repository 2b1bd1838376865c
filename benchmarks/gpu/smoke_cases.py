"""Kernels with lists of configurations that `smoke.py` tunes with the decorator."""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
import triton_attention
import triton_gemm_tma
import triton_norm
import triton_softmax
from gpu_cases import _attention_arguments, _gemm_arguments, _norm_arguments, _softmax_arguments
from smoke_calls import Call, Case
from smoke_problems import ATTENTION, GEMM, HEADS, NORM, SOFTMAX, SQUARE, TMA, WIDE
from smoke_rows import REAL
from triton.tools.tensor_descriptor import TensorDescriptor

import foretune
from foretune.collect.kernels import triton_gemm
from foretune.collect.kernels.triton_kernel import TritonKernel

DEVICE = "cuda" if REAL else "meta"
QUICK = {"do_bench": partial(triton.testing.do_bench, warmup=5, rep=20)} if REAL else {}
"""Lets stock Triton measure in a fifth of its time."""
LARGE_SQUARE = {"M": 4096, "N": 4096, "K": 2048}
ELEMENTS = 5_000_000
ELEMENTWISE_LIMIT = 1e-5
"""Allowed relative error of `gelu_add`, in single precision."""
ELEMENTWISE_STAGES = 3
MIN_DESCRIPTOR_ROWS = 64
"""Rows of the smallest tile that the kernel with descriptors takes."""

# Lists of configurations, as (tile …, num_warps, num_stages).
TILES = [
    (128, 128, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (64, 128, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (128, 256, 64, 8, 3),
    (64, 64, 64, 4, 4),
    (64, 256, 32, 4, 4),
    (32, 64, 64, 2, 3),
]
"""BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages."""
ATTENTION_TILES = [
    (128, 64, 8, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 3),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (128, 32, 4, 3),
    (64, 128, 4, 2),
]
"""BLOCK_M, BLOCK_N, num_warps, num_stages."""
ROWS = [(1, 1, 4), (1, 1, 8), (1, 1, 16), (2, 1, 8), (4, 1, 8), (4, 1, 16), (1, 2, 8), (2, 2, 8)]
"""ROWS, num_stages, num_warps."""
BLOCKS = [(256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16)]
"""BLOCK, num_warps."""


@triton.jit
def gelu_add(x, y, out, n, BLOCK: tl.constexpr):
    """Store ``gelu(x) + y``, with the approximation by tanh."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    inner = 1.5957691216057308 * (v + 0.044715 * v * v * v)
    tl.store(out + i, v / (1.0 + tl.exp(-inner)) + tl.load(y + i, mask=i < n), mask=i < n)


def call_of_kernel(
    kernel: TritonKernel, sizes: dict[str, Any], arguments: Any, output: int
) -> Call:
    """Return a call of one of Foretune's kernels.

    ``arguments`` makes arguments and grid of problem and inputs; ``output`` is the position of the
    output among them.
    """
    problem = kernel.problem(sizes)
    inputs = kernel.make_inputs(problem) if REAL else kernel.inputs_without_data(problem)
    args, named, grid = arguments(problem, inputs)
    return Call(
        args=args,
        named=named,
        grid=grid,
        output=args[output],
        expected=kernel.reference(inputs) if REAL else None,
        limit=kernel.error_limit(problem, kernel.default(problem)),
    )


def elementwise_call() -> Call:
    """Return a call of `gelu_add`."""
    x, y = torch.randn(2, ELEMENTS, device=DEVICE)
    output = torch.empty_like(x)
    expected = None
    if REAL:
        expected = torch.nn.functional.gelu(x.double(), approximate="tanh") + y.double()

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(ELEMENTS, meta["BLOCK"]),)

    return Call(
        args=(x, y, output, ELEMENTS),
        named={},
        grid=grid,
        output=output,
        expected=expected,
        limit=ELEMENTWISE_LIMIT,
    )


def tma_call() -> Call:
    """Return a call with descriptors whose block shapes are set by the configurations' hook."""
    n = SQUARE["M"]
    a, b = torch.randn(2, n, n, device=DEVICE).half()
    c = torch.empty_like(a)
    descriptors = [TensorDescriptor.from_tensor(tensor, [1, 1]) for tensor in (a, b, c)]

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return Call(
        args=(*descriptors, n, n, n),
        named={},
        grid=grid,
        output=c,
        expected=a.float() @ b.float().t() if REAL else None,
        limit=TMA.error_limit(TMA.problem(SQUARE), foretune.Configuration()),
    )


def set_blocks(arguments: dict[str, Any]) -> None:
    """Set the block shapes of the descriptors."""
    m = arguments["BLOCK_M"]
    n = arguments["BLOCK_N"]
    k = arguments["BLOCK_K"]
    arguments["a"].block_shape = [m, k]
    arguments["b"].block_shape = [n, k]
    arguments["c"].block_shape = [m, n]


def gemm_configs() -> list[triton.Config]:
    """Return the configurations of the GEMM."""
    fixed = {"GROUP_M": 8, "SPLIT_K": 1, "PERSISTENT": False}
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **fixed},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n, k, warps, stages in TILES
    ]


def tma_configs() -> list[triton.Config]:
    """Return the configurations of the GEMM with descriptors, whose hooks set their blocks."""
    fixed = {"GROUP_M": 8, "WARP_SPECIALIZE": False}
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **fixed},
            num_warps=warps,
            num_stages=stages,
            pre_hook=set_blocks,
        )
        for m, n, k, warps, stages in TILES
        if m >= MIN_DESCRIPTOR_ROWS
    ]


def attention_configs() -> list[triton.Config]:
    """Return the configurations of attention."""
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in ATTENTION_TILES
    ]


def row_configs() -> list[triton.Config]:
    """Return the configurations of softmax and norm."""
    return [
        triton.Config({"ROWS": rows, "STAGES": stages}, num_warps=warps, num_stages=stages)
        for rows, stages, warps in ROWS
    ]


def elementwise_configs() -> list[triton.Config]:
    """Return the configurations of `gelu_add`."""
    return [
        triton.Config({"BLOCK": block}, num_warps=warps, num_stages=3) for block, warps in BLOCKS
    ]


def is_even_k(arguments: dict[str, Any]) -> bool:
    """Return whether blocks divide the inner dimension."""
    return arguments["K"] % arguments["BLOCK_K"] == 0


def block_of_row(arguments: dict[str, Any]) -> int:
    """Return the block that holds a whole row."""
    return triton.next_power_of_2(arguments["columns"])


CASES = {
    "gemm": Case(
        function=triton_gemm._gemm,
        configs=gemm_configs(),
        key=["M", "N", "K"],
        make=partial(call_of_kernel, GEMM, LARGE_SQUARE, _gemm_arguments, output=2),
        heuristics={"EVEN_K": is_even_k},
    ),
    "attention": Case(
        function=triton_attention._attention,
        configs=attention_configs(),
        key=["heads", "length"],
        make=partial(call_of_kernel, ATTENTION, HEADS, _attention_arguments, output=3),
    ),
    "softmax": Case(
        function=triton_softmax._whole_rows,
        configs=row_configs(),
        key=["rows", "columns"],
        make=partial(call_of_kernel, SOFTMAX, WIDE, _softmax_arguments, output=1),
        heuristics={"BLOCK": block_of_row},
    ),
    "norm": Case(
        function=triton_norm._whole_rows,
        configs=row_configs(),
        key=["rows", "columns"],
        make=partial(call_of_kernel, NORM, WIDE, _norm_arguments, output=3),
        heuristics={"BLOCK": block_of_row},
    ),
    "elementwise": Case(
        function=gelu_add,
        configs=elementwise_configs(),
        key=["n"],
        make=elementwise_call,
    ),
}
TMA_CASE = Case(
    function=triton_gemm_tma._gemm_tma,
    configs=tma_configs(),
    key=["M", "N", "K"],
    make=tma_call,
)
