"""Operators of a step: all kernels that one rank runs.

The operators of DeepSeek-V4's compressed attention follow vLLM's ``models/deepseek_v4``. Its
kernels are modeled as latent attention (same key width) in decode steps, and as softmax attention
with one key head in prefill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from foretune.plan.cost.operator import (
    BF16_BYTES,
    CACHE_SIZE,
    RECURRENT_OPS,
    Operator,
    Part,
    Phase,
    collective,
    gemm,
    rowwise,
)
from foretune.plan.describe.description import (
    CompressedAttention,
    Heads,
    Indexer,
    LinearAttention,
    Mla,
    ModelDescription,
)
from foretune.plan.describe.formats import ACTIVATION_BYTES, Formats, find_format, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration

ROUTING = "power_law_1.2"
"""The distribution of tokens over experts with which measured tables imitate real routers."""
EXPERT_KINDS = {2: "plain", 3: "gated"}
"""Matrices of an expert -> their name in tables."""
MIX_PASSES = 4
"""Passes over all residual streams per layer: before and after attention and experts."""
SCORE_SHARE = 0.5
"""Work of scoring keys relative to attention with equally many heads, which also weights values."""


@dataclass(frozen=True)
class MoeShape:
    """Routed experts of a layer, and how ranks split them."""

    hidden: int  # width of their input and output
    intermediate: int  # width of one expert
    experts: int
    top_k: int  # experts per token
    matrices: int  # per expert: 3 with a gate, 2 without
    tp: int  # slices of an expert
    ep: int  # groups of experts
    weight_format: str  # as in measured tables


def mixed_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
) -> list[Operator]:
    """Return the operators of one rank in a step: projections of all tokens, attention per part."""
    parts = [part for part in parts if part.tokens > 0]
    if not parts:
        return []
    phase = phase_of(parts)
    tokens = sum(part.tokens for part in parts)
    # Only the last token of a prompt gets logits.
    rows = sum(p.batch if p.phase == "prefill" else p.tokens for p in parts)
    hidden, tp, kind = model.hidden, layout.tp, table_name(formats.mlps(model))
    return [
        rowwise("elementwise", "embedding", phase, 1, tokens, hidden, tp),
        rowwise("norm", "rms_norm", phase, model.norms, tokens, hidden, tp),
        *attention_operators(model, layout, formats, parts, phase),
        *dense_operators(model, tp, kind, tokens, phase),
        *_experts(model, layout, formats, tokens, phase),
        gemm("head", phase, 1, rows, ceil(model.vocab / tp), hidden, "bf16"),
        *_communication(model, layout, formats, tokens, rows, phase),
    ]


def phase_of(parts: Sequence[Part]) -> Phase:
    """Return the phase of a step with at least one part."""
    return parts[0].phase if len({part.phase for part in parts}) == 1 else "mixed"


def dense_operators(
    model: ModelDescription, tp: int, kind: str, tokens: float, phase: Phase, fused: bool = True
) -> Iterator[Operator]:
    """Yield the dense MLPs and the shared experts in format ``kind``.

    With ``fused``, the activation is multiplied with its gate, as in serving.
    """
    for name, layers, width, matrices in (
        *(("mlp", layers, width, model.mlp_matrices) for width, layers in model.dense_widths),
        ("shared", model.moe_layers, model.shared_width, model.expert_matrices),
    ):
        if not layers or not width:
            continue
        inner = ceil(width / tp)
        up = (matrices - 1) * inner
        activation, columns = ("silu_and_mul", inner) if fused else ("activation", up)
        yield gemm(f"{name}_up", phase, layers, tokens, up, model.hidden, kind)
        yield rowwise("elementwise", activation, phase, layers, tokens, columns, tp)
        yield gemm(f"{name}_down", phase, layers, tokens, model.hidden, inner, kind)


def _experts(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, phase: Phase
) -> Iterator[Operator]:
    if not model.is_moe:
        return
    layers = model.moe_layers
    yield gemm("router", phase, layers, tokens, model.experts, model.hidden, "bf16")
    if inner := model.expert_hidden:
        kind = table_name(formats.weights)
        yield gemm("experts_in", phase, layers, tokens, inner, model.hidden, kind)
        yield gemm("experts_out", phase, layers, tokens, model.hidden, inner, kind)
    shape = MoeShape(
        hidden=model.expert_hidden or model.hidden,
        intermediate=model.moe_intermediate,
        experts=model.experts,
        top_k=model.experts_per_token,
        matrices=model.expert_matrices,
        tp=layout.moe_tp,
        ep=layout.moe_ep,
        weight_format=table_name(formats.moe),
    )
    yield _moe(shape, tokens=tokens * layout.dp, layers=layers, phase=phase)


@lru_cache(CACHE_SIZE)
def _moe(shape: MoeShape, tokens: int, layers: int, phase: Phase) -> Operator:
    """Return the routed experts; tables count the tokens of all ranks and the whole expert."""
    problem = Problem(
        tokens=tokens,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        top_k=shape.top_k,
        experts=shape.experts,
        distribution=ROUTING,
    )
    config = Configuration(
        format=shape.weight_format,
        tp=shape.tp,
        ep=shape.ep,
        experts=EXPERT_KINDS[shape.matrices],
    )
    return Operator(
        kernel="moe", problem=problem, count=layers, phase=phase, config=config, name="experts"
    )


def _communication(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, rows: int, phase: Phase
) -> Iterator[Operator]:
    """Yield the exchanges: after attention, around MLPs and experts, at both ends, between stages.

    A rank's share of attention or of an MLP is completed by an all-reduce. With attention-DP, ranks
    gather all tokens and scatter the sums. If a token has fewer experts than there are ranks, it is
    sent to its experts only, in the format they multiply.
    """
    message, tp = float(tokens * model.hidden), layout.tp
    sums = model.attentions + model.mlp_layers
    gathered = layout.dp > 1 and model.is_moe
    if not gathered:
        sums += model.moe_layers
    if tp > 1:
        yield collective("all_reduce", "sum", phase, sums, message, tp)
        yield collective("all_reduce", "embedding_sum", phase, 1, message, tp)
        yield collective("all_gather", "logits", phase, 1, float(rows * model.vocab), tp)
    if gathered:
        ranks, layers = layout.tp * layout.dp, model.moe_layers
        message = float(tokens * (model.expert_hidden or model.hidden))
        # Tokens are quantized before sending: TensorRT-LLM's post-quant all-gather, DeepEP.
        dispatch_scale = ACTIVATION_BYTES[find_format(formats.moe).activations] / BF16_BYTES
        copies = min(model.experts_per_token, layout.moe_ep)
        if layout.moe_tp == 1 and copies < ranks:
            kernels, sent = ("all_to_all", "all_to_all"), message * copies / tp
        else:
            kernels, sent = ("all_gather", "reduce_scatter"), message * layout.dp
        yield collective(kernels[0], "dispatch", phase, layers, dispatch_scale * sent, ranks)
        yield collective(kernels[1], "combine", phase, layers, sent, ranks)
    if layout.pp > 1:
        yield collective("send_recv", "stage", phase, layout.pp - 1, message, 2)


def attention_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part], phase: Phase
) -> Iterator[Operator]:
    """Yield attention of all layers: projections of all tokens, and the rest per part."""
    step = _Step(model, layout.tp, formats, parts, phase)
    if model.compressed:
        yield from step.compressed(model.compressed)
        return
    if model.linear:
        yield from step.linear(model.linear)
    if not model.softmax_layers:
        return
    yield from step.latent(model.mla) if model.mla else step.softmax()
    if model.index:
        yield from step.indexer(model.index)


@dataclass(frozen=True)
class _Step:
    """A step in which ``tp`` ranks share attention."""

    model: ModelDescription
    tp: int
    formats: Formats
    parts: Sequence[Part]
    phase: Phase

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    def project(self, name: str, layers: int, width: float, inner: float) -> Operator:
        """Return the projection of all tokens from ``inner`` to ``width`` numbers."""
        kind = table_name(self.formats.weights)
        return gemm(name, self.phase, layers, self.tokens, width, inner, kind)

    def rope(self, layers: int, width: int) -> Operator:
        """Return the rotary embedding of queries and keys."""
        return rowwise("elementwise", "rope", self.phase, layers, self.tokens, width, self.tp)

    def indexer(self, index: Indexer) -> Iterator[Operator]:
        """Yield the selection of keys.

        Every rank computes all heads, except that block indexers split heads like keys. An engine
        fuses a block indexer's projections with those of attention.
        """
        model, layers = self.model, self.model.indexed_layers
        heads = ceil(index.heads / self.tp) if index.selects_blocks else index.heads
        ranks = model.mla.q_lora_rank if model.mla else model.hidden
        yield self.project("index_query", layers, heads * index.head_dim, ranks)
        yield self.project("index_key", layers, index.head_dim + index.score_weights, model.hidden)
        formats = Formats() if index.selects_blocks else Formats(weights="fp8", kv="fp8")
        for part in self.parts:
            yield _scores(heads, index.head_dim, formats, layers, part)

    def softmax(self) -> Iterator[Operator]:
        """Yield softmax attention, with or without a window."""
        model, tp = self.model, self.tp
        top_k = model.index.top_k if model.index else 0
        layers_by_shape: dict[Heads, int] = {}
        for layers, _, shape in model.softmax_groups():
            layers_by_shape[shape] = layers_by_shape.get(shape, 0) + layers
        for shape, layers in layers_by_shape.items():
            heads, kv_heads = ceil(shape.heads / tp), ceil(shape.kv_heads / tp)
            dim, gates = shape.head_dim, shape.value_dim if model.gated_attention else 0
            width = heads * (dim + gates) + kv_heads * shape.projected_width
            yield self.project("qkv", layers, width, model.hidden)
            yield self.rope(layers, (heads + kv_heads) * dim)
        for layers, window, shape in model.softmax_groups():
            sparse = 0 if window else model.indexed_layers
            # Layers of cross attention have no text to attend to.
            crossing = 0 if window else model.cross_attention_layers
            for part in self.parts:
                for count, visible in (
                    (layers - sparse - crossing, part),
                    (sparse, _sparse_part(part, top_k)),
                ):
                    if count:
                        yield _attention(
                            visible,
                            count,
                            ceil(shape.heads / tp),
                            ceil(shape.kv_heads / tp),
                            shape.cached_width // 2,
                            window,
                            self.formats,
                        )
        for shape, layers in layers_by_shape.items():
            width = ceil(shape.heads / tp) * shape.value_dim
            yield self.project("attention_out", layers, model.hidden, width)

    def latent(self, mla: Mla) -> Iterator[Operator]:
        """Yield MLA: prefill decompresses keys and values, decode uses the latent cache."""
        model, formats, tp = self.model, self.formats, self.tp
        heads, layers = ceil(model.heads / tp), model.softmax_layers
        down = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope
        yield self.project("latent", layers, down, model.hidden)
        width, inner = heads * (mla.qk_nope + mla.qk_rope), mla.q_lora_rank or model.hidden
        yield self.project("query", layers, width, inner)
        yield self.rope(layers, (heads + 1) * mla.qk_rope)
        top_k = model.index.top_k if model.index else 0
        product = "fp8" if formats.activations == "fp8" else "bf16"
        for part in self.parts:
            if part.phase == "prefill":
                width = heads * (mla.qk_nope + mla.v_head)
                # The prefix is decompressed again.
                rows, kind = part.batch * (part.new_tokens + part.context), formats.weights
                yield gemm(
                    "decompress",
                    "prefill",
                    layers,
                    rows,
                    width,
                    mla.kv_lora_rank,
                    table_name(kind),
                )
                yield _latent_attention(part, layers, heads, top_k, tp, formats)
            else:
                yield _latent_projection("mla_gen_pre", layers, part.tokens, heads, product)
                yield _latent_attention(part, layers, heads, top_k, tp, formats)
                yield _latent_projection("mla_gen_post", layers, part.tokens, heads, product)
        if model.gated_attention:
            yield self.project("gate", layers, heads * mla.v_head, model.hidden)
        yield self.project("attention_out", layers, model.hidden, heads * mla.v_head)

    def linear(self, linear: LinearAttention) -> Iterator[Operator]:
        """Yield layers with a state: projections, a short convolution, and the state update."""
        hidden, tp, layers = self.model.hidden, self.tp, linear.layers
        values = linear.value_heads * linear.value_dim
        width = ceil(linear.split_inputs / tp) + linear.compressed_gates
        yield self.project("linear_in", layers, width, hidden)
        if linear.gate_rank:
            width = ceil(linear.key_heads * linear.key_dim / tp)
            yield self.project("linear_gate", layers, width, linear.gate_rank)
        if linear.output_gate_rank:
            gate = ceil(values / tp)
            yield self.project("linear_output_gate", layers, gate, linear.output_gate_rank)
        if linear.kind == "convolution":
            yield rowwise("elementwise", "convolve", self.phase, layers, self.tokens, width, tp)
        for part in self.parts if linear.key_dim else ():
            for op in RECURRENT_OPS:
                yield _recurrent(linear, tp, part, op)
        yield self.project("linear_out", layers, hidden, ceil(values / tp))

    def compressed(self, shape: CompressedAttention) -> Iterator[Operator]:
        """Yield compressed attention, and the mixing of residual streams."""
        model, phase, tokens, tp = self.model, self.phase, self.tokens, self.tp
        heads, dim, layers = ceil(model.heads / tp), model.head_dim, model.layers
        groups, kind = ceil(shape.o_groups / tp), table_name(self.formats.weights)
        streams = shape.residual_streams * model.hidden
        yield rowwise("elementwise", "mix", phase, MIX_PASSES * layers, tokens, streams, tp)
        yield self.project("latent", layers, shape.q_lora_rank + dim, model.hidden)
        yield self.project("query", layers, heads * dim, shape.q_lora_rank)
        for ratio, count in shape.ratios:
            index = model.index if ratio == shape.indexed_ratio else None
            if width := shape.compressor_width(ratio, dim, index):
                yield gemm("compress", phase, count, tokens, width, model.hidden, "bf16")
            for part in self.parts:
                if index:
                    width = index.heads * index.head_dim
                    yield gemm(
                        "index_query", phase, count, part.tokens, width, shape.q_lora_rank, kind
                    )
                    formats = Formats(kv="fp8")
                    yield _scores(index.heads, index.head_dim, formats, count, part, ratio)
                top_k = index.top_k if index else 0
                yield _compressed_attention(
                    shape, ratio, top_k, count, heads, dim, part, self.formats
                )
        inner = model.heads * dim // shape.o_groups
        yield self.project("out_groups", layers, groups * shape.o_lora_rank, inner)
        yield self.project("attention_out", layers, model.hidden, groups * shape.o_lora_rank)


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
    seq = min(part.new_tokens, 2 * top_k)
    return Part(max(round(part.tokens / seq), 1), seq, top_k - seq / 2, "prefill")


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


@lru_cache(CACHE_SIZE)
def _latent_attention(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    if part.phase == "decode":
        keys = part.context + part.new_tokens
        keys, heads = min(keys, top_k) if top_k else keys, heads * part.new_tokens
        problem = Problem(batch=part.batch, kv_len=keys, heads=heads)
        return Operator("mla_decode", problem, count, "decode", config, "attention")
    batch, seq, prefix = float(part.batch), part.new_tokens, part.context
    if top_k and prefix + seq / 2 > top_k:
        seq = min(seq, 2 * top_k)
        batch, prefix = part.tokens / seq, top_k - seq / 2
    problem = Problem(batch=batch, seq_len=seq, prefix_len=prefix, heads=heads)
    return Operator("mla_prefill", problem, count, "prefill", config, "attention")


@lru_cache(CACHE_SIZE)
def _latent_projection(op: str, count: float, tokens: int, heads: int, kind: str) -> Operator:
    """Return a batched product per head, into or out of the latent space."""
    problem = Problem(tokens=tokens, heads=heads, op=op)
    return Operator("mla_bmm", problem, count, "decode", Configuration(format=kind), op)


@lru_cache(CACHE_SIZE)
def _scores(
    heads: int, dim: int, formats: Formats, layers: float, part: Part, ratio: int = 1
) -> Operator:
    """Return the indexer's scores as attention with one key head, over ``ratio`` tokens per key."""
    if part.phase == "prefill":
        layers = layers / ratio
    elif ratio > 1:
        keys = max((part.context + part.new_tokens) / ratio, 1.0)
        part = replace(part, context=keys - part.new_tokens)
    full = _attention(part, SCORE_SHARE * layers, heads, 1, dim, 0, formats)
    return replace(full, name="index_scores")


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
    keys = max(_visible_keys(shape, ratio, top_k, part.context + part.new_tokens / 2), 1.0)
    seq = min(2 * keys, part.new_tokens)
    problem = Problem(
        batch=max(round(part.tokens / seq), 1),
        seq_len=seq,
        prefix_len=keys - seq / 2,
        heads=heads,
        kv_heads=1,
        head_dim=dim,
        window=0,
    )
    config = Configuration(format=formats.attention, kv_format=formats.kv)
    return Operator("attention_prefill", problem, count, "prefill", config, "attention")
