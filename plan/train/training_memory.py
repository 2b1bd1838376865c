"""Memory of training on the fullest GPU.

States follow Megatron-LM's mixed precision: bf16 weights, fp32 gradients, and Adam with fp32
weights and two moments: 18 bytes per parameter, ``6 + 12/d`` with ZeRO 1 over d replicas. With fp8,
weights are stored with their transpose, so they also take two bytes; inputs of products are fp8.
Activations follow Korthikanti et al. (arXiv:2205.05198, section 4), counted per tensor to cover
grouped heads, gated MLPs and experts.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from foretune.plan.cost.memory import GIB, Memory
from foretune.plan.cost.operator import BF16_BYTES
from foretune.plan.describe.description import ModelDescription
from foretune.plan.train.recipe import Recipe, TrainingLayout, TrainingTask, stage_layers

WEIGHT_BYTES = 2.0
OPTIMIZER_BYTES = 12.0
"""Bytes per parameter: its weight, and the optimizer's states including an fp32 weight."""
MANY_RANKS_BYTES = 392 * 2**20
"""Bytes of NCCL's buffers, from AIConfigurator's systems table (Apache-2.0)."""
GATHERED_LAYERS = 2
"""Layers gathered at a time with ZeRO 3: the current and the next."""
LOGIT_BYTES = 4.0 + 2.0
"""Bytes per logit: fp32 for the loss, and a bf16 gradient."""
INPUT_BYTES = {"bf16": 2.0, "fp8": 1.0}
"""Bytes per input value that a product keeps for its weight's gradient."""
USABLE_SHARE = 0.95
"""Share of GPU memory that training fills, as in published runs with their largest micro-batch."""


@dataclass(frozen=True)
class TrainingMemory(Memory):
    """Bytes on the fullest GPU in training.

    Attributes:
        weights, gradients, optimizer: states of its share of the parameters.
        activations: of all micro-batches in flight, at the peak.
        buffers: of exchanges between GPUs.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float


@dataclass(frozen=True)
class StageParameters:
    """Parameters of one rank of a stage, before any split over replicas."""

    dense: float  # all except routed experts, including the tables
    experts: float  # routed experts
    tables: float  # embedding and output projection within ``dense``

    @property
    def projections(self) -> float:
        """Parameters of the layers, without the tables."""
        return self.dense - self.tables + self.experts

    def held(self, layout: TrainingLayout, split: bool) -> float:
        """Return the parameters whose states a rank holds, whether split over replicas or not."""
        if not split:
            return self.dense + self.experts
        return self.dense / layout.replicas + self.experts / layout.expert_replicas


def training_memory(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> TrainingMemory:
    """Return the memory of the fullest GPU.

    The first stage has the most micro-batches in flight, another may have more layers, and the last
    has the logits.
    """
    stages = _extreme_stages(model, recipe.layout)
    found = [_stage_memory(model, recipe, task, stage) for stage in stages]
    return max(found, key=lambda memory: memory.total)


def _extreme_stages(model: ModelDescription, layout: TrainingLayout) -> set[int]:
    """Return the first and the last stage, and the first one with the most layers."""
    layers = stage_layers(model, layout)
    return {0, layers.index(max(layers)), layout.pp - 1}


def fullest_stage(model: ModelDescription, layout: TrainingLayout) -> int:
    """Return a stage with the most parameters."""

    def parameters(stage: int) -> float:
        return stage_parameters(model, layout, stage).held(layout, split=False)

    return max(sorted(_extreme_stages(model, layout)), key=parameters)


def offloaded_gib(model: ModelDescription, recipe: Recipe) -> float:
    """Return the maximum GiB of a GPU's optimizer states in host memory."""
    layout = recipe.layout
    fullest = stage_parameters(model, layout, fullest_stage(model, layout))
    return host_bytes(recipe, fullest.held(layout, recipe.zero >= 1)) / GIB


@lru_cache(2**14)
def stage_parameters(
    model: ModelDescription, layout: TrainingLayout, stage: int
) -> StageParameters:
    """Return the parameters of one rank of a stage."""
    weights = model.weights()
    tp = layout.tp

    # Layers: a stage has its share of those that ranks split, copy or hold whole.
    share = stage_layers(model, layout)[stage] / model.layers
    split = weights.attention + weights.mlp + weights.shared
    replicated = weights.replicated + weights.router + weights.norms
    key_value = weights.key_value / min(tp, model.kv_heads)
    layers = share * (split / tp + key_value + replicated)

    # Tables: the first and the last stage have one each.
    tables = weights.embedding if stage == 0 else 0
    if stage == layout.pp - 1:
        # A tied table is stored twice if its two uses are on different stages.
        tables += weights.head or (weights.embedding if layout.pp > 1 else 0)
    return StageParameters(layers + tables / tp, share * weights.experts / layout.ep, tables / tp)


def micro_batches_in_flight(layout: TrainingLayout, stage: int, micro_batches: int) -> float:
    """Return the micro-batches whose activations a stage keeps, in whole stages.

    With one forward, one backward (1F1B), a stage is ahead by the number of later stages.
    Interleaved stages start ``2 (pp - stage - 1) + (chunks - 1) pp`` chunks before their first
    backward pass. With zero bubble, every stage keeps as many as the first, or twice as many.
    """
    pp = layout.pp
    chunks = layout.chunks
    if layout.zero_bubble:
        return min(layout.zero_bubble * pp, micro_batches)
    if chunks == 1:
        return min(pp - stage, micro_batches)
    in_flight = (2 * (pp - stage - 1) + (chunks - 1) * pp + 1) / chunks
    return min(in_flight, micro_batches)


def layer_activations(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> float:
    """Return the bytes that an average layer keeps per micro-batch without recomputation."""
    return sum(_parts(model, recipe, task))


def stored_activations(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> float:
    """Return the bytes that an average layer keeps per micro-batch until its backward pass."""
    if recipe.recompute == "full":
        return BF16_BYTES * model.hidden * recipe.residual_tokens(task)
    parts = _parts(model, recipe, task)
    if recipe.recompute == "none":
        return sum(parts)
    recomputed = parts.scores if task.attention == "unfused" else parts.normed + parts.activated
    return sum(parts) - recomputed


def _stage_memory(
    model: ModelDescription, recipe: Recipe, task: TrainingTask, stage: int
) -> TrainingMemory:
    layout = recipe.layout
    zero = recipe.zero
    stage_params = stage_parameters(model, layout, stage)
    optimizer = stage_params.held(layout, zero >= 1)
    return TrainingMemory(
        weights=WEIGHT_BYTES * stage_params.held(layout, zero >= 3),
        gradients=task.gradient_bytes * stage_params.held(layout, zero >= 2),
        optimizer=OPTIMIZER_BYTES * optimizer - host_bytes(recipe, optimizer),
        activations=_activations(model, recipe, task, stage),
        buffers=_buffers(model, recipe, task, stage),
    )


def host_bytes(recipe: Recipe, parameters: float) -> float:
    """Return the bytes of optimizer states of ``parameters`` in host memory."""
    return min(OPTIMIZER_BYTES * parameters, recipe.host_gib * GIB) if recipe.offload else 0.0


def _activations(model: ModelDescription, recipe: Recipe, task: TrainingTask, stage: int) -> float:
    layout = recipe.layout
    layers = stage_layers(model, recipe.layout)[stage]
    in_flight = micro_batches_in_flight(layout, stage, recipe.micro_batches(task))
    stored, full = (f(model, recipe, task) for f in (stored_activations, layer_activations))
    total = in_flight * layers * stored + (full - stored)
    if stage == layout.pp - 1:
        tokens = recipe.local_tokens(task)
        residual_tokens = recipe.residual_tokens(task)
        total += (
            LOGIT_BYTES * tokens * model.vocab / layout.tp
            + 2 * BF16_BYTES * model.hidden * residual_tokens
        )
    return total


def _buffers(model: ModelDescription, recipe: Recipe, task: TrainingTask, stage: int) -> float:
    layout = recipe.layout
    if layout.gpus == 1:
        return 0.0
    stage_params = stage_parameters(model, layout, stage)
    layer = stage_params.projections / stage_layers(model, layout)[stage]
    # At most all remote parameters can be gathered.
    remote = stage_params.dense + stage_params.experts - stage_params.held(layout, True)
    gathered = WEIGHT_BYTES * min(GATHERED_LAYERS * layer, remote) if recipe.zero >= 3 else 0.0
    summed = task.gradient_bytes * min(layer, remote) if recipe.zero >= 2 else 0.0
    # Sent and received activations, in both directions.
    stage_io = (
        4 * BF16_BYTES * model.hidden * recipe.residual_tokens(task) if layout.pp > 1 else 0.0
    )
    return MANY_RANKS_BYTES + gathered + summed + stage_io


class _LayerParts(NamedTuple):
    """Bytes of an average layer and micro-batch."""

    residual: float  # inputs of norms, and dropout masks
    normed: float  # inputs of projections after norms
    activated: float  # inputs of the MLP's second projection
    scores: float  # of attention
    rest: float


def _parts(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> _LayerParts:
    tokens = recipe.local_tokens(task), recipe.residual_tokens(task)
    return _layer_parts(model, task, *tokens, recipe.layout.tp)


@lru_cache(2**12)
def _layer_parts(
    model: ModelDescription, task: TrainingTask, tokens: float, residual_tokens: float, tp: int
) -> _LayerParts:
    layers = model.layers
    stored = INPUT_BYTES[task.precision]
    routed = tokens / tp * model.experts_per_token * model.moe_layers / layers
    mlp = model.mlp_layers * model.intermediate + model.moe_layers * model.shared_width
    inner = tokens / tp * mlp / layers + routed * model.moe_intermediate
    masks = 2.0 * model.hidden if task.attention == "unfused" else 0.0
    first = (model.mlp_matrices - 1) * BF16_BYTES * inner
    experts = 2 * BF16_BYTES * model.hidden * routed
    attention = BF16_BYTES * tokens * _attention_width(model, tp)
    return _LayerParts(
        residual=(2 * BF16_BYTES * model.hidden + masks) * residual_tokens,
        normed=2 * stored * model.hidden * residual_tokens,
        activated=stored * inner,
        scores=_scores(model, task, tokens, tp),
        rest=first + experts + attention,
    )


def _scores(model: ModelDescription, task: TrainingTask, tokens: float, tp: int) -> float:
    """Return the bytes attention keeps per layer: scores, softmax and mask, or only row sums."""
    share = model.softmax_layers / model.layers
    per_head = 5.0 * task.sequence if task.attention == "unfused" else 4.0
    return share * tokens * model.heads / tp * per_head


def _attention_width(model: ModelDescription, tp: int) -> float:
    """Return numbers per token of an average layer: queries, keys, values and outputs."""
    if mla := model.mla:
        latent = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope
        heads = model.heads / tp * (2 * (mla.qk_nope + mla.qk_rope) + 2 * mla.v_head)
        return latent + heads
    queries = model.heads * (3 if model.gated_attention else 2) / tp
    width = (queries + 2 * max(model.kv_heads / tp, 1.0)) * model.head_dim
    if linear := model.linear:
        values = linear.value_heads * linear.value_dim
        state = (linear.channels + 3 * values) / tp
        width = (model.softmax_layers * width + linear.layers * state) / model.layers
    return width
