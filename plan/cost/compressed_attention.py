"""Operators of DeepSeek-V4's attention: a window of keys as they are, all before them compressed.

What its layers compute is as vLLM has it (``models/deepseek_v4``). Kernels that weigh keys are
taken for those of latent attention in a decode step, whose keys are as wide, and for softmax
attention with one key head where prompts are read.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil

from foretune.plan.cost.operator import CACHE_SIZE, Operator, Part, Phase, gemm, rowwise
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.parts import CompressedAttention, Indexer
from foretune.problem import Problem
from foretune.space import Configuration

MIX_PASSES = 4
"""Passes over all residual streams per layer: before and after attention, and the experts."""
SCORE_SHARE = 0.5
"""Work of scoring keys, as a share of attention with as many heads, which weighs values too."""


def compressed_operators(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    parts: Sequence[Part],
    phase: Phase,
) -> Iterator[Operator]:
    """Give the operators of all layers' attention, and of mixing the residual streams."""
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
                yield _scores(index, ratio_layers, ratio, part)
            top_k = index.top_k if index else 0
            yield _attention(shape, ratio, top_k, ratio_layers, heads, dim, part, formats)
    inner = model.heads * dim // shape.o_groups
    yield gemm("out_groups", phase, layers, tokens, groups * shape.o_lora_rank, inner, kind)
    yield gemm(
        "attention_out", phase, layers, tokens, model.hidden, groups * shape.o_lora_rank, kind
    )


def _visible_keys(shape: CompressedAttention, ratio: int, top_k: int, seen: float) -> float:
    """Return how many keys a query weighs that has ``seen`` tokens before it."""
    compressed = seen / ratio if ratio else 0.0
    return min(seen, shape.window) + (min(compressed, top_k) if top_k else compressed)


@lru_cache(CACHE_SIZE)
def _attention(
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
    # As many queries, each with as many keys: prompts of which every key before is seen.
    keys = max(_visible_keys(shape, ratio, top_k, part.context + part.new_tokens / 2), 1.0)
    problem = Problem(
        batch=max(round(part.tokens / (2 * keys)), 1), seq_len=min(2 * keys, part.tokens),
        prefix_len=0, heads=heads, kv_heads=1, head_dim=dim, window=0,
    )  # fmt: skip
    config = Configuration(format=formats.attention, kv_format=formats.kv)
    return Operator("attention_prefill", problem, count, "prefill", config, "attention")


@lru_cache(CACHE_SIZE)
def _scores(index: Indexer, layers: int, ratio: int, part: Part) -> Operator:
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
