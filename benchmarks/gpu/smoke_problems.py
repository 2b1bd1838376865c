"""Kernels and problems that `smoke.py` runs: every kernel, number format and special mode."""

from dataclasses import dataclass, field
from typing import Any

import triton_attention
import triton_attention_tma
import triton_gemm_tma
import triton_grouped_gemm
import triton_norm
import triton_softmax

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
FEW_ROWS = {"M": 64, "N": 1024, "K": 8192}
ODD_DESCRIPTORS = {"M": 1000, "N": 1504, "K": 720}
"""Odd sizes whose rows are multiples of 16 bytes, as descriptors need."""
WEIGHTS = {"M": 64, "N": 4096, "K": 4096}
ODD_WEIGHTS = {"M": 19, "N": 830, "K": 3000}
EXPERTS = {"tokens": 512, "experts": 16, "top_k": 2, "N": 1024, "K": 1024}
HEADS = {"batch": 1, "seq_len": 2048, "heads": 8, "kv_heads": 2, "head_dim": 128, "dtype": "bf16"}
SHORT = {"seq_len": 1000, "heads": 8, "head_dim": 64, "dtype": "fp16", "mask": "none"}
WIDE = {"R": 4096, "C": 4096, "dtype": "fp16"}
ODD_ROWS = {"R": 1000, "C": 5000, "dtype": "bf16"}
LONG_ROWS = {"R": 64, "C": 131072, "dtype": "fp32"}


@dataclass(frozen=True)
class KernelRun:
    """A kernel and a problem; ``changed`` is what differs from the default configuration."""

    kernel: TritonKernel
    problem: dict[str, Any]
    changed: dict[str, Any] = field(default_factory=dict)


KERNELS = [
    KernelRun(GEMM, {**SQUARE, "dtype": "fp16"}),
    KernelRun(GEMM, {**SQUARE, "dtype": "bf16"}),
    KernelRun(GEMM, {**SQUARE, "dtype": "fp8"}),
    KernelRun(GEMM, {**SQUARE, "dtype": "int8"}),
    KernelRun(GEMM, {**ODD, "dtype": "fp16", "layout": "nn"}),
    KernelRun(GEMM, {**ODD, "dtype": "int8", "layout": "nn"}),
    KernelRun(GEMM, {**SQUARE, "dtype": "bf16", "layout": "tn"}, {"PERSISTENT": True}),
    KernelRun(GEMM, {**FEW_ROWS, "dtype": "fp16"}, {"SPLIT_K": 4}),
    KernelRun(QUANTIZED, {**WEIGHTS, "bits": 4, "dtype": "fp16"}),
    KernelRun(QUANTIZED, {**WEIGHTS, "bits": 8, "dtype": "bf16", "zeros": "group"}, {"ORDER": "k"}),
    KernelRun(QUANTIZED, {**ODD_WEIGHTS, "group": 32, "zeros": "group"}, {"SPLIT_K": 4}),
    KernelRun(TMA, {**SQUARE, "dtype": "fp16"}),
    KernelRun(TMA, {**SQUARE, "dtype": "bf16"}),
    KernelRun(TMA, {**SQUARE, "dtype": "fp8"}),
    KernelRun(TMA, {**ODD_DESCRIPTORS, "dtype": "fp16"}),
    KernelRun(TMA, {**SQUARE, "dtype": "fp16"}, {"PERSISTENT": True}),
    KernelRun(GROUPED, {**EXPERTS, "dtype": "bf16"}),
    KernelRun(GROUPED, {**EXPERTS, "dtype": "fp16", "skew": 1.0}, {"PERSISTENT": True}),
    KernelRun(GROUPED, {**EXPERTS, "dtype": "fp8", "skew": 1.0}),
    KernelRun(ATTENTION, HEADS),
    KernelRun(ATTENTION, SHORT),
    KernelRun(ATTENTION_TMA, HEADS),
    KernelRun(ATTENTION_TMA, SHORT),
    KernelRun(SOFTMAX, WIDE),
    KernelRun(SOFTMAX, ODD_ROWS),
    KernelRun(SOFTMAX, LONG_ROWS),
    KernelRun(NORM, {**WIDE, "norm": "rms"}),
    KernelRun(NORM, {**ODD_ROWS, "norm": "layer"}),
    KernelRun(NORM, {**LONG_ROWS, "norm": "layer"}),
]
