"""Recognizes serving engines' kernels, of which tunings are published, and reads their sizes.

A kernel is recognized by its function's name in SGLang, vLLM or LightLLM, and by the arguments and
tuned parameters that it has there. A copy under another name is not recognized.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.models.popular import shipped_tunings
from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call


@dataclass(frozen=True)
class _Kernel:
    """How a kernel of a family names its sizes: an integer, or ``tensor:axis``."""

    family: str
    m: str
    n: str
    weights: str
    experts: str = ""


_BLOCK_GEMM = _Kernel("block_gemm", "M", "N", "B")
KERNELS: Mapping[str, _Kernel] = {
    "_w8a8_block_fp8_matmul": _BLOCK_GEMM,
    "_w8a8_block_fp8_matmul_unrolledx4": _BLOCK_GEMM,
    "_w8a8_block_int8_matmul": _BLOCK_GEMM,
    "_w8a8_triton_block_scaled_mm": _BLOCK_GEMM,
    "fused_moe_kernel": _Kernel("fused_moe", "topk_weights_ptr:0", "N", "b_ptr", "b_ptr:0"),
    "grouped_matmul_kernel": _Kernel(
        "grouped_matmul", "token_ptr:0", "n", "weights_ptr", "weights_ptr:0"
    ),
    "_scaled_mm_per_token": _Kernel("scaled_mm", "M", "N", "B"),
    "_silu_and_mul_kernel_fast": _Kernel("silu_and_mul", "size_m", "size_n", "input_ptr"),
    "_rotary_kernel": _Kernel("rotary", "max_total_len", "HEAD_Q", "Q"),
}
"""By the function's name."""


def popular_log_shares(call: Call, configs: Sequence[Configuration]) -> np.ndarray | None:
    """Return the log of each candidate's share of published tunings; None for other kernels."""
    kernel = KERNELS.get(call.kernel)
    if kernel is None:
        return None
    weights: Any = call.arguments.get(kernel.weights)
    m, n = (_size(call.arguments, name) for name in (kernel.m, kernel.n))
    experts = _size(call.arguments, kernel.experts) if kernel.experts else 1
    if not (m and n and experts) or not hasattr(weights, "dtype"):
        return None
    if kernel.family == "fused_moe":  # tunings count the width of an expert: gate, up and down
        n = min(n // 2, weights.shape[2])
    tunings = shipped_tunings()[kernel.family]
    return tunings.log_shares(call.device, _dtype(weights), (m, n, experts), configs)


def _size(arguments: Mapping[str, Any], where: str) -> int:
    """Return a size; 0 if the call does not have it."""
    name, _, axis = where.partition(":")
    value: Any = arguments.get(name)
    if axis:
        value = value.shape[int(axis)] if len(getattr(value, "shape", ())) > int(axis) else 0
    return value if type(value) is int else 0


def _dtype(tensor: Any) -> str:
    """Return the type of weights as tunings name it: 16 for all of 16 bits."""
    name = str(tensor.dtype).removeprefix("torch.")
    return "fp8" if name.startswith("float8") else name if name in ("int8", "uint8") else "16"
