"""Memory of a rank: weights, cache, activations, and the engine's other memory.

The formula follows vLLM's profiling: the peak of a step with most tokens, and of sampling. Its
constants were fitted to vLLM 0.19's caches on one, two and four H100s (``plan_memory.py``).
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from foretune.plan.cost.operator import BF16_BYTES
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, base_format, draft_formats, find_format
from foretune.plan.describe.layout import Layout, Workload

GIB = 2**30
USABLE_SHARE = 0.9
"""Share of GPU memory that engines fill (vLLM's ``gpu_memory_utilization``)."""
MAX_STEP_TOKENS = 8192
"""Maximum tokens of a step; longer prompts are chunked (vLLM's ``max_num_batched_tokens``). Plans
compare deployments with this many, and choose the best one's number last."""
PADDED_FORMATS = ("mxfp4", "w4a8_mxfp4_mxfp8")
"""Formats whose experts are padded by kernels."""
EXPERT_MULTIPLES = {
    "sm_90": (256, 64),  # OpenAI's Triton kernels
    "sm_100": (256, 256),  # FlashInfer
    "sm_103": (256, 256),
    "gfx": (256, 256),
}
"""Prefix of an architecture -> multiples to which engines pad hidden and intermediate width of an
expert on a rank. vLLM logged 64.4 GiB of weights of gpt-oss-120b with Triton kernels on one H100,
66.0 with Marlin's."""
MARLIN_MULTIPLES = (256, 128)
"""The same for all other GPUs."""
STATE_BYTES = 4.0
"""Bytes per number of a linear layer's state."""
SAMPLING_BYTES = 14.0
"""Bytes per request and word of the vocabulary while sampling: logits in 16 and 32 bits, sorted."""
STEP_BYTES = 0.125 * GIB
"""Bytes of a step in addition to its widest tensors."""
ENGINE_BYTES = 0.25 * GIB
"""Bytes that an engine uses outside of PyTorch on a single GPU."""
RANKS_BYTES = 2.12 * GIB
"""The same on each of several GPUs, with collectives."""


class Memory:
    """Bytes on the fullest rank, by use."""

    @property
    def total(self) -> Any:
        """Sum in bytes."""
        return sum(vars(self).values())

    @property
    def gib(self) -> Any:
        """Sum in GiB."""
        return self.total / GIB


@dataclass(frozen=True)
class RankMemory(Memory):
    """Bytes on the fullest rank while it serves."""

    weights: float
    kv_cache: float  # keys, values and states of its requests
    activations: float  # peak of a step
    engine: float  # memory outside of PyTorch, including buffers of collectives


def rank_memory(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    workload: Workload,
    concurrency: Any,
    offloaded_bytes: float = 0.0,
    step_tokens: int = MAX_STEP_TOKENS,
) -> RankMemory:
    """Return the memory of the fullest rank with ``concurrency`` requests at full length.

    For an array of ``concurrency`` (of one replica), the result has arrays. ``offloaded_bytes`` of
    the weights are in host memory. A step has at most ``step_tokens``.
    """
    requests: Any = np.ceil(concurrency / layout.dp)
    tokens: Any = np.maximum(np.minimum(step_tokens, requests * workload.isl), requests)
    return RankMemory(
        weights=weight_bytes(model, layout, formats) - offloaded_bytes,
        kv_cache=requests * request_bytes(model, layout, formats, workload.last_context),
        activations=activation_bytes(model, layout, tokens, requests),
        engine=engine_bytes(layout),
    )


@lru_cache(maxsize=2**16)  # all loads of a layout ask
def max_requests(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    workload: Workload,
    memory_gib: float,
    offloaded_bytes: float = 0.0,
) -> int:
    """Return how many requests of one replica fit in GPU memory; 0 if the model does not fit."""
    capacity = USABLE_SHARE * memory_gib * GIB + offloaded_bytes

    def fit(each: int) -> bool:
        return rank_memory(model, layout, formats, workload, each * layout.dp).total <= capacity

    rest = capacity - weight_bytes(model, layout, formats)
    too_many = int(rest // request_bytes(model, layout, formats, workload.last_context)) + 1
    if rest <= 0 or not fit(1):
        return 0
    return layout.dp * (bisect_left(range(1, too_many), True, key=lambda each: not fit(each)))


def expert_multiples(architecture: str) -> tuple[int, int]:
    """Return the multiples to which kernels for a GPU pad experts in MXFP4."""
    for prefix, multiples in EXPERT_MULTIPLES.items():
        if architecture.startswith(prefix):
            return multiples
    return MARLIN_MULTIPLES


@lru_cache(maxsize=4096)
def weight_bytes(model: ModelDescription, layout: Layout, formats: Formats) -> float:
    """Return the weight bytes per rank of the fullest stage."""
    draft_model = model.draft_model
    drafts = (
        sum(_stage_bytes(draft_model, Layout(layout.tp), draft_formats(draft_model, formats), 0))
        if draft_model
        else 0.0
    )
    stages = (_stage_bytes(model, layout, formats, stage) for stage in range(layout.pp))
    return drafts + max(map(sum, stages))


def stage_layer_range(model: ModelDescription, layout: Layout, stage: int) -> tuple[int, int]:
    """Return a stage's first layer and the end of its range; the first stages have more layers."""
    each, more = divmod(model.layers, layout.pp)
    start = stage * each + min(stage, more)
    return start, start + each + (stage < more)


@lru_cache(maxsize=4096)
def layer_bytes(model: ModelDescription, layout: Layout, formats: Formats) -> tuple[float, float]:
    """Return the layer weights in bytes per rank of the fullest stage: (dense, experts)."""
    stages = (_stage_bytes(model, layout, formats, stage) for stage in range(layout.pp))
    dense, experts, _ = max(stages, key=lambda stage: stage[0] + stage[1])
    return dense, experts


def _stage_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, stage: int
) -> tuple[float, float, float]:
    """Return the weight bytes of one rank of a stage: layers without experts, experts, tables.

    The first stage also has the encoders, which vLLM splits between its ranks.

    Attention kinds alternate, so each stage has the model's mixture.
    """
    weights = model.weights()
    start, end = stage_layer_range(model, layout, stage)
    share = (end - start) / model.layers
    if model.without_mlp or model.alternating:
        dense = share * model.mlp_layers
        sparse = share * model.moe_layers
    else:
        dense = max(min(end, model.dense_layers) - start, 0) if model.is_moe else end - start
        sparse = end - start - dense
    shared = sparse * weights.shared / max(model.moe_layers, 1)
    heads = weights.attention / layout.tp + weights.key_value / min(layout.tp, model.kv_heads)
    projections = share * (heads + weights.replicated) + shared / layout.tp
    mlps = dense * weights.mlp / max(model.mlp_layers, 1) / layout.tp
    rank_experts = math.ceil(model.experts / layout.moe_ep)
    if base_format(formats.moe) in PADDED_FORMATS:
        expert = model.padded_expert_parameters(layout.moe_tp)
    else:
        expert = model.expert_parameters / layout.moe_tp
    experts = sparse * rank_experts * expert
    router = sparse * model.hidden * model.experts
    tables = (stage == 0) * (weights.embedding + model.encoder_weights)
    if stage == layout.pp - 1 and not (model.tied_embeddings and stage == 0):
        tables += weights.head or weights.embedding
    wide = router + share * weights.norms
    return (
        find_format(formats.weights).bytes * projections
        + find_format(formats.mlps(model)).bytes * mlps
        + find_format(formats.tables).bytes * wide,
        find_format(formats.moe).bytes * experts,
        find_format(formats.tables).bytes * tables / layout.tp,
    )


def request_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: float
) -> float:
    """Return the cache bytes of a request of ``tokens`` on one rank of the fullest stage."""
    share = math.ceil(model.layers / layout.pp) / model.layers
    cache_format = find_format(formats.kv, cache=True)
    if model.compressed:
        return share * model.compressed.request_bytes(tokens, model.head_dim, model.index)
    cache = 0.0
    for layers, window, heads in model.softmax_groups():
        if model.mla:  # on all ranks
            values: float = model.mla.kv_lora_rank + model.mla.qk_rope
            width = values
        else:
            values = math.ceil(heads.kv_heads / layout.tp) * heads.cached_width
            width = heads.cached_width / 2  # of key and value, which have a scale each
        caching_layers = layers if window else layers - model.cross_attention_layers
        cached_values = caching_layers * min(tokens, window or tokens) * values
        cache += cached_values * cache_format.bytes_per_value(width)
    cache += model.indexed_layers * tokens * model.index.token_bytes if model.index else 0.0
    if draft_model := model.draft_model:
        cache += request_bytes(draft_model, Layout(layout.tp), formats, tokens)
    return share * (cache + _state_bytes(model, layout))


def _state_bytes(model: ModelDescription, layout: Layout) -> float:
    """Return the bytes of a request's linear-layer states."""
    linear = model.linear
    if linear is None:
        return 0.0
    state = STATE_BYTES * linear.value_heads * linear.key_dim * linear.value_dim
    window = BF16_BYTES * (linear.convolution - 1) * linear.channels
    return linear.layers * (state + window) / layout.tp


def activation_bytes(
    model: ModelDescription, layout: Layout, tokens: float, requests: float
) -> float:
    """Return the peak activation bytes of a step with ``tokens`` tokens.

    A layer's peak has the residual stream, its normalized copy, and the wider of attention
    (queries, keys, values, output) and an MLP (gate, up, product). Sampling for all ``requests``
    follows. The buffers of experts stay allocated.
    """
    if model.mla:
        heads = model.heads / layout.tp
        attention = heads * (2 * (model.mla.qk_nope + model.mla.qk_rope) + 2 * model.mla.v_head)
    else:
        attention = max(
            (shape.heads / layout.tp + math.ceil(shape.kv_heads / layout.tp)) * shape.cached_width
            for _, _, shape in model.softmax_groups()
        )
    mlp_width = model.intermediate if model.mlp_layers else 0
    mlp = 3 * max(mlp_width, model.shared_width) / layout.tp
    layer = BF16_BYTES * tokens * (2 * model.hidden + max(attention, mlp))
    sampling = BF16_BYTES * tokens * model.hidden + SAMPLING_BYTES * requests * model.vocab
    return np.maximum(layer, sampling) + _expert_bytes(model, layout, tokens) + STEP_BYTES


def _expert_bytes(model: ModelDescription, layout: Layout, tokens: float) -> float:
    """Return the bytes of the experts' two buffers, for tokens of all attention-DP groups."""
    if not model.is_moe:
        return 0.0
    outer = model.expert_hidden or model.hidden
    inner = model.moe_intermediate / layout.moe_tp
    pairs = layout.dp * model.experts_per_token / layout.moe_ep
    both_buffers = max(2 * inner, outer) + max(inner, outer)
    gathered = model.hidden * layout.dp if layout.dp > 1 else 0
    return BF16_BYTES * tokens * (pairs * both_buffers + gathered)


def engine_bytes(layout: Layout) -> float:
    """Return the bytes that an engine uses outside of PyTorch on each rank."""
    return RANKS_BYTES if layout.gpus > layout.pp else ENGINE_BYTES
