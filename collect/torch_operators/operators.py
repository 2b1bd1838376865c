"""Operators of language models in torch: products, attention, experts, and row operations.

Linear layers come in every number format that torch supports. Attention is causal for prompts, and
over the whole cache for a new token. Experts are those of the rank with the highest load: tokens
are sorted by expert; in 16 bits all experts are one grouped product, in other formats they are
multiplied one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from foretune.collect.expert_routing import mean_counts, routing_exponent
from foretune.kernel import Launch
from foretune.values import FrozenParameters

GROUP_SIZE = 128  # four-bit weights per scale
MIN_ROWS = 32  # rows to which integer products are padded: libraries reject fewer
DISTINCT_NUMBERS = 2**22 - 3
"""Period of the random numbers in a tensor: drawing gigabytes would take longer than measuring.

It is odd, so that rows differ."""
FLOAT8 = torch.float8_e4m3fn
MAX_VALUE = {FLOAT8: 448.0, torch.int8: 127.0}


@dataclass(frozen=True)
class Linear:
    """A linear layer in one format, whose weight (out, in) was given in 16 or 32 bits."""

    prepare: Callable[[torch.Tensor], Any]  # activations -> the operand of `multiply`; not timed
    multiply: Callable[[Any], torch.Tensor]  # (rows, out), in 16 bits, or 32 if the format has 32


def _plain(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Linear:
    """Weights and activations in a format that torch multiplies directly."""
    converted = weight.to(dtype)
    return Linear(lambda a: a.to(dtype), lambda a: functional.linear(a, converted))


def _float8(weight: torch.Tensor) -> Linear:
    """Weights and activations in eight-bit floats with one scale per tensor."""
    narrow, scale = _scaled(weight, FLOAT8)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch._scaled_mm(
            operand[0], narrow.t(), scale_a=operand[1], scale_b=scale, out_dtype=torch.bfloat16
        )

    return Linear(lambda a: _scaled(a, FLOAT8), multiply)


def _int8(weight: torch.Tensor) -> Linear:
    """Integer weights and activations with one scale per row each."""
    codes, scales = _scaled(weight, torch.int8, dim=1)
    scale = scales.t().to(torch.bfloat16)

    def prepare(activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, row_scales = _scaled(activations, torch.int8, dim=1)
        missing = max(MIN_ROWS - len(values), 0)
        return functional.pad(values, (0, 0, 0, missing)), row_scales.to(torch.bfloat16)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, row_scales = operand
        sums = torch._int_mm(values, codes.t())[: len(row_scales)]
        return sums.to(torch.bfloat16).mul_(row_scales).mul_(scale)

    return Linear(prepare, multiply)


def _int8_weights(weight: torch.Tensor) -> Linear:
    """Integer weights, converted before every product."""
    codes, scales = _scaled(weight, torch.int8, dim=1)
    scale = scales.to(torch.bfloat16)
    return Linear(
        lambda a: a.to(torch.bfloat16),
        lambda a: functional.linear(a, codes.to(torch.bfloat16).mul_(scale)),
    )


def _int4_weights(weight: torch.Tensor) -> Linear:
    """Two weights per byte, one scale per `GROUP_SIZE`; converted before every product."""
    out, width = weight.shape
    groups = weight.float().reshape(-1, min(GROUP_SIZE, width))
    scale = groups.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12) / 7.0
    numbers = (groups / scale).round_().add_(8.0).to(torch.uint8).reshape(out, width)
    codes = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
    scale = scale.to(torch.bfloat16)

    def multiply(operand: torch.Tensor) -> torch.Tensor:
        halves = torch.stack((codes & 15, codes >> 4), dim=2)
        groups = halves.view(len(scale), -1).to(torch.bfloat16).sub_(8.0).mul_(scale)
        return functional.linear(operand, groups.view(out, -1))

    return Linear(lambda a: a.to(torch.bfloat16), multiply)


FORMATS: dict[str, Callable[[torch.Tensor], Linear]] = {
    "bf16": _plain,
    "fp16": partial(_plain, dtype=torch.float16),
    "fp32": partial(_plain, dtype=torch.float32),
    "fp8": _float8,
    "fp8_static": _float8,
    "int8": _int8,
    "int8_wo": _int8_weights,
    "int4_wo": _int4_weights,
}
"""Format name in the run table -> implementation."""


def _refuse_product(problem: FrozenParameters, config: FrozenParameters) -> str:
    kind = str(config["format"])
    if kind not in FORMATS:
        return f"torch multiplies in {', '.join(FORMATS)}, not in {kind}"
    width = int(problem["K"])
    if kind == "int4_wo" and (width % 2 or width % min(GROUP_SIZE, width)):
        return f"{width} weights in a row are not a multiple of {GROUP_SIZE}"
    return ""


def _product_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return the bytes of all operands in single precision and in their format."""
    m, n, k = (float(problem[name]) for name in ("M", "N", "K"))
    return 8.0 * (m * k + n * k) + 8.0 * m * n


def _build_product(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    m, n, k = (int(problem[name]) for name in ("M", "N", "K"))
    linear = FORMATS[str(config["format"])](random_tensor((n, k), device))
    operand = linear.prepare(random_tensor((m, k), device))
    return lambda: linear.multiply(operand)


def random_tensor(shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Return normal random numbers in 16 bits, periodic and the same in every run."""
    generator = torch.Generator(device).manual_seed(0)
    size = prod(shape)
    distinct = min(size, DISTINCT_NUMBERS)
    numbers = torch.randn(distinct, generator=generator, device=device, dtype=torch.bfloat16)
    return numbers.repeat(-(-size // distinct))[:size].view(shape)


def _scaled(
    values: torch.Tensor, dtype: torch.dtype, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``values`` in eight bits and their scale (per row with ``dim`` 1)."""
    wide = values.float()
    largest = wide.abs().amax() if dim is None else wide.abs().amax(dim=dim, keepdim=True)
    scale = largest.clamp_min(1e-12) / MAX_VALUE[dtype]
    scaled = wide / scale
    return (scaled.round_() if dtype is torch.int8 else scaled).to(dtype), scale


def _refuse_attention(problem: FrozenParameters, config: FrozenParameters) -> str:
    for name in ("format", "kv_format"):
        if config.get(name, "bf16") != "bf16":
            return f"torch computes attention in bf16, not in {config[name]}"
    window = _window(problem)
    if "seq_len" in problem and 0 < window < _keys(problem):
        return "prompts longer than the window: torch computes beyond the window, too"
    return ""


def _attention_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    queries = float(problem.get("seq_len", 1)) * float(problem["heads"])
    keys = _keys(problem) * _kv_heads(problem)
    return 4.0 * float(problem["batch"]) * float(problem["head_dim"]) * (2.0 * queries + 2.0 * keys)


def _build_attention(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    batch, heads, dim = (round(float(problem[n])) for n in ("batch", "heads", "head_dim"))
    rows = int(problem.get("seq_len", 1))
    cache = random_tensor((2, batch, _kv_heads(problem), _keys(problem), dim), device)
    query = random_tensor((batch, heads, rows, dim), device)
    if "seq_len" in problem:
        return lambda: prefill(query, cache[0], cache[1])
    return lambda: decode(query, cache[0], cache[1])


def prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last tokens of prompts.

    ``query`` is (batch, heads, new tokens, head size), ``keys`` and ``values`` are (batch, key
    heads, tokens, head size).
    """
    new, total = query.shape[2], keys.shape[2]
    grouped = keys.shape[1] != query.shape[1]
    if new == total:
        return functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=grouped
        )
    mask = causal_lower_right(new, total)
    if grouped:  # this mask needs one key head per head
        share = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(share, dim=1) for x in (keys, values))
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return attention of one new token per request, (batch, heads, 1, head size).

    Heads that share a key head are rows of one product: the cache is read once for all of them.
    """
    batch, heads, _, dim = query.shape
    shared = query.view(batch, keys.shape[1], heads // keys.shape[1], dim)
    return functional.scaled_dot_product_attention(shared, keys, values).view(query.shape)


def _keys(problem: FrozenParameters) -> int:
    if "seq_len" in problem:
        return round(float(problem["seq_len"])) + round(float(problem.get("prefix_len", 0)))
    window, keys = _window(problem), round(float(problem["kv_len"]))
    return min(keys, window) if window else keys


def _window(problem: FrozenParameters) -> int:
    return int(problem.get("window", 0))


def _kv_heads(problem: FrozenParameters) -> int:
    return int(problem.get("kv_heads", 0)) or int(problem["heads"])


VOCABULARY = 32_768  # rows of the embedding table
HEAD_SIZE = 128  # head size of rotary embeddings; pairs are half of it apart
EPSILON = 1e-6


def _refuse_rowwise(problem: FrozenParameters, config: FrozenParameters) -> str:
    op = str(problem.get("op"))
    if op not in OPERATIONS:
        return f"unknown row operation {op!r}: known are {', '.join(OPERATIONS)}"
    if op == "rope" and int(problem["columns"]) % HEAD_SIZE:
        return f"{problem['columns']} columns are not a multiple of {HEAD_SIZE}"
    return ""


def _rowwise_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    table = VOCABULARY if problem.get("op") == "embedding" else 0
    return 2.0 * float(problem["columns"]) * (8.0 * float(problem["rows"]) + table)


def _build_rowwise(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    make = OPERATIONS[str(problem["op"])]
    return make(round(float(problem["rows"])), int(problem["columns"]), device)


def rms_norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return rows divided by the root of their mean square, times ``weight``."""
    return functional.rms_norm(values, (values.shape[1],), weight, EPSILON)


def silu_and_mul(both: torch.Tensor) -> torch.Tensor:
    """Return the first half of every row, gated (x · sigmoid x), times the second half."""
    gate, up = both.chunk(2, dim=1)
    return functional.silu(gate).mul_(up)


def rope(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings to heads, (rows, heads, head size)."""
    first, second = heads.chunk(2, dim=2)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=2)


def _norm(rows: int, columns: int, device: str) -> Launch:
    values, weight = random_tensor((rows, columns), device), random_tensor((columns,), device)
    return lambda: rms_norm(values, weight)


def _embedding(rows: int, columns: int, device: str) -> Launch:
    table = random_tensor((VOCABULARY, columns), device)
    generator = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(VOCABULARY, (rows,), generator=generator, device=device)
    return lambda: functional.embedding(tokens, table)


def _silu_and_mul(rows: int, columns: int, device: str) -> Launch:
    both = random_tensor((rows, 2 * columns), device)
    return lambda: silu_and_mul(both)


def _rope(rows: int, columns: int, device: str) -> Launch:
    heads = random_tensor((rows, columns // HEAD_SIZE, HEAD_SIZE), device)
    angles = random_tensor((rows, 1, HEAD_SIZE // 2), device)
    cosine, sine = angles.cos(), angles.sin()
    return lambda: rope(heads, cosine, sine)


OPERATIONS: dict[str, Callable[[int, int, str], Launch]] = {
    "rms_norm": _norm,
    "embedding": _embedding,
    "silu_and_mul": _silu_and_mul,
    "rope": _rope,
}


def _refuse_experts(problem: FrozenParameters, config: FrozenParameters) -> str:
    if (kind := str(config["format"])) not in FORMATS:
        return f"torch multiplies in {', '.join(FORMATS)}, not in {kind}"
    if config.get("experts", "gated") != "gated":
        return "only experts with a gate are measured"
    return ""


def _experts_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return twice the bytes of the rank's weights, plus the activations."""
    hidden, inner = _widths(problem, config)
    local = int(problem["experts"]) // int(config.get("ep", 1))
    pairs = float(sum(_counts(problem, config)))
    weights = 3.0 * local * hidden * inner
    return 4.0 * weights + 2.0 * (
        float(problem["tokens"]) * hidden + pairs * (2.0 * hidden + 3.0 * inner)
    )


def _build_experts(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    tokens = int(problem["tokens"])
    hidden, inner = _widths(problem, config)
    counts = _counts(problem, config)
    random = np.random.default_rng(0)
    rows = np.concatenate([np.sort(random.choice(tokens, n, replace=False)) for n in counts])
    up = random_tensor((len(counts), 2 * inner, hidden), device)
    down = random_tensor((len(counts), hidden, inner), device)
    run = experts(up, down, counts, str(config["format"]))
    token_rows = torch.as_tensor(rows, device=device)
    weights = torch.full((len(rows), 1), 1.0 / int(problem["top_k"]), dtype=up.dtype, device=device)
    activations = random_tensor((tokens, hidden), device)
    return lambda: combine_experts(activations, token_rows, weights, run)


def experts(
    up: torch.Tensor, down: torch.Tensor, counts: Sequence[int], kind: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that applies the experts to rows sorted by expert, ``counts`` per expert.

    ``up`` is gate and up projection of every expert in 16 bits, (experts, 2 · inner, hidden), and
    ``down`` is (experts, hidden, inner); ``kind`` is the number format.
    """
    if kind == "bf16" and hasattr(functional, "grouped_mm"):  # torch 2.10 on
        ends = torch.as_tensor(np.cumsum(counts), dtype=torch.int32, device=up.device)
        wide, narrow = up.transpose(1, 2), down.transpose(1, 2)
        return lambda rows: functional.grouped_mm(
            silu_and_mul(functional.grouped_mm(rows, wide, offs=ends)), narrow, offs=ends
        )
    pairs = [
        (FORMATS[kind](a), FORMATS[kind](b))
        for a, b, count in zip(up, down, counts, strict=True)
        if count
    ]
    nonzero_counts = [count for count in counts if count]

    def one_by_one(rows: torch.Tensor) -> torch.Tensor:
        results = []
        for (first, second), part in zip(pairs, torch.split(rows, nonzero_counts), strict=True):
            inside = silu_and_mul(first.multiply(first.prepare(part)))
            results.append(second.multiply(second.prepare(inside)))
        return torch.cat(results).to(rows.dtype)

    return one_by_one


def combine_experts(
    activations: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    run: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the weighted sum of the experts' outputs per token, (tokens, hidden).

    ``rows`` is the token and ``weights`` the weight of each token-expert pair, sorted by expert.
    """
    made = run(activations[rows]).mul_(weights)
    return torch.zeros_like(activations).index_add_(0, rows, made)


def _widths(problem: FrozenParameters, config: FrozenParameters) -> tuple[int, int]:
    return int(problem["hidden"]), int(problem["intermediate"]) // int(config.get("tp", 1))


def _counts(problem: FrozenParameters, config: FrozenParameters) -> list[int]:
    """Return the busiest rank's tokens by expert: the most popular one, others evenly spaced."""
    n, top_k, tokens = (int(problem[name]) for name in ("experts", "top_k", "tokens"))
    local = max(n // int(config.get("ep", 1)), 1)
    exponent = routing_exponent(str(problem.get("distribution", "balanced")))
    share = mean_counts(tokens, top_k, n, exponent)
    others = np.linspace(1, n - 1, local - 1).round().astype(int)
    chosen = share[[0, *others]]
    # whole tokens with the same sum as the shares, so that a few tokens still reach experts
    ends = np.cumsum(chosen).round().astype(int)
    counts = np.diff(ends, prepend=0).clip(max=tokens)
    counts[0] = max(counts[0], 1)
    return [int(count) for count in counts]


class Kind(NamedTuple):
    """How to run the operators of one kernel, given problem and configuration.

    ``cannot_run`` returns why torch cannot run one ("" if it can), ``memory_bytes`` its approximate
    peak memory, ``build`` a call on a device.
    """

    cannot_run: Callable[[FrozenParameters, FrozenParameters], str]
    memory_bytes: Callable[[FrozenParameters, FrozenParameters], float]
    build: Callable[[FrozenParameters, FrozenParameters, str], Launch]


_ATTENTION = Kind(_refuse_attention, _attention_bytes, _build_attention)
_ROWWISE = Kind(_refuse_rowwise, _rowwise_bytes, _build_rowwise)
KINDS = {
    "gemm": Kind(_refuse_product, _product_bytes, _build_product),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "moe": Kind(_refuse_experts, _experts_bytes, _build_experts),
    "norm": _ROWWISE,
    "elementwise": _ROWWISE,
}
