"""What `smoke.py` runs: kernels, and lists of configurations for the decorator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
import triton_attention
import triton_attention_tma
import triton_gemm_tma
import triton_grouped_gemm
import triton_norm
import triton_softmax
from gpu_cases import _attention_arguments, _gemm_arguments, _norm_arguments, _softmax_arguments
from smoke_rows import REAL
from triton.tools.tensor_descriptor import TensorDescriptor

import foretune
from foretune.collect.kernels import triton_gemm, triton_quantized_gemm
from foretune.collect.kernels.triton_kernel import TritonKernel

GEMM = triton_gemm.TritonGemm()
QUANTIZED = triton_quantized_gemm.TritonQuantizedGemm()
TMA = triton_gemm_tma.TritonGemmTma()
GROUPED = triton_grouped_gemm.TritonGroupedGemm()
ATTENTION = triton_attention.TritonAttention()
ATTENTION_TMA = triton_attention_tma.TritonAttentionTma()
SOFTMAX = triton_softmax.TritonSoftmax()
NORM = triton_norm.TritonNorm()

SQUARE = {"M": 2048, "N": 2048, "K": 2048}
ODD = {"M": 1000, "N": 1500, "K": 700}
HEADS = {"batch": 1, "seq_len": 2048, "heads": 8, "kv_heads": 2, "head_dim": 128, "dtype": "bf16"}
SHORT = {"seq_len": 1000, "heads": 8, "head_dim": 64, "dtype": "fp16", "mask": "none"}
EXPERTS = {"tokens": 512, "experts": 16, "top_k": 2, "N": 1024, "K": 1024}
WEIGHTS = {"M": 64, "N": 4096, "K": 4096}
WIDE = {"R": 4096, "C": 4096, "dtype": "fp16"}

KERNELS: list[tuple[TritonKernel, dict[str, Any], dict[str, Any]]] = [
    *((GEMM, {**SQUARE, "dtype": dtype}, {}) for dtype in ("fp16", "bf16", "fp8", "int8")),
    *((GEMM, {**ODD, "dtype": dtype, "layout": "nn"}, {}) for dtype in ("fp16", "int8")),
    (GEMM, {**SQUARE, "dtype": "bf16", "layout": "tn"}, {"PERSISTENT": True}),
    (GEMM, {"M": 64, "N": 1024, "K": 8192, "dtype": "fp16"}, {"SPLIT_K": 4}),
    (QUANTIZED, {**WEIGHTS, "bits": 4, "dtype": "fp16"}, {}),
    (QUANTIZED, {**WEIGHTS, "bits": 8, "dtype": "bf16", "zeros": "group"}, {"ORDER": "k"}),
    (QUANTIZED, {"M": 19, "N": 830, "K": 3000, "group": 32, "zeros": "group"}, {"SPLIT_K": 4}),
    *((TMA, {**SQUARE, "dtype": dtype}, {}) for dtype in ("fp16", "bf16", "fp8")),
    (TMA, {"M": 1000, "N": 1504, "K": 720, "dtype": "fp16"}, {}),
    (TMA, {**SQUARE, "dtype": "fp16"}, {"PERSISTENT": True}),
    (GROUPED, {**EXPERTS, "dtype": "bf16"}, {}),
    (GROUPED, {**EXPERTS, "dtype": "fp16", "skew": 1.0}, {"PERSISTENT": True}),
    (GROUPED, {**EXPERTS, "dtype": "fp8", "skew": 1.0}, {}),
    *((k, p, {}) for k in (ATTENTION, ATTENTION_TMA) for p in (HEADS, SHORT)),
    (SOFTMAX, WIDE, {}),
    (SOFTMAX, {"R": 1000, "C": 5000, "dtype": "bf16"}, {}),
    (SOFTMAX, {"R": 64, "C": 131072, "dtype": "fp32"}, {}),
    (NORM, {**WIDE, "norm": "rms"}, {}),
    (NORM, {"R": 1000, "C": 5000, "dtype": "bf16", "norm": "layer"}, {}),
    (NORM, {"R": 64, "C": 131072, "dtype": "fp32", "norm": "layer"}, {}),
]
"""Kernels, problems, and what differs from the default configuration."""


@triton.jit
def gelu_add(x, y, out, n, BLOCK: tl.constexpr):
    """Store ``gelu(x) + y``, with the approximation by tanh."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    inner = 1.5957691216057308 * (v + 0.044715 * v * v * v)
    tl.store(out + i, v / (1.0 + tl.exp(-inner)) + tl.load(y + i, mask=i < n), mask=i < n)


@dataclass(frozen=True)
class Call:
    """A call of a kernel, its output, and the expected result.

    Attributes:
        args: Positional arguments.
        named: Keyword arguments.
        grid: Grid of the launch.
        output: Tensor that the kernel writes.
        right: Expected result; None if nothing runs.
        limit: Allowed relative error.
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    grid: Any
    output: torch.Tensor
    right: torch.Tensor | None
    limit: float

    def launch(self, tuner: Any) -> None:
        """Call the decorated kernel."""
        tuner[self.grid](*self.args, **self.named)

    def spoil(self) -> None:
        """Overwrite the output, so that nothing old can pass."""
        self.output.fill_(3.0)

    def error(self) -> float:
        """Return the relative error; zero where nothing runs."""
        if self.right is None:
            return 0.0
        torch.cuda.synchronize()
        return GEMM.relative_error(self.output, self.right)


@dataclass(frozen=True)
class Case:
    """A kernel to tune.

    Attributes:
        function: the plain ``@triton.jit`` function.
        configs: what autotuners choose from.
        key: names of the arguments that make a problem.
        make: makes a call.
        heuristics: constants that follow from the others, or None.
    """

    function: Any
    configs: list[triton.Config]
    key: list[str]
    make: Callable[[], Call]
    heuristics: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None

    def decorated(self, autotune: Callable[..., Any], **options: Any) -> Any:
        """Return the kernel under an autotuner, as if it had never been called."""
        fn = triton.jit(self.function.fn)
        if self.heuristics:
            fn = triton.heuristics(self.heuristics)(fn)
        return autotune(self.configs, self.key, **options)(fn)

    def tuned(self, **options: Any) -> tuple[Call, Any, list[triton.Config]]:
        """Return a call, the decorated kernel, and a list that collects measured configurations."""
        call = self.make()
        tuner = self.decorated(foretune.autotune, **options)
        measured = list[triton.Config]()
        bench = tuner._bench

        def noted(*args: Any, config: triton.Config, **named: Any) -> Any:
            measured.append(config)
            return bench(*args, config=config, **named)

        tuner._bench = noted
        return call, tuner, measured


def _of_kernel(kernel: TritonKernel, values: dict[str, Any], arguments: Any, out: int) -> Call:
    problem = kernel.problem(values)
    inputs = kernel.make_inputs(problem) if REAL else kernel.inputs_without_data(problem)
    args, named, grid = arguments(problem, inputs)
    right = kernel.reference(inputs) if REAL else None
    limit = kernel.error_limit(problem, kernel.default(problem))
    return Call(args, named, grid, args[out], right, limit)


ELEMENTS = 5_000_000


def _elementwise() -> Call:
    x, y = torch.randn(2, ELEMENTS, device="cuda" if REAL else "meta")
    out = torch.empty_like(x)
    right = None
    if REAL:
        right = torch.nn.functional.gelu(x.double(), approximate="tanh") + y.double()

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(ELEMENTS, meta["BLOCK"]),)

    return Call((x, y, out, ELEMENTS), {}, grid, out, right, 1e-5)


def _tma() -> Call:
    """Return a call with descriptors whose block shapes are set by the configurations' hook."""
    n = 2048
    a, b = torch.randn(2, n, n, device="cuda" if REAL else "meta").half()
    c = torch.empty_like(a)
    described = [TensorDescriptor.from_tensor(t, [1, 1]) for t in (a, b, c)]

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    right = a.float() @ b.float().t() if REAL else None
    limit = TMA.error_limit(TMA.problem(SQUARE), foretune.Configuration())
    return Call((*described, n, n, n), {}, grid, c, right, limit)


def set_blocks(arguments: dict[str, Any]) -> None:
    """Set the block shapes of the descriptors."""
    m, n, k = (arguments[f"BLOCK_{axis}"] for axis in "MNK")
    for name, block in (("a", [m, k]), ("b", [n, k]), ("c", [m, n])):
        arguments[name].block_shape = block


def _config(warps: int, stages: int, hook: Any = None, **values: Any) -> triton.Config:
    return triton.Config(values, num_warps=warps, num_stages=stages, pre_hook=hook)


_TILES = [
    (128, 128, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (64, 128, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (128, 256, 64, 8, 3),
    (64, 64, 64, 4, 4),
    (64, 256, 32, 4, 4),
    (32, 64, 64, 2, 3),
]
_KEYS = [
    (128, 64, 8, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 3),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (128, 32, 4, 3),
    (64, 128, 4, 2),
]
_ROWS = [(1, 1, 4), (1, 1, 8), (1, 1, 16), (2, 1, 8), (4, 1, 8), (4, 1, 16), (1, 2, 8), (2, 2, 8)]
_BLOCKS = [(256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16)]

_BLOCK_OF_ROW = {"BLOCK": lambda args: triton.next_power_of_2(args["columns"])}
_LIST_OF_ROWS = [_config(w, s, ROWS=r, STAGES=s) for r, s, w in _ROWS]

CASES = {
    "gemm": Case(
        triton_gemm._gemm,
        [
            _config(w, s, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, SPLIT_K=1, PERSISTENT=False)
            for m, n, k, w, s in _TILES
        ],
        ["M", "N", "K"],
        partial(_of_kernel, GEMM, {"M": 4096, "N": 4096, "K": 2048}, _gemm_arguments, 2),
        {"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0},
    ),
    "attention": Case(
        triton_attention._attention,
        [_config(w, s, BLOCK_M=m, BLOCK_N=n) for m, n, w, s in _KEYS],
        ["heads", "length"],
        partial(_of_kernel, ATTENTION, HEADS, _attention_arguments, 3),
    ),
    "softmax": Case(
        triton_softmax._whole_rows,
        _LIST_OF_ROWS,
        ["rows", "columns"],
        partial(_of_kernel, SOFTMAX, WIDE, _softmax_arguments, 1),
        _BLOCK_OF_ROW,
    ),
    "norm": Case(
        triton_norm._whole_rows,
        _LIST_OF_ROWS,
        ["rows", "columns"],
        partial(_of_kernel, NORM, WIDE, _norm_arguments, 3),
        _BLOCK_OF_ROW,
    ),
    "elementwise": Case(
        gelu_add,
        [_config(w, 3, BLOCK=b) for b, w in _BLOCKS],
        ["n"],
        _elementwise,
    ),
}
TMA_CASE = Case(
    triton_gemm_tma._gemm_tma,
    [
        _config(w, s, set_blocks, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, WARP_SPECIALIZE=False)
        for m, n, k, w, s in _TILES
        if m >= 64
    ],
    ["M", "N", "K"],
    _tma,
)


QUICK = {"do_bench": partial(triton.testing.do_bench, warmup=5, rep=20)} if REAL else {}
"""Lets stock Triton measure in a fifth of its time."""
