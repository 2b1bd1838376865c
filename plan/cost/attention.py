"""Operators of attention: softmax, latent (MLA), sparse, and linear with a state."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil

from foretune.plan.cost.operator import KEPT, Operator, Part, Phase, gemm, rowwise
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.parts import Indexer, LinearAttention, Mla
from foretune.problem import Problem
from foretune.space import Configuration

SCORES_ONLY = 0.5
"""Work of scoring keys, as a share of attention with as many heads, which weighs values too."""


def attention_operators(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Give the operators of all layers' attention, from its input projections to its output.

    Projections run on the tokens of all parts at once, attention itself for each part.
    """
    tokens = sum(part.tokens for part in parts)
    if model.linear:
        yield from _linear(model, model.linear, layout, formats, parts, phase)
    if not model.softmax_layers:
        return
    if model.mla:
        yield from _latent(model, model.mla, layout, formats, parts, phase)
    else:
        yield from _softmax(model, layout, formats, parts, phase)
    if model.index:
        ranks = model.mla.q_lora_rank if model.mla else model.hidden
        kind, layers = table_name(formats.weights), model.softmax_layers
        width = model.index.heads * model.index.head_dim
        yield gemm("index_query", phase, layers, tokens, width, ranks, kind)
        width = model.index.head_dim + model.index.heads
        yield gemm("index_key", phase, layers, tokens, width, model.hidden, kind)
        for part in parts:
            yield _scores(model.index, layers, part)


def _softmax(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    heads, kv_heads = ceil(model.heads / layout.tp), ceil(model.kv_heads / layout.tp)
    dim, layers = model.head_dim, model.softmax_layers
    tokens, kind = sum(part.tokens for part in parts), table_name(formats.weights)
    queries = 2 * heads if model.gated_attention else heads
    width = (queries + 2 * kv_heads) * dim
    yield gemm("qkv", phase, layers, tokens, width, model.hidden, kind)
    yield rowwise("elementwise", "rope", phase, layers, tokens, (heads + kv_heads) * dim, layout.tp)
    window, some = model.sliding_window, model.windowed_layers
    for part in parts:
        for count, keys in ((layers - some, 0), (some, window)):
            if count:
                yield _attention(part, count, heads, kv_heads, dim, keys, formats)
    yield gemm("attention_out", phase, layers, tokens, model.hidden, heads * dim, kind)


@lru_cache(KEPT)
def _attention(
    part: Part, count: float, heads: int, kv_heads: int, dim: int, window: int, formats: Formats
) -> Operator:
    """Return softmax attention of one part of a step.

    Several new tokens of a decode step read the cache once, as more heads would.
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
    """Give MLA: prompts decompress keys and values, answers are computed on the latent ones."""
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
            # Keys and values of the prefix are decompressed again.
            rows = part.batch * (part.new_tokens + part.context)
            yield gemm("decompress", "prefill", layers, rows, width, mla.kv_lora_rank, kind)
            yield _latent_prefill(part, layers, heads, top_k, layout.tp, formats)
        else:
            yield _absorbed("mla_gen_pre", layers, part.tokens, heads, product)
            yield _latent_decode(part, layers, heads, top_k, layout.tp, formats)
            yield _absorbed("mla_gen_post", layers, part.tokens, heads, product)
    yield gemm("attention_out", phase, layers, tokens, model.hidden, heads * mla.v_head, kind)


@lru_cache(KEPT)
def _latent_prefill(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    batch, seq, prefix = float(part.batch), part.new_tokens, part.context
    if top_k and prefix + seq / 2 > top_k:
        # As many queries, each with top_k keys: prompts of which every key before is seen.
        batch, seq, prefix = batch * seq / (2 * top_k), 2 * top_k, 0
    problem = Problem(batch=max(batch, 1), seq_len=seq, prefix_len=prefix, heads=heads)
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    return Operator("mla_prefill", problem, count, "prefill", config, "attention")


@lru_cache(KEPT)
def _latent_decode(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    keys = part.context + part.new_tokens
    problem = Problem(
        batch=part.batch,
        kv_len=min(keys, top_k) if top_k else keys,
        heads=heads * part.new_tokens,
    )
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    return Operator("mla_decode", problem, count, "decode", config, "attention")


@lru_cache(KEPT)
def _absorbed(op: str, count: float, tokens: int, heads: int, kind: str) -> Operator:
    """Return a product per head, into or out of the latent space."""
    problem = Problem(tokens=tokens, heads=heads, op=op)
    return Operator("mla_bmm", problem, count, "decode", Configuration(format=kind), op)


@lru_cache(KEPT)
def _scores(index: Indexer, layers: int, part: Part) -> Operator:
    """Return the indexer's scores as attention with one key head in eight bits.

    Every rank computes all of its heads.
    """
    formats = Formats(weights="fp8", kv="fp8")
    full = _attention(part, SCORES_ONLY * layers, index.heads, 1, index.head_dim, 0, formats)
    return Operator(full.kernel, full.problem, full.count, full.phase, full.config, "index_scores")


def _linear(
    model: ModelDescription,
    linear: LinearAttention,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Give the gated delta rule: projections, a short convolution, and the state's update."""
    tokens, kind, tp = sum(p.tokens for p in parts), table_name(formats.weights), layout.tp
    values = linear.value_heads * linear.value_dim
    width = ceil((linear.channels + values + 2 * linear.value_heads) / tp)
    yield gemm("linear_in", phase, linear.layers, tokens, width, model.hidden, kind)
    for part in parts:
        kernels = (
            ("causal_conv1d_fn", "chunk_gated_delta_rule")
            if part.phase == "prefill"
            else ("causal_conv1d_update", "fused_recurrent_gated_delta_rule")
        )
        for implementation in kernels:
            yield _delta(model.hidden, linear, tp, part, implementation)
    yield gemm("linear_out", phase, linear.layers, tokens, model.hidden, ceil(values / tp), kind)


@lru_cache(KEPT)
def _delta(
    hidden: int, linear: LinearAttention, tp: int, part: Part, implementation: str
) -> Operator:
    problem = Problem(
        phase="context" if part.phase == "prefill" else "generation",
        batch=part.batch,
        seq_len=part.new_tokens,
        tokens=part.tokens,
        d_model=hidden,
        d_conv=linear.convolution,
        num_k_heads=ceil(linear.key_heads / tp),
        head_k_dim=linear.key_dim,
        num_v_heads=ceil(linear.value_heads / tp),
        head_v_dim=linear.value_dim,
    )
    config = Configuration(implementation=implementation)
    return Operator("gdn", problem, linear.layers, part.phase, config, implementation)
