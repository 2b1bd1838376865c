"""Operators of attention, of all kinds, on one rank.

The operators of DeepSeek-V4's compressed attention follow vLLM's ``models/deepseek_v4``. Its
kernels are modeled as latent attention (same key width) in decode steps, and as softmax attention
with one key head in prefill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
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
from foretune.plan.describe.description import (
    CompressedAttention,
    Heads,
    Indexer,
    LinearAttention,
    Mla,
    ModelDescription,
)
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration

MIX_PASSES = 4
"""Passes over all residual streams per layer: before and after attention and experts."""
SCORE_SHARE = 0.5
"""Work of scoring keys relative to attention with equally many heads, which also weights values."""


def attention_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part], phase: Phase
) -> Iterator[Operator]:
    """Yield attention of all layers: projections of all tokens, and the rest per part."""
    step = _Step(model=model, tp=layout.tp, formats=formats, parts=parts, phase=phase)
    if model.compressed:
        yield from step.compressed(model.compressed)
        return
    if model.linear:
        yield from step.linear(model.linear)
    if not model.softmax_layers:
        return
    if model.mla:
        yield from step.latent(model.mla)
    else:
        yield from step.softmax()
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
        weight_format = table_name(self.formats.weights)
        return gemm(
            name,
            phase=self.phase,
            count=layers,
            m=self.tokens,
            n=width,
            k=inner,
            kind=weight_format,
        )

    def rope(self, layers: int, width: int) -> Operator:
        """Return the rotary embedding of queries and keys."""
        return rowwise(
            "elementwise",
            "rope",
            phase=self.phase,
            count=layers,
            rows=self.tokens,
            columns=width,
            tp=self.tp,
        )

    def indexer(self, index: Indexer) -> Iterator[Operator]:
        """Yield the selection of keys.

        Every rank computes all heads, except that block indexers split heads like keys. An engine
        fuses a block indexer's projections with those of attention.
        """
        model = self.model
        layers = model.indexed_layers
        if index.selects_blocks:
            heads = ceil(index.heads / self.tp)
            formats = Formats()
        else:
            heads = index.heads
            formats = Formats(weights="fp8", kv="fp8")
        query_inputs = model.mla.q_lora_rank if model.mla else model.hidden
        key_width = index.head_dim + index.score_weights
        yield self.project("index_query", layers, heads * index.head_dim, query_inputs)
        yield self.project("index_key", layers, key_width, model.hidden)
        for part in self.parts:
            yield _scores(
                heads=heads, dim=index.head_dim, formats=formats, layers=layers, part=part
            )

    def softmax(self) -> Iterator[Operator]:
        """Yield softmax attention, with or without a window."""
        model = self.model
        tp = self.tp

        # Projections are the same with and without a window.
        layers_by_shape: dict[Heads, int] = {}
        for layers, _, shape in model.softmax_groups():
            layers_by_shape[shape] = layers_by_shape.get(shape, 0) + layers
        for shape, layers in layers_by_shape.items():
            heads = ceil(shape.heads / tp)
            kv_heads = ceil(shape.kv_heads / tp)
            gates = shape.value_dim if model.gated_attention else 0
            width = heads * (shape.head_dim + gates) + kv_heads * shape.projected_width
            yield self.project("qkv", layers, width, model.hidden)
            yield self.rope(layers, (heads + kv_heads) * shape.head_dim)

        # Attention of each part, over all keys, those in a window, or selected ones.
        top_k = model.index.top_k if model.index else 0
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
                            count=count,
                            heads=ceil(shape.heads / tp),
                            kv_heads=ceil(shape.kv_heads / tp),
                            dim=shape.cached_width // 2,
                            window=window,
                            formats=self.formats,
                        )

        for shape, layers in layers_by_shape.items():
            width = ceil(shape.heads / tp) * shape.value_dim
            yield self.project("attention_out", layers, model.hidden, width)

    def latent(self, mla: Mla) -> Iterator[Operator]:
        """Yield MLA: prefill decompresses keys and values, decode uses the latent cache."""
        model = self.model
        formats = self.formats
        heads = ceil(model.heads / self.tp)
        layers = model.softmax_layers
        down_width = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope
        query_width = heads * (mla.qk_nope + mla.qk_rope)
        yield self.project("latent", layers, down_width, model.hidden)
        yield self.project("query", layers, query_width, mla.q_lora_rank or model.hidden)
        yield self.rope(layers, (heads + 1) * mla.qk_rope)

        top_k = model.index.top_k if model.index else 0
        product_format = "fp8" if formats.activations == "fp8" else "bf16"
        for part in self.parts:
            attention = _latent_attention(
                part, count=layers, heads=heads, top_k=top_k, tp=self.tp, formats=formats
            )
            if part.phase == "prefill":
                yield self._decompress(mla, part, heads)
                yield attention
            else:
                yield _latent_projection(
                    "mla_gen_pre",
                    count=layers,
                    tokens=part.tokens,
                    heads=heads,
                    kind=product_format,
                )
                yield attention
                yield _latent_projection(
                    "mla_gen_post",
                    count=layers,
                    tokens=part.tokens,
                    heads=heads,
                    kind=product_format,
                )
        if model.gated_attention:
            yield self.project("gate", layers, heads * mla.v_head, model.hidden)
        yield self.project("attention_out", layers, model.hidden, heads * mla.v_head)

    def _decompress(self, mla: Mla, part: Part, heads: int) -> Operator:
        """Return the projection from latent vectors to keys and values, also of the prefix."""
        rows = part.batch * (part.new_tokens + part.context)
        width = heads * (mla.qk_nope + mla.v_head)
        weight_format = table_name(self.formats.weights)
        layers = self.model.softmax_layers
        return gemm(
            "decompress",
            phase="prefill",
            count=layers,
            m=rows,
            n=width,
            k=mla.kv_lora_rank,
            kind=weight_format,
        )

    def linear(self, linear: LinearAttention) -> Iterator[Operator]:
        """Yield layers with a state: projections, a short convolution, and the state update."""
        hidden = self.model.hidden
        tp = self.tp
        layers = linear.layers
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
            yield rowwise(
                "elementwise",
                "convolve",
                phase=self.phase,
                count=layers,
                rows=self.tokens,
                columns=width,
                tp=tp,
            )
        if linear.key_dim:  # a convolution alone has no state
            for part, op in product(self.parts, RECURRENT_OPS):
                yield _recurrent(linear, tp, part, op)
        yield self.project("linear_out", layers, hidden, ceil(values / tp))

    def compressed(self, shape: CompressedAttention) -> Iterator[Operator]:
        """Yield compressed attention, and the mixing of residual streams."""
        model = self.model
        phase = self.phase
        tokens = self.tokens
        heads = ceil(model.heads / self.tp)
        dim = model.head_dim
        layers = model.layers
        streams = shape.residual_streams * model.hidden
        yield rowwise(
            "elementwise",
            "mix",
            phase=phase,
            count=MIX_PASSES * layers,
            rows=tokens,
            columns=streams,
            tp=self.tp,
        )
        yield self.project("latent", layers, shape.q_lora_rank + dim, model.hidden)
        yield self.project("query", layers, heads * dim, shape.q_lora_rank)

        for ratio, count in shape.ratios:
            index = model.index if ratio == shape.indexed_ratio else None
            width = shape.compressor_width(ratio, dim, index)
            if width:
                yield gemm(
                    "compress",
                    phase=phase,
                    count=count,
                    m=tokens,
                    n=width,
                    k=model.hidden,
                    kind="bf16",
                )
            for part in self.parts:
                if index:
                    yield self._compressed_index_query(shape, index, part, count)
                    yield _scores(
                        heads=index.heads,
                        dim=index.head_dim,
                        formats=Formats(kv="fp8"),
                        layers=count,
                        part=part,
                        ratio=ratio,
                    )
                yield _compressed_attention(
                    shape,
                    ratio=ratio,
                    top_k=index.top_k if index else 0,
                    count=count,
                    heads=heads,
                    dim=dim,
                    part=part,
                    formats=self.formats,
                )

        # Outputs are compressed in groups of heads, then expanded.
        groups = ceil(shape.o_groups / self.tp)
        group_inputs = model.heads * dim // shape.o_groups
        yield self.project("out_groups", layers, groups * shape.o_lora_rank, group_inputs)
        yield self.project("attention_out", layers, model.hidden, groups * shape.o_lora_rank)

    def _compressed_index_query(
        self, shape: CompressedAttention, index: Indexer, part: Part, layers: int
    ) -> Operator:
        width = index.heads * index.head_dim
        weight_format = table_name(self.formats.weights)
        return gemm(
            "index_query",
            phase=self.phase,
            count=layers,
            m=part.tokens,
            n=width,
            k=shape.q_lora_rank,
            kind=weight_format,
        )


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
        config = Configuration(format=formats.tables, kv_format=formats.kv)
        return Operator(
            "attention_decode",
            problem=problem,
            count=count,
            phase="decode",
            config=config,
            name="attention",
        )
    problem = Problem(
        batch=part.batch, seq_len=part.new_tokens, prefix_len=part.context, heads=heads, **shape
    )
    return _of_prompts(problem, count, formats)


@lru_cache(CACHE_SIZE)
def _latent_attention(
    part: Part, count: float, heads: int, top_k: int, tp: int, formats: Formats
) -> Operator:
    """Return latent attention of one part, over at most ``top_k`` keys per query if not 0."""
    config = Configuration(format="bf16", kv_format=formats.kv, tp=tp)
    if part.phase == "decode":
        seen_keys = part.context + part.new_tokens
        keys = min(seen_keys, top_k) if top_k else seen_keys
        # Several new tokens read the cache once, like additional heads.
        problem = Problem(batch=part.batch, kv_len=keys, heads=heads * part.new_tokens)
        return Operator(
            "mla_decode",
            problem=problem,
            count=count,
            phase="decode",
            config=config,
            name="attention",
        )

    batch = float(part.batch)
    seq = part.new_tokens
    prefix = part.context
    if top_k and prefix + seq / 2 > top_k:
        # An equal number of tokens in shorter prompts that see as many keys.
        seq = min(seq, 2 * top_k)
        batch = part.tokens / seq
        prefix = top_k - seq / 2
    problem = Problem(batch=batch, seq_len=seq, prefix_len=prefix, heads=heads)
    return Operator(
        "mla_prefill",
        problem=problem,
        count=count,
        phase="prefill",
        config=config,
        name="attention",
    )


@lru_cache(CACHE_SIZE)
def _latent_projection(op: str, count: float, tokens: int, heads: int, kind: str) -> Operator:
    """Return a batched product per head, into or out of the latent space."""
    problem = Problem(tokens=tokens, heads=heads, op=op)
    return Operator(
        "mla_bmm",
        problem=problem,
        count=count,
        phase="decode",
        config=Configuration(format=kind),
        name=op,
    )


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
    full = _attention(
        part,
        count=SCORE_SHARE * layers,
        heads=heads,
        kv_heads=1,
        dim=dim,
        window=0,
        formats=formats,
    )
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
    return Operator(
        linear.kind,
        problem=problem,
        count=linear.layers,
        phase=part.phase,
        config=Configuration(),
        name=op,
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
        return Operator(
            "mla_decode",
            problem=problem,
            count=count,
            phase="decode",
            config=config,
            name="attention",
        )
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
    return _of_prompts(problem, count, formats)


def _of_prompts(problem: Problem, count: float, formats: Formats) -> Operator:
    """Return the attention of prompts."""
    return Operator(
        "attention_prefill",
        problem=problem,
        count=count,
        phase="prefill",
        config=Configuration(format=formats.attention, kv_format=formats.kv),
        name="attention",
    )
