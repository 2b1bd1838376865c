"""Flash attention, forward, in Triton by tensor descriptors: a unit of the GPU copies tiles (TMA).

As `triton_attention`, for Hopper and newer: queries, keys and values come tile by tile into shared
memory, and what lies behind a sequence comes as zeros. With ``WARP_SPECIALIZE`` some warps only
load, in both walks: Triton 3.9 fails where only one of them is specialised, and does that on
Blackwell alone.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_attention import (
    TritonAttention,
    key_bounds,
    mask_scores,
    online_softmax_step,
)

from foretune.collect.kernels.triton_gemm import multiply_add
from foretune.collect.kernels.triton_kernel import JitLaunch
from foretune.kernel import Inputs
from foretune.problem import Problem
from foretune.space import Configuration


@triton.jit
def _walk_tma(
    total,
    sums,
    top,
    queries,
    k,
    v,
    shared,
    scale,
    rows,
    start,
    stop,
    keys,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Add the keys from ``start`` to ``stop`` to outputs, sums of weights and largest scores."""
    for first in tl.range(start, stop, BLOCK_N, warp_specialize=WARP_SPECIALIZE):
        key = k.load([shared, first, 0]).reshape(BLOCK_N, D)
        empty = tl.zeros((queries.shape[0], BLOCK_N), tl.float32)
        scores = multiply_add(queries, key.T, empty)
        if MASKED:
            scores = mask_scores(scores, first + tl.arange(0, BLOCK_N), rows, keys, CAUSAL)
        weights, total, sums, top = online_softmax_step(scores, scale, total, sums, top)
        value = v.load([shared, first, 0]).reshape(BLOCK_N, D)
        total = multiply_add(weights.to(value.dtype), value, total)
    return total, sums, top


@triton.jit
def _attention_tma(
    q,
    k,
    v,
    o,
    scale,
    heads,
    group,
    length,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Compute one tile of queries: tiles along axis 0, batches and heads along axis 1."""
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile
    one = tl.program_id(1)
    shared = one // heads * (heads // group) + one % heads // group
    first = tile * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    queries = q.load([one, first, 0]).reshape(BLOCK_M, D)
    seen_by_all, end = key_bounds(tile, length, BLOCK_M, BLOCK_N, CAUSAL)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total, sums, top = _walk_tma(
        total,
        sums,
        top,
        queries,
        k,
        v,
        shared,
        scale,
        rows,
        0,
        seen_by_all,
        length,
        D,
        BLOCK_N,
        False,
        CAUSAL,
        WARP_SPECIALIZE,
    )
    total, sums, top = _walk_tma(
        total,
        sums,
        top,
        queries,
        k,
        v,
        shared,
        scale,
        rows,
        seen_by_all,
        end,
        length,
        D,
        BLOCK_N,
        True,
        CAUSAL,
        WARP_SPECIALIZE,
    )
    result = (total / sums[:, None]).to(o.dtype)
    o.store([one, first, 0], result.reshape(1, BLOCK_M, D))


class TritonAttentionTma(TritonAttention):
    """Attention as `triton_attention` computes it, by tensor descriptors.

    Knobs: those of ``triton_attention``, and whether warps specialise (``WARP_SPECIALIZE``).
    """

    name = "triton_attention_tma"
    has_warp_specialization = True

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that computes O, and O."""
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        o = torch.empty_like(q)
        batch, heads, length, dim = q.shape
        m, n = int(config["BLOCK_M"]), int(config["BLOCK_N"])
        described = [
            TensorDescriptor.from_tensor(t.view(-1, length, dim), [1, block, dim])
            for t, block in ((q, m), (k, n), (v, n), (o, m))
        ]
        scale = math.log2(math.e) / math.sqrt(dim)
        arguments = (*described, scale, heads, heads // k.shape[1], length)
        options = {**config, "D": dim, "CAUSAL": inputs["causal"]}
        grid = triton.cdiv(length, m), batch * heads
        return [JitLaunch(_attention_tma, grid, arguments, options)], o
