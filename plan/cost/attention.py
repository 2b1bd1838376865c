"""Operators of attention: softmax, latent (MLA), sparse, linear, and compressed (DeepSeek-V4).

The operators of DeepSeek-V4's compressed attention follow vLLM's ``models/deepseek_v4``. Its
kernels are modeled as latent attention (same key width) in decode steps, and as softmax attention
with one key head in prefill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil

from foretune.plan.cost.operator import (
    CACHE_SIZE,
    RECURRENT_OPS,
    Operator,
    Part,
    Phase,
    gemm,
    rowwise,
)
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.parts import CompressedAttention, Heads, Indexer, LinearAttention, Mla
from foretune.problem import Problem
from foretune.space import Configuration


def attention_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part], phase: Phase
) -> Iterator[Operator]:
    """Yield the attention operators of all layers, from input to output projections.

    Projections process the tokens of all parts at once; attention runs per part.
    """
    if model.compressed:
        yield from compressed_operators(model, layout, formats, parts, phase)
        return
    if model.linear:
        yield from _linear(model, model.linear, layout, formats, parts, phase)
    if not model.softmax_layers:
        return
    if model.mla:
        yield from _latent(model, model.mla, layout, formats, parts, phase)
    else:
        yield from _softmax(model, layout, formats, parts, phase)
    if model.index:
        yield from _indexer(model, model.index, layout, formats, parts, phase)


def _indexer(
    model: ModelDescription,
    index: Indexer,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Yield the selection of keys.

    Every rank computes all heads, except that block indexers split heads as keys are. An engine
    fuses a block indexer's projections with those of attention.
    """
    tokens, kind = sum(p.tokens for p in parts), table_name(formats.weights)
    layers = model.indexed_layers
    heads = ceil(index.heads / layout.tp) if index.selects_blocks else index.heads
    ranks = model.mla.q_lora_rank if model.mla else model.hidden
    yield gemm("index_query", phase, layers, tokens, heads * index.head_dim, ranks, kind)
    width = index.head_dim + index.score_weights
    yield gemm("index_key", phase, layers, tokens, width, model.hidden, kind)
    for part in parts:
        yield _scores(heads, index.head_dim, not index.selects_blocks, layers, part)


def _softmax(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part], phase: Phase
) -> Iterator[Operator]:
    tokens, kind, tp = sum(p.tokens for p in parts), table_name(formats.weights), layout.tp
    top_k = model.index.top_k if model.index else 0
    layers_by_shape: dict[Heads, int] = {}
    for layers, _, shape in model.softmax_groups():
        layers_by_shape[shape] = layers_by_shape.get(shape, 0) + layers
    for shape, layers in layers_by_shape.items():
        heads, kv_heads = ceil(shape.heads / tp), ceil(shape.kv_heads / tp)
        dim, gates = shape.head_dim, shape.value_dim if model.gated_attention else 0
        width = heads * (dim + gates) + kv_heads * shape.projected_width
        yield gemm("qkv", phase, layers, tokens, width, model.hidden, kind)
        yield rowwise("elementwise", "rope", phase, layers, tokens, (heads + kv_heads) * dim, tp)
    for layers, window, shape in model.softmax_groups():
        sparse = 0 if window else model.indexed_layers
        for part in parts:
            for count, visible in ((layers - sparse, part), (sparse, _sparse_part(part, top_k))):
                if count:
                    yield _attention(
                        visible, count, ceil(shape.heads / tp), ceil(shape.kv_heads / tp),
                        shape.cached_width // 2, window, formats,
                    )  # fmt: skip
    for shape, layers in layers_by_shape.items():
        width = ceil(shape.heads / tp) * shape.value_dim
        yield gemm("attention_out", phase, layers, tokens, model.hidden, width, kind)


@lru_cache(CACHE_SIZE)
def _sparse_part(part: Part, top_k: int) -> Part:
    """Return an equivalent part whose queries see at most ``top_k`` keys each."""
    if not top_k:
        return part
    if part.phase == "decode":
        context = min(part.context + part.new_tokens, top_k) - part.new_tokens
        return replace(part, context=max(context, 0))
    if part.context + part.new_tokens / 2 <= top_k:
        return part
    # Prompts with full attention, as many queries, and top_k keys per query.
    batch = max(round(part.tokens / (2 * top_k)), 1)
    return Part(batch, 2 * top_k, 0, "prefill")


@lru_cache(CACHE_SIZE)
def _attention(
    part: Part, count: float, heads: int, kv_heads: int, dim: int, window: int, formats: Formats
) -> Operator:
    """Return softmax attention of one part of a step.

    ``dim`` is the mean width of a head's key and value; it gives the same FLOPs and bytes. Several
    new tokens in a decode step read the cache once, like additional heads.
    """
    shape = {"kv_heads": kv_heads, "head_dim": dim, "window": window}
    if part.phase == "decode":
        problem = Problem(
            batch=part.batch,
            kv_len=part.context + part.new_tokens,
            heads=heads * part.new_tokens,
            **shape,
        )
        config = Configuration(format="bf16", kv_format=formats.kv)
        return Operator("attention_decode", problem, count, "decode", config, "attention")
    problem = Problem(
        batch=part.batch, seq_len=part.new_tokens, prefix_len=part.context, heads=heads, **shape
    )
    config = Configuration(format=formats.attention, kv_format=formats.kv)
    return Operator("attention_prefill", problem, count, "prefill", config, "attention")


def _latent(
    model: ModelDescription,
    mla: Mla,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Yield MLA's operators: prefill decompresses keys and values, decode uses the latent cache."""
    heads, layers = ceil(model.heads / layout.tp), model.softmax_layers
    tokens, kind = sum(part.tokens for part in parts), table_name(formats.weights)
    down = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope
    yield gemm("latent", phase, layers, tokens, down, model.hidden, kind)
    width, inner = heads * (mla.qk_nope + mla.qk_rope), mla.q_lora_rank or model.hidden
    yield gemm("query", phase, layers, tokens, width, inner, kind)
    yield rowwise(
        "elementwise", "rope", phase, layers, tokens, (heads + 1) * mla.qk_rope, layout.tp
    )
    top_k = model.index.top_k if model.index else 0
    product = "fp8" if formats.activations == "fp8" else "bf16"
    for part in parts:
        if part.phase == "prefill":
            width = heads * (mla.qk_nope + mla.v_head)
            # The prefix is decompressed again.
            rows = part.batch * (part.new_tokens + part.context)
            yield gemm("decompress", "prefill", layers, rows, width, mla.kv_lora_rank, kind)
            yield _latent_prefill(part, layers, heads, top_k, layout.tp, formats)
        else:
            yield _latent_projection("mla_gen_pre", layers, part.tokens, heads, product)
            yield _latent_decode(part, layers, heads, top_k, layout.tp, formats)
            yield _latent_projection("mla_gen_post", layers, part.tokens, heads, product)
    if model.gated_attention:
        yield gemm("gate", phase, layers, tokens, heads * mla.v_head, model.hidden, kind)
    yield gemm("attention_out", phase, layers, tokens, model.hidden, heads * mla.v_head, kind)


@lru_cache(CACHE_SIZE)
def _latent_prefill(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    batch, seq, prefix = float(part.batch), part.new_tokens, part.context
    if top_k and prefix + seq / 2 > top_k:
        # Prompts with full attention, as many queries, and top_k keys per query.
        batch, seq, prefix = batch * seq / (2 * top_k), 2 * top_k, 0
    problem = Problem(batch=max(batch, 1), seq_len=seq, prefix_len=prefix, heads=heads)
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    return Operator("mla_prefill", problem, count, "prefill", config, "attention")


@lru_cache(CACHE_SIZE)
def _latent_decode(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    keys = part.context + part.new_tokens
    problem = Problem(
        batch=part.batch, kv_len=min(keys, top_k) if top_k else keys, heads=heads * part.new_tokens
    )
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    return Operator("mla_decode", problem, count, "decode", config, "attention")


@lru_cache(CACHE_SIZE)
def _latent_projection(op: str, count: float, tokens: int, heads: int, kind: str) -> Operator:
    """Return a batched product per head, into or out of the latent space."""
    problem = Problem(tokens=tokens, heads=heads, op=op)
    return Operator("mla_bmm", problem, count, "decode", Configuration(format=kind), op)


@lru_cache(CACHE_SIZE)
def _scores(heads: int, dim: int, eight_bits: bool, layers: int, part: Part) -> Operator:
    """Return the indexer's scores as attention with one key head."""
    formats = Formats(weights="fp8", kv="fp8") if eight_bits else Formats()
    full = _attention(part, SCORE_SHARE * layers, heads, 1, dim, 0, formats)
    return Operator(full.kernel, full.problem, full.count, full.phase, full.config, "index_scores")


def _linear(
    model: ModelDescription,
    linear: LinearAttention,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Yield layers with a state: projections, a short convolution, and the state update."""
    tokens, kind, tp = sum(p.tokens for p in parts), table_name(formats.weights), layout.tp
    values = linear.value_heads * linear.value_dim
    width = ceil((linear.channels + values + linear.gate_scalars) / tp) + linear.gate_rank
    yield gemm("linear_in", phase, linear.layers, tokens, width, model.hidden, kind)
    if linear.gate_rank:
        width = ceil(linear.key_heads * linear.key_dim / tp)
        yield gemm("linear_gate", phase, linear.layers, tokens, width, linear.gate_rank, kind)
    for part in parts:
        for op in RECURRENT_OPS:
            yield _recurrent(linear, tp, part, op)
    yield gemm("linear_out", phase, linear.layers, tokens, model.hidden, ceil(values / tp), kind)


@lru_cache(CACHE_SIZE)
def _recurrent(linear: LinearAttention, tp: int, part: Part, op: str) -> Operator:
    problem = Problem(
        op=op,
        phase="context" if part.phase == "prefill" else "generation",
        batch=part.batch,
        seq_len=part.new_tokens,
        tokens=part.tokens,
        d_conv=linear.convolution,
        num_k_heads=ceil(linear.key_heads / tp),
        head_k_dim=linear.key_dim,
        num_v_heads=ceil(linear.value_heads / tp),
        head_v_dim=linear.value_dim,
    )
    return Operator(linear.kind, problem, linear.layers, part.phase, Configuration(), op)


MIX_PASSES = 4
"""Passes over all residual streams per layer: before and after attention and experts."""
SCORE_SHARE = 0.5
"""Work of scoring keys relative to attention with as many heads, which also weighs values."""


def compressed_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part], phase: Phase
) -> Iterator[Operator]:
    """Yield the attention operators of all layers, and the mixing of residual streams."""
    shape = model.compressed
    assert shape is not None
    tokens, kind, tp = sum(p.tokens for p in parts), table_name(formats.weights), layout.tp
    heads, dim, layers = ceil(model.heads / tp), model.head_dim, model.layers
    groups = ceil(shape.o_groups / tp)
    streams = shape.residual_streams * model.hidden
    yield rowwise("elementwise", "mix", phase, MIX_PASSES * layers, tokens, streams, tp)
    latent = shape.q_lora_rank + dim
    yield gemm("latent", phase, layers, tokens, latent, model.hidden, kind)
    yield gemm("query", phase, layers, tokens, heads * dim, shape.q_lora_rank, kind)
    for ratio, ratio_layers in shape.ratios:
        index = model.index if ratio == shape.indexed_ratio else None
        if width := shape.compressor_width(ratio, dim, index):
            yield gemm("compress", phase, ratio_layers, tokens, width, model.hidden, "bf16")
        for part in parts:
            if index:
                width = index.heads * index.head_dim
                yield gemm(
                    "index_query", phase, ratio_layers, part.tokens, width, shape.q_lora_rank, kind
                )
                yield _compressed_scores(index, ratio_layers, ratio, part)
            top_k = index.top_k if index else 0
            yield _compressed_attention(
                shape, ratio, top_k, ratio_layers, heads, dim, part, formats
            )
    inner = model.heads * dim // shape.o_groups
    yield gemm("out_groups", phase, layers, tokens, groups * shape.o_lora_rank, inner, kind)
    yield gemm(
        "attention_out", phase, layers, tokens, model.hidden, groups * shape.o_lora_rank, kind
    )


def _visible_keys(shape: CompressedAttention, ratio: int, top_k: int, seen: float) -> float:
    """Return the number of keys that a query with ``seen`` earlier tokens attends to."""
    compressed = seen / ratio if ratio else 0.0
    return min(seen, shape.window) + (min(compressed, top_k) if top_k else compressed)


@lru_cache(CACHE_SIZE)
def _compressed_attention(
    shape: CompressedAttention,
    ratio: int,
    top_k: int,
    count: int,
    heads: int,
    dim: int,
    part: Part,
    formats: Formats,
) -> Operator:
    if part.phase == "decode":
        keys = _visible_keys(shape, ratio, top_k, part.context + part.new_tokens)
        problem = Problem(batch=part.batch, kv_len=keys, heads=heads * part.new_tokens)
        config = Configuration(format="bf16", kv_format=formats.kv)
        return Operator("mla_decode", problem, count, "decode", config, "attention")
    # Prompts with full attention, as many queries, and as many keys per query.
    keys = max(_visible_keys(shape, ratio, top_k, part.context + part.new_tokens / 2), 1.0)
    problem = Problem(
        batch=max(round(part.tokens / (2 * keys)), 1), seq_len=min(2 * keys, part.tokens),
        prefix_len=0, heads=heads, kv_heads=1, head_dim=dim, window=0,
    )  # fmt: skip
    config = Configuration(format=formats.attention, kv_format=formats.kv)
    return Operator("attention_prefill", problem, count, "prefill", config, "attention")


@lru_cache(CACHE_SIZE)
def _compressed_scores(index: Indexer, layers: int, ratio: int, part: Part) -> Operator:
    """Return the indexer's scores of compressed keys as attention with one key head."""
    shape = {"heads": index.heads, "kv_heads": 1, "head_dim": index.head_dim, "window": 0}
    config = Configuration(format="bf16", kv_format="fp8")
    if part.phase == "decode":
        keys = (part.context + part.new_tokens) / ratio
        heads = index.heads * part.new_tokens
        problem = Problem(batch=part.batch, kv_len=max(keys, 1.0), **(shape | {"heads": heads}))
        return Operator(
            "attention_decode", problem, SCORE_SHARE * layers, "decode", config, "index_scores"
        )
    problem = Problem(batch=part.batch, seq_len=part.new_tokens, prefix_len=part.context, **shape)
    count = SCORE_SHARE * layers / ratio
    return Operator("attention_prefill", problem, count, "prefill", config, "index_scores")
