"""Attention of `breadth.py`: forward, backward, decoding, and a sliding window.

Tensors have the shape (batch × heads, tokens, width) and 16 bits; the width is 128, or 64 in tests.

Weights are computed as powers of two, for which the GPU has an instruction: ``scale`` is
log2(e) / √width, and what the forward pass keeps of a query, ``top``, is a logarithm to base 2.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, Case, sizes_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

from triton_attention import TritonAttention, online_softmax_step

from foretune.collect.kernels.triton_gemm import multiply_add
from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import Value

LOG2E = math.log2(math.e)

# Tiles of lists: BLOCK_M queries and BLOCK_N keys.
TILES = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)}
USUAL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}

# Problems: the first two have less than a wave of programs.
SIZES = {"heads": "sequences times heads", "length": "tokens", "width": "of a head"}
PROMPTS = (
    {"heads": 8, "length": 512, "width": 128},
    {"heads": 2, "length": 2048, "width": 128},
    {"heads": 64, "length": 1024, "width": 128},
    {"heads": 32, "length": 2048, "width": 128},
    {"heads": 16, "length": 4096, "width": 128},
)
SMALL = {"heads": 2, "length": 128, "width": 64}


@triton.jit
def _queries_backward(
    q,
    k,
    v,
    d_out,
    top,
    delta,
    dq,
    length,
    scale,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum up the gradient of one tile of queries; ``top`` is log2 of the sum of weights."""
    # One tile of queries of one head. Offsets of heads may need 64 bits.
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * length
    d = tl.arange(0, D)
    m = first + tl.arange(0, BLOCK_M)
    mine = (m < length)[:, None]

    # What is known of these queries stays in registers.
    at = (head + m)[:, None] * D + d[None, :]
    queries = tl.load(q + at, mask=mine, other=0.0)
    gradient = tl.load(d_out + at, mask=mine, other=0.0)
    tops = tl.load(top + head + m, mask=m < length, other=0.0)
    deltas = tl.load(delta + head + m, mask=m < length, other=0.0)

    # Walk along the keys. A query sees none after itself.
    total = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, tl.minimum(first + BLOCK_M, length), BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        key_at = (head + n)[:, None] * D + d[None, :]
        keys = tl.load(k + key_at, mask=(n < length)[:, None], other=0.0)
        values = tl.load(v + key_at, mask=(n < length)[:, None], other=0.0)

        # The weights again: the forward pass did not keep them.
        zeros = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        scores = multiply_add(queries, tl.trans(keys), zeros)
        seen = (n[None, :] <= m[:, None]) & (n < length)[None, :]
        weights = tl.where(seen, tl.exp2(scores * scale - tops[:, None]), 0.0)

        # Backward through the softmax: `delta` is their mean, by weight.
        d_weights = multiply_add(gradient, tl.trans(values), zeros)
        d_scores = weights * (d_weights - deltas[:, None])
        total = multiply_add(d_scores.to(keys.dtype), keys, total)

    # `scale` has log2(e), of which the gradient knows nothing: ln(2) takes it out.
    result = total * (scale * 0.6931471805599453)
    tl.store(dq + at, result.to(dq.dtype.element_ty), mask=mine)


@triton.jit
def _keys_backward(
    q,
    k,
    v,
    d_out,
    top,
    delta,
    dk,
    dv,
    length,
    scale,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum up the gradients of one tile of keys and values over the queries that see it."""
    # One tile of keys of one head, which stays in registers.
    first = tl.program_id(0) * BLOCK_N
    head = tl.program_id(1).to(tl.int64) * length
    d = tl.arange(0, D)
    n = first + tl.arange(0, BLOCK_N)
    mine = (n < length)[:, None]
    at = (head + n)[:, None] * D + d[None, :]
    keys = tl.load(k + at, mask=mine, other=0.0)
    values = tl.load(v + at, mask=mine, other=0.0)

    # Walk along the queries, from the first tile that sees one of these keys.
    total_k = tl.zeros((BLOCK_N, D), tl.float32)
    total_v = tl.zeros((BLOCK_N, D), tl.float32)
    for start in range(first // BLOCK_M * BLOCK_M, length, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        query_at = (head + m)[:, None] * D + d[None, :]
        queries = tl.load(q + query_at, mask=(m < length)[:, None], other=0.0)
        gradient = tl.load(d_out + query_at, mask=(m < length)[:, None], other=0.0)
        tops = tl.load(top + head + m, mask=m < length, other=0.0)
        deltas = tl.load(delta + head + m, mask=m < length, other=0.0)

        # The weights again, transposed: a row per key, a column per query.
        zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        scores = multiply_add(keys, tl.trans(queries), zeros)
        seen = (n[:, None] <= m[None, :]) & (m < length)[None, :]
        weights = tl.where(seen, tl.exp2(scores * scale - tops[None, :]), 0.0)

        # Values get the gradient by weight; keys get it backward through the softmax.
        total_v = multiply_add(weights.to(gradient.dtype), gradient, total_v)
        d_weights = multiply_add(values, tl.trans(gradient), zeros)
        d_scores = weights * (d_weights - deltas[None, :])
        total_k = multiply_add(d_scores.to(queries.dtype), queries, total_k)

    # As above: ln(2) takes log2(e) out of `scale`.
    result = total_k * (scale * 0.6931471805599453)
    tl.store(dk + at, result.to(dk.dtype.element_ty), mask=mine)
    tl.store(dv + at, total_v.to(dv.dtype.element_ty), mask=mine)


@triton.jit
def _window(
    q,
    k,
    v,
    out,
    length,
    window,
    scale,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute one tile of queries, each of which sees the ``window`` tokens up to itself."""
    # One tile of queries of one head.
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * length
    d = tl.arange(0, D)
    m = first + tl.arange(0, BLOCK_M)
    at = (head + m)[:, None] * D + d[None, :]
    queries = tl.load(q + at, mask=(m < length)[:, None], other=0.0)

    # The state of the softmax over the keys so far.
    total = tl.zeros((BLOCK_M, D), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    # Not -inf: a tile may hide all its keys from a query, whose weights would be NaN.
    top = tl.full((BLOCK_M,), -1e30, tl.float32)

    # Walk along the keys, from the first tile that the first query sees.
    begin = tl.maximum(first - window + 1, 0) // BLOCK_N * BLOCK_N
    for start in range(begin, tl.minimum(first + BLOCK_M, length), BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        key_at = (head + n)[:, None] * D + d[None, :]
        keys = tl.load(k + key_at, mask=(n < length)[:, None], other=0.0)
        values = tl.load(v + key_at, mask=(n < length)[:, None], other=0.0)

        # Hide keys after the query, and those that have left its window.
        scores = multiply_add(queries, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        seen = (n[None, :] <= m[:, None]) & (n[None, :] > m[:, None] - window)
        scores = tl.where(seen & (n < length)[None, :], scores, float("-inf"))

        weights, total, sums, top = online_softmax_step(scores, scale, total, sums, top)
        total = multiply_add(weights.to(values.dtype), values, total)

    result = (total / sums[:, None]).to(out.dtype.element_ty)
    tl.store(out + at, result, mask=(m < length)[:, None])


@triton.jit
def _decode(
    q,
    k,
    v,
    parts,
    tops,
    totals,
    length,
    scale,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Let the new tokens of a group of heads see one part of their common keys."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    d = tl.arange(0, D)

    # All queries of the group at once: BLOCK_M is the least that a product of tiles needs.
    g = tl.arange(0, BLOCK_M)
    mine = g < GROUP
    query_at = (head * GROUP + g)[:, None] * D + d[None, :]
    queries = tl.load(q + query_at, mask=mine[:, None], other=0.0)

    # The state of the softmax over this part of the keys.
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    total = tl.zeros((BLOCK_M, D), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)

    # Walk along the part. The new tokens see all keys; the last part may be short.
    for start in range(split * share, tl.minimum(split * share + share, length), BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        key_at = (head * length + n)[:, None] * D + d[None, :]
        keys = tl.load(k + key_at, mask=(n < length)[:, None], other=0.0)
        values = tl.load(v + key_at, mask=(n < length)[:, None], other=0.0)

        scores = multiply_add(queries, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        scores = tl.where((n < length)[None, :], scores, float("-inf"))
        weights, total, sums, top = online_softmax_step(scores, scale, total, sums, top)
        total = multiply_add(weights.to(values.dtype), values, total)

    # Store the state as it is, in single precision: `_add_parts` divides by the sum of all parts.
    part = (head * GROUP + g) * SPLITS + split
    tl.store(parts + part[:, None] * D + d[None, :], total, mask=mine[:, None])
    tl.store(tops + part, top, mask=mine)
    tl.store(totals + part, sums, mask=mine)


@triton.jit
def _add_parts(parts, tops, totals, out, D: tl.constexpr, SPLITS: tl.constexpr):
    """Add up what a query saw in all parts of its keys."""
    query = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    s = tl.arange(0, SPLITS)

    # Parts are relative to their own largest score: make them relative to the largest of all.
    top = tl.load(tops + query * SPLITS + s)
    factor = tl.exp2(top - tl.max(top, axis=0))
    sums = tl.sum(tl.load(totals + query * SPLITS + s) * factor, axis=0)

    # The mean of the values.
    rows = tl.load(parts + (query * SPLITS + s)[:, None] * D + d[None, :])
    total = tl.sum(rows * factor[:, None], axis=0)
    tl.store(out + query * D + d, (total / sums).to(out.dtype.element_ty))


class _OfPrompts(BreadthKernel):
    """A kernel on the queries, keys and values of prompts, causal."""

    tolerance = 1e-2
    sizes = SIZES
    tiles = TILES
    usual = USUAL
    products = 2.0
    """Products of tiles per pair of a query and a key."""

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Q, K and V, standard normal."""
        shape = tuple(sizes_of(problem, "heads", "length", "width"))
        return {
            "q": normal(shape, "fp16", self, 4 * seed),
            "k": normal(shape, "fp16", self, 4 * seed + 1),
            "v": normal(shape, "fp16", self, 4 * seed + 2),
        }

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return what pairs that see each other cost, and all tensors moved once."""
        heads, length, width = (1.0 * problem[name] for name in ("heads", "length", "width"))

        # A product of tiles is two operations, and half of all pairs see each other.
        operations = self.products * heads * length * (length + 1.0) * width

        # Forward: Q, K, V and O. A gradient more has one product and one tensor more.
        moved_bytes = 2.0 * (2.0 + self.products) * heads * length * width
        return Cost(operations, moved_bytes, "fp16")


class _Backward(_OfPrompts):
    """A part of the gradient of causal attention."""

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Q, K, V, the gradient of O, and what the forward pass keeps of each query."""
        inputs = super().make_inputs(problem, seed)
        gradient = normal(tuple(inputs["q"].shape), "fp16", self, 4 * seed + 3)
        top = torch.empty(inputs["q"].shape[:2], dtype=torch.float32, device=gradient.device)
        delta = torch.empty_like(top)

        # Head by head: all weights at once would not fit in memory.
        for head in range(len(top)):
            weights, log_sum = _weights(inputs["q"][head], inputs["k"][head])
            out = weights @ inputs["v"][head].float()
            top[head] = log_sum * LOG2E
            delta[head] = (out * gradient[head].float()).sum(1)
        return {**inputs, "gradient": gradient, "top": top, "delta": delta}

    def gradients(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return those of Q, K and V in single precision, head by head."""
        dq = torch.empty(inputs["q"].shape, device=inputs["q"].device)
        dk = torch.empty_like(dq)
        dv = torch.empty_like(dq)
        for head in range(len(dq)):
            q, k, v, d_out = (inputs[n][head].float() for n in ("q", "k", "v", "gradient"))
            weights, _ = _weights(q, k)

            # Backward through the softmax.
            d_weights = d_out @ v.T
            mean = (weights * d_weights).sum(1, keepdim=True)
            d_scores = weights * (d_weights - mean) / math.sqrt(q.shape[1])

            dq[head] = d_scores @ k
            dk[head] = d_scores.T @ q
            dv[head] = weights.T @ d_out
        return dq, dk, dv

    def arguments(self, inputs: Inputs) -> tuple[Any, ...]:
        """Return the arguments that both kernels have in front."""
        return tuple(inputs[name] for name in ("q", "k", "v", "gradient", "top", "delta"))


class QueriesBackward(_Backward):
    """The gradient of the queries of causal attention."""

    name = "triton_attention_dq"
    products = 3.0

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the gradient."""
        heads, length, width = sizes_of(problem, "heads", "length", "width")
        dq = torch.empty_like(inputs["q"])
        grid = (triton.cdiv(length, int(config["BLOCK_M"])), heads)
        arguments = (*self.arguments(inputs), dq, length, LOG2E / math.sqrt(width))
        return [JitLaunch(_queries_backward, grid, arguments, {**config, "D": width})], dq

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradient in single precision."""
        return self.gradients(inputs)[0]


class KeysBackward(_Backward):
    """The gradients of the keys and values of causal attention."""

    name = "triton_attention_dkdv"
    products = 4.0

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and both gradients."""
        heads, length, width = sizes_of(problem, "heads", "length", "width")
        dk = torch.empty_like(inputs["k"])
        dv = torch.empty_like(inputs["v"])
        grid = (triton.cdiv(length, int(config["BLOCK_N"])), heads)
        arguments = (*self.arguments(inputs), dk, dv, length, LOG2E / math.sqrt(width))
        return [JitLaunch(_keys_backward, grid, arguments, {**config, "D": width})], (dk, dv)

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradients in single precision."""
        return self.gradients(inputs)[1:]


class SlidingWindow(_OfPrompts):
    """Attention in which a query sees the ``window`` tokens up to itself."""

    name = "triton_attention_window"
    sizes: ClassVar = {**SIZES, "window": "tokens that a query sees"}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Q, K and V, standard normal, and the window."""
        return {**super().make_inputs(problem, seed), "window": int(problem["window"])}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and O."""
        heads, length, width, window = sizes_of(problem, "heads", "length", "width", "window")
        q, k, v = (inputs[name] for name in "qkv")
        out = torch.empty_like(q)
        grid = (triton.cdiv(length, int(config["BLOCK_M"])), heads)
        arguments = (q, k, v, out, length, window, LOG2E / math.sqrt(width))
        return [JitLaunch(_window, grid, arguments, {**config, "D": width})], out

    def reference(self, inputs: Inputs) -> Any:
        """Return attention in single precision, head by head."""
        outputs = []
        for q, k, v in zip(inputs["q"], inputs["k"], inputs["v"], strict=True):
            weights, _ = _weights(q, k, inputs["window"])
            outputs.append(weights @ v.float())
        return torch.stack(outputs)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return what pairs that see each other cost, and all tensors moved once."""
        names = ("heads", "length", "width", "window")
        heads, length, width, window = (1.0 * problem[name] for name in names)
        operations = 4.0 * heads * length * window * width
        moved_bytes = 8.0 * heads * length * width
        return Cost(operations, moved_bytes, "fp16")


class Decoding(BreadthKernel):
    """Attention of one new token per sequence; its keys are split over programs.

    ``group`` heads of queries share keys.
    """

    name = "triton_attention_decode"
    tolerance = 1e-2
    sizes: ClassVar = {**SIZES, "group": "heads of queries that share keys"}
    tiles: ClassVar = {"BLOCK_M": (16,), "BLOCK_N": (32, 64, 128), "SPLITS": (2, 8, 16)}
    usual: ClassVar = {"BLOCK_M": 16, "BLOCK_N": 64, "SPLITS": 8, "num_warps": 4, "num_stages": 2}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return the new queries, and all keys and values, standard normal."""
        heads, length, width, group = sizes_of(problem, "heads", "length", "width", "group")
        return {
            "q": normal((heads, group, width), "fp16", self, 3 * seed),
            "k": normal((heads, length, width), "fp16", self, 3 * seed + 1),
            "v": normal((heads, length, width), "fp16", self, 3 * seed + 2),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launches that see the parts and add them up, and O."""
        heads, length, width, group = sizes_of(problem, "heads", "length", "width", "group")
        q, k, v = (inputs[name] for name in "qkv")
        splits = int(config["SPLITS"])
        out = torch.empty_like(q)

        # The states of all parts of a query, between the two launches.
        parts = torch.empty((heads * group, splits, width), device=q.device)
        tops = torch.empty((heads * group, splits), device=q.device)
        totals = torch.empty_like(tops)

        seeing = JitLaunch(
            _decode,
            (heads, splits),
            (q, k, v, parts, tops, totals, length, LOG2E / math.sqrt(width)),
            {**config, "D": width, "GROUP": group},
        )
        adding = JitLaunch(
            _add_parts,
            (heads * group,),
            (parts, tops, totals, out),
            {"D": width, "SPLITS": splits},
        )
        return [seeing, adding], out

    def reference(self, inputs: Inputs) -> Any:
        """Return attention in single precision."""
        q, k, v = (inputs[name].float() for name in "qkv")
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
        return torch.softmax(scores, dim=2) @ v

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 4·width operations per query and key, and keys and values moved once."""
        names = ("heads", "length", "width", "group")
        heads, length, width, group = (1.0 * problem[name] for name in names)
        operations = 4.0 * heads * group * length * width
        moved_bytes = 4.0 * heads * length * width
        return Cost(operations, moved_bytes, "fp16")


def _weights(q: torch.Tensor, k: torch.Tensor, window: int = 0) -> tuple[Any, Any]:
    """Return the causal weights of one head in single precision, and the log of their sums."""
    scores = q.float() @ k.float().T / math.sqrt(q.shape[1])

    # A query sees itself and earlier keys, with a window only the latest of them.
    tokens = torch.arange(len(q), device=q.device)
    hidden = tokens[None, :] > tokens[:, None]
    if window:
        hidden |= tokens[None, :] <= tokens[:, None] - window
    scores = scores.masked_fill(hidden, -math.inf)

    return torch.softmax(scores, dim=1), torch.logsumexp(scores, dim=1)


def cases() -> list[Case]:
    """Return the cases of this file."""
    window = {"window": 1024}
    cache = {"width": 128, "group": 8}

    # The same prompts, as Foretune's kernel calls their sizes.
    prompts: tuple[Mapping[str, Value], ...] = tuple(
        {"seq_len": sizes["length"], "heads": sizes["heads"], "dtype": "fp16"} for sizes in PROMPTS
    )
    return [
        Case(
            name="attention forward",
            kernel=TritonAttention(),
            sizes=prompts,
            small={"seq_len": 128, "heads": 2, "head_dim": 64, "dtype": "fp16"},
            tiles=TILES,
            default=Configuration({**USUAL, "BLOCK_M": 128}),
        ),
        QueriesBackward().case("attention dq", PROMPTS, SMALL),
        KeysBackward().case("attention dk, dv", PROMPTS, SMALL),
        Decoding().case(
            "attention decode",
            (
                {"heads": 1, "length": 8192, **cache},
                {"heads": 4, "length": 2048, **cache},
                {"heads": 128, "length": 4096, **cache},
                {"heads": 512, "length": 1024, **cache},
                {"heads": 64, "length": 16384, **cache},
            ),
            {"heads": 2, "length": 200, "width": 64, "group": 4},
        ),
        SlidingWindow().case(
            "sliding window",
            tuple({**sizes, **window} for sizes in PROMPTS),
            {**SMALL, "window": 40},
        ),
    ]
