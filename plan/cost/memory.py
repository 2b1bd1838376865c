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
    prompt_tokens = requests * workload.longest_prompt
    tokens: Any = np.maximum(np.minimum(step_tokens, prompt_tokens), requests)
    return RankMemory(
        weights=weight_bytes(model, layout, formats) - offloaded_bytes,
        kv_cache=cache_bytes(model, layout, formats, workload, requests),
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

    def fit(requests_per_rank: int) -> bool:
        concurrency = requests_per_rank * layout.dp
        return rank_memory(model, layout, formats, workload, concurrency).total <= capacity

    free = capacity - weight_bytes(model, layout, formats)
    if free <= 0 or not fit(1):
        return 0

    # Memory grows with the requests. Their caches alone limit them, which bounds the search for
    # the first number that does not fit.
    cache = _mean_request_bytes(model, layout, formats, workload)
    too_many = int(free // cache) + 1
    most = bisect_left(range(1, too_many), True, key=lambda requests: not fit(requests))
    return layout.dp * most


def expert_multiples(architecture: str) -> tuple[int, int]:
    """Return the multiples to which kernels for a GPU pad experts in MXFP4."""
    for prefix, multiples in EXPERT_MULTIPLES.items():
        if architecture.startswith(prefix):
            return multiples
    return MARLIN_MULTIPLES


@lru_cache(maxsize=4096)
def weight_bytes(model: ModelDescription, layout: Layout, formats: Formats) -> float:
    """Return the weight bytes per rank of the fullest stage."""
    draft_bytes = 0.0
    draft_model = model.draft_model
    if draft_model:
        formats_of_draft = draft_formats(draft_model, formats)
        draft_bytes = sum(_stage_bytes(draft_model, Layout(layout.tp), formats_of_draft, 0))
    stages = (_stage_bytes(model, layout, formats, stage) for stage in range(layout.pp))
    return draft_bytes + max(map(sum, stages))


def stage_layer_range(model: ModelDescription, layout: Layout, stage: int) -> tuple[int, int]:
    """Return a stage's first layer and the end of its range; the first stages have more layers."""
    layers_per_stage, n_larger = divmod(model.layers, layout.pp)
    start = stage * layers_per_stage + min(stage, n_larger)
    is_larger = stage < n_larger
    return start, start + layers_per_stage + is_larger


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
    """
    weights = model.weights()
    start, end = stage_layer_range(model, layout, stage)

    # Attention kinds alternate, so each stage has the model's mixture.
    share = (end - start) / model.layers

    # Layers with an MLP and layers with experts. Either they alternate, too, or the layers with an
    # MLP are the first ones.
    if model.without_mlp or model.alternating:
        mlp_layers = share * model.mlp_layers
        moe_layers = share * model.moe_layers
    else:
        mlp_layers = end - start
        if model.is_moe:
            mlp_layers = max(min(end, model.dense_layers) - start, 0)
        moe_layers = end - start - mlp_layers

    # Projections. A rank has at least one head of keys and values, whatever the number of ranks.
    shared_experts = moe_layers * weights.shared / max(model.moe_layers, 1)
    heads = weights.attention / layout.tp + weights.key_value / min(layout.tp, model.kv_heads)
    projections = share * (heads + weights.replicated) + shared_experts / layout.tp

    # MLPs and experts. A rank has whole experts, or a share of each, perhaps padded.
    mlps = mlp_layers * weights.mlp / max(model.mlp_layers, 1) / layout.tp
    rank_experts = math.ceil(model.experts / layout.moe_ep)
    if base_format(formats.moe) in PADDED_FORMATS:
        expert = model.padded_expert_parameters(layout.moe_tp)
    else:
        expert = model.expert_parameters / layout.moe_tp
    experts = moe_layers * rank_experts * expert

    # Every rank has all routers and norms, which are never quantized.
    router = moe_layers * model.hidden * model.experts
    unquantized = router + share * weights.norms

    # The first stage has the embedding, the last one the head. A tied head is the embedding again,
    # of which a model of several stages needs a copy.
    tables = 0
    if stage == 0:
        tables = weights.embedding + model.encoder_weights
    is_last = stage == layout.pp - 1
    has_embedding = model.tied_embeddings and stage == 0
    if is_last and not has_embedding:
        tables += weights.head or weights.embedding

    dense_bytes = (
        find_format(formats.weights).bytes * projections
        + find_format(formats.mlps(model)).bytes * mlps
        + find_format(formats.tables).bytes * unquantized
    )
    expert_bytes = find_format(formats.moe).bytes * experts
    table_bytes = find_format(formats.tables).bytes * tables / layout.tp
    return dense_bytes, expert_bytes, table_bytes


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
        if model.mla:
            # All ranks have the same latent vector, in the place of heads.
            values: float = model.mla.kv_lora_rank + model.mla.qk_rope
            width = values
        else:
            # Key and value have a scale each.
            values = math.ceil(heads.kv_heads / layout.tp) * heads.cached_width
            width = heads.cached_width / 2
        # A window limits the cache. Layers that attend to an image cache no text.
        caching_layers = layers if window else layers - model.cross_attention_layers
        cached_values = caching_layers * min(tokens, window or tokens) * values
        cache += cached_values * cache_format.bytes_per_value(width)
    if model.index:
        cache += model.indexed_layers * tokens * model.index.token_bytes
    if model.draft_model:
        cache += request_bytes(model.draft_model, Layout(layout.tp), formats, tokens)
    return share * (cache + _state_bytes(model, layout))


def cache_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, workload: Workload, requests: Any
) -> Any:
    """Return the cache bytes on one rank of the fullest stage, with ``requests`` in flight there.

    Each counts at its full length, because engines admit requests that fit when they end. If
    lengths differ, this is the mean over all moments, but at least the longest request's.
    ``requests`` may be an array.
    """
    largest = request_bytes(model, layout, formats, workload.last_context)
    mean = _mean_request_bytes(model, layout, formats, workload)
    at_least = np.minimum(requests, 1.0) * largest
    return np.maximum(requests * mean, at_least)


@lru_cache(maxsize=4096)
def _mean_request_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, workload: Workload
) -> float:
    """Return the mean cache bytes of a running request at its full length."""
    mix = workload.mix
    if mix is None:
        return request_bytes(model, layout, formats, workload.last_context)
    full_lengths = [isl + osl for isl, osl in zip(mix.isl, mix.osl, strict=True)]
    sizes = [request_bytes(model, layout, formats, tokens) for tokens in full_lengths]
    return float(np.dot(mix.running_shares, sizes))


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
        # Layers with a window may have other heads: the widest ones count.
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
