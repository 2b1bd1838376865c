"""Kernels with lists of configurations and problems, for comparing autotuners on a GPU.

The kernels are Foretune's GEMM and those in examples/kernels. They are launched the way users
launch Triton kernels, so that any autotuner can be put on top of them.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "kernels"))

import triton_attention
import triton_norm
import triton_softmax

from foretune.collect.kernels import triton_gemm
from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.kernel import Inputs, Launch
from foretune.problem import Problem

LAUNCH = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Case:
    """A kernel to tune.

    Attributes:
        kernel: makes inputs, knows the library call and the work.
        function: the plain ``@triton.jit`` function.
        configs: what autotuners choose from.
        key: names of the arguments that make a problem.
        heuristics: constants that follow from the others, or None.
        tuned: problems that are tuned first, one after the other.
        unseen: problems that come after.
        arguments: from problem and inputs to positional arguments, others by name, and the grid.
    """

    kernel: TritonKernel
    function: Any
    configs: list[triton.Config]
    key: list[str]
    heuristics: Mapping[str, Callable[[dict[str, Any]], Any]] | None
    tuned: list[Problem]
    unseen: list[Problem]
    arguments: Callable[[Problem, Inputs], tuple[tuple[Any, ...], dict[str, Any], Any]]

    def decorated(self, autotune: Callable[..., Any], **options: Any) -> Any:
        """Return the kernel under an autotuner, without programs that another one compiled."""
        fn = triton.jit(self.function.fn)
        if self.heuristics:
            fn = triton.heuristics(self.heuristics)(fn)
        return autotune(self.configs, self.key, **options)(fn)

    def inputs(self, problem: Problem) -> Inputs:
        """Return inputs of a problem; without a GPU, shapes without data."""
        kernel = self.kernel
        on_gpu = torch.cuda.is_available()
        return kernel.make_inputs(problem) if on_gpu else kernel.inputs_without_data(problem)

    def launch(self, tuner: Any, problem: Problem, inputs: Inputs) -> Launch:
        """Return a call of the decorated kernel."""
        args, named, grid = self.arguments(problem, inputs)
        return lambda: tuner[grid](*args, **named)


def cases(configs: int, seed: int = 0) -> dict[str, Case]:
    """Return the cases, each with at most ``configs`` configurations from its kernel's space."""
    gemm = triton_gemm.TritonGemm()
    attention = triton_attention.TritonAttention()
    softmax = triton_softmax.TritonSoftmax()
    norm = triton_norm.TritonNorm()
    sizes = [
        (4096, 4096, 4096),
        (16, 4096, 4096),
        (1024, 5120, 5120),
        (8192, 1024, 8192),
        (2048, 11008, 4096),
        (512, 512, 2048),
        (128, 14336, 4096),
        (3000, 3000, 3000),
        (64, 8192, 8192),
        (4096, 28672, 4096),
    ]
    products = [gemm.problem(M=m, N=n, K=k, dtype="fp16") for m, n, k in sizes]
    lengths = [
        (4, 1024, 32),
        (1, 8192, 32),
        (16, 512, 16),
        (1, 2048, 64),
        (2, 4096, 32),
        (8, 1024, 16),
        (1, 16384, 16),
        (32, 256, 32),
        (4, 3000, 32),
        (1, 4096, 8),
    ]
    prompts = [
        attention.problem(batch=b, seq_len=s, heads=h, head_dim=128, dtype="bf16")
        for b, s, h in lengths
    ]
    shapes = [
        (4096, 1024),
        (512, 8192),
        (16384, 4096),
        (128, 16384),
        (32768, 512),
        (2048, 5000),
        (8192, 2048),
        (1000, 10000),
        (65536, 1024),
        (4096, 16000),
    ]
    rows = [{"R": r, "C": c} for r, c in shapes]
    return {
        "gemm": _case(
            gemm,
            triton_gemm._gemm,
            products,
            configs,
            seed,
            _gemm_arguments,
            ["M", "N", "K"],
            _GEMM,
            SPLIT_K=1,
            PERSISTENT=False,
        ),
        "attention": _case(
            attention,
            triton_attention._attention,
            prompts,
            configs,
            seed,
            _attention_arguments,
            ["heads", "length"],
            None,
        ),
        "softmax": _rows(softmax, triton_softmax._whole_rows, rows, configs, _softmax_arguments),
        "norm": _rows(norm, triton_norm._whole_rows, rows, configs, _norm_arguments),
    }


_GEMM = {"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0}
_ROWS = {"BLOCK": lambda args: triton.next_power_of_2(args["columns"])}


def _case(
    kernel: TritonKernel,
    function: Any,
    problems: list[Problem],
    configs: int,
    seed: int,
    arguments: Callable[[Problem, Inputs], Any],
    key: list[str],
    heuristics: Any,
    **fixed: Any,
) -> Case:
    """Return a case whose configurations are drawn from the space of the first, a large problem."""
    space = kernel.space(problems[0])
    columns = space.columns()
    keep = np.ones(len(space), dtype=bool)
    for name, value in fixed.items():
        keep &= columns[name] == value
    legal = [space[int(i)] for i in np.flatnonzero(keep)]
    ordered = sorted(legal, key=lambda c: c.id)
    some = np.random.default_rng(seed).permutation(len(ordered))[:configs]
    half = len(problems) // 2
    return Case(
        kernel,
        function,
        [_config(dict(ordered[i])) for i in some],
        key,
        heuristics,
        problems[:half],
        problems[half:],
        arguments,
    )


def _config(values: dict[str, Any]) -> triton.Config:
    launch = {name: int(values.pop(name)) for name in LAUNCH}
    return triton.Config(values, **launch)


def _rows(
    kernel: TritonKernel,
    function: Any,
    shapes: list[dict[str, int]],
    configs: int,
    arguments: Callable[[Problem, Inputs], Any],
) -> Case:
    """Return a case of a kernel that keeps whole rows in registers."""
    listed = [
        triton.Config({"ROWS": r, "STAGES": s}, num_warps=w, num_stages=s)
        for r in (1, 2, 4, 8)
        for w in (2, 4, 8, 16)
        for s in (1, 2, 4)
    ]
    problems = [kernel.problem(shape) for shape in shapes]
    half = len(problems) // 2
    return Case(
        kernel,
        function,
        listed[:configs],
        ["rows", "columns"],
        _ROWS,
        problems[:half],
        problems[half:],
        arguments,
    )


def _gemm_arguments(problem: Problem, inputs: Inputs) -> tuple[Any, ...]:
    a = inputs["a"]
    b = inputs["b"]
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), 1

    return (a, b, c, m, n, k, *a.stride(), *b.stride()), {"SUM": tl.float32}, grid


def _attention_arguments(problem: Problem, inputs: Inputs) -> tuple[Any, ...]:
    q = inputs["q"]
    k = inputs["k"]
    v = inputs["v"]
    o = torch.empty_like(q)
    batch, heads, length, dim = q.shape
    strides = [step for tensor in (q, k, v, o) for step in tensor.stride()[:3]]
    scale = math.log2(math.e) / math.sqrt(dim)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(length, meta["BLOCK_M"]), batch * heads

    args = (q, k, v, o, scale, heads, heads // k.shape[1], length, *strides)
    return args, {"D": dim, "CAUSAL": inputs["causal"]}, grid


def _softmax_arguments(problem: Problem, inputs: Inputs) -> tuple[Any, ...]:
    x = inputs["x"]
    return (x, torch.empty_like(x), *x.shape), {}, _row_grid(x)


def _norm_arguments(problem: Problem, inputs: Inputs) -> tuple[Any, ...]:
    x = inputs["x"]
    weight = inputs["weight"]
    args = (x, weight, weight, torch.empty_like(x), *x.shape, triton_norm.EPSILON)
    return args, {"CENTER": False}, _row_grid(x)


def _row_grid(x: torch.Tensor) -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(len(x), meta["ROWS"]),)
