"""Exchanges between GPUs in training: tensors, pieces of sequences, experts, stages, replicas.

Within the GPUs that fast links join, times are those of measured collectives. Beyond them a ring
takes as long as its slowest link: that into a node, for which all ranks of the group in that node
use their network adapters together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from foretune.plan.cost.operator import Operator, collective
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.train.memory import StageParameters
from foretune.plan.train.recipe import Recipe
from foretune.plan.train.task import TrainingTask

BF16_BYTES = 2.0
"""Bytes of an activation or a weight."""
HOP_MS = 0.014
"""What a step of a ring, or a level of a tree, takes between nodes, whatever it carries: NCCL's own
estimate for its bandwidth-optimal protocol (``hwLat`` in ``src/graph/tuning.cc``)."""
RING_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""How often a rank sends its share of the message to each other."""


@dataclass(frozen=True)
class Exchange:
    """One kind of exchange that ranks run again and again.

    Attributes:
        kernel: which collective; ``send_recv`` between two.
        count: how often.
        bytes: of the whole message, as in ``problem.message_bytes``.
        ranks: that take part.
        stride: ranks between two neighbours of the group.
    """

    kernel: str
    count: float
    bytes: float
    ranks: int
    stride: int

    def fits_fast_domain(self, system: System) -> bool:
        """Return whether fast links join all of the group."""
        return self.ranks * self.stride <= system.fast_domain_gpus

    def operator(self) -> Operator:
        """Return the collective, to be timed where it was measured."""
        return collective(
            self.kernel, self.kernel, "prefill", self.count, self.bytes / BF16_BYTES, self.ranks
        )

    def network_ms(self, system: System) -> float:
        """Return milliseconds over the links between nodes, all times together."""
        ranks_per_domain = max(1, min(self.ranks, system.fast_domain_gpus // self.stride))
        hops = max(-(-self.ranks // ranks_per_domain) - 1, 1)
        if self.kernel in ("send_recv", "all_to_all"):
            # Everybody sends to everybody at once, and to those in the same node by faster links.
            share = 1.0 if self.kernel == "send_recv" else 1.0 - ranks_per_domain / self.ranks
            hops, gbps = 1, system.inter_node_gbps
        else:
            share = RING_PASSES[self.kernel] * (self.ranks - 1) / self.ranks
            gbps = min(system.intra_node_gbps, ranks_per_domain * system.inter_node_gbps)
        if self.kernel == "all_reduce":  # sums go up and down a tree
            hops = 2 * hops.bit_length()
        return self.count * (HOP_MS * hops + share * self.bytes / (gbps * 1e6))


@dataclass(frozen=True)
class LayerExchanges:
    """Exchanges of one micro-batch, were a rank to hold all layers.

    Attributes:
        tensor_forward, tensor_backward: between tensor-parallel ranks.
        experts, sequence: of tokens with their experts, of keys between pieces, both passes.
    """

    tensor_forward: tuple[Exchange, ...]
    tensor_backward: tuple[Exchange, ...]
    experts: tuple[Exchange, ...]
    sequence: tuple[Exchange, ...]


def layer_exchanges(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> LayerExchanges:
    """Return what layers exchange while they compute a micro-batch."""
    forward, backward = _tensor(model, recipe, task)
    return LayerExchanges(
        forward, backward, _experts(model, recipe, task), _sequence(model, recipe, task)
    )


def _tensor(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
    """Return sums of tensor-parallel shares: after attention and after MLPs, as far as split.

    Sequence-parallel ranks gather before and scatter after; the backward pass gathers its inputs
    once more for the gradients of weights.
    """
    tp = recipe.layout.tp
    if tp == 1:
        return (), ()
    sums = model.layers + model.mlp_layers + (model.moe_layers if model.shared_width else 0)
    size = BF16_BYTES * recipe.local_tokens(task) * model.hidden
    if not recipe.sequence_parallel:
        both = (Exchange("all_reduce", sums, size, tp, 1),)
        return both, both
    gather = Exchange("all_gather", sums, size, tp, 1)
    scatter = Exchange("reduce_scatter", sums, size, tp, 1)
    return (gather, scatter), (gather, scatter, gather)


def _experts(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> tuple[Exchange, ...]:
    """Return tokens sent to their experts and back, in both passes."""
    layout = recipe.layout
    if layout.ep == 1:
        return ()
    copies = min(model.experts_per_token, layout.ep)
    size = BF16_BYTES * recipe.local_tokens(task) / layout.tp * model.hidden * copies
    return (Exchange("all_to_all", 4 * model.moe_layers, size, layout.ep, 1),)


def _sequence(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> tuple[Exchange, ...]:
    """Return keys and values that go round, once forward and, with their gradients, twice back."""
    layout = recipe.layout
    if layout.cp == 1:
        return ()
    heads = max(model.kv_heads / layout.tp, 1.0)
    width = model.mla.kv_lora_rank if model.mla else 2 * heads * model.head_dim
    size = BF16_BYTES * recipe.micro_batch * task.sequence * width
    return (Exchange("all_gather", 3 * model.softmax_layers, size, layout.cp, layout.tp),)


def stage_exchange(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> Exchange | None:
    """Return what a stage passes on of one micro-batch, forward and back, chunk by chunk."""
    layout = recipe.layout
    if layout.pp == 1:
        return None
    size = BF16_BYTES * recipe.local_tokens(task) / layout.tp * model.hidden
    return Exchange("send_recv", 2 * layout.chunks, size, 2, layout.stage_ranks)


def replica_exchanges(
    recipe: Recipe, task: TrainingTask, stage_params: StageParameters, layers: int
) -> Iterator[Exchange]:
    """Give what replicas exchange per step: gradients, and weights where they split them.

    Without ZeRO gradients are summed everywhere; with it each rank sums its share, and weights are
    gathered afterwards, or with stage 3 before every use. Stages 2 and 3 keep no whole gradients,
    and sum them per micro-batch. All of it goes layer by layer.

    Args:
        recipe: of the training.
        task: what a step computes.
        stage_params: parameters of the stage.
        layers: of the stage.
    """
    layout, micro_batches = recipe.layout, recipe.micro_batches(task)
    summed = task.gradient_bytes
    for parameters, ranks, stride in (
        (stage_params.dense, layout.replicas, layout.tp),
        (stage_params.experts, layout.expert_replicas, layout.ep),
    ):
        if ranks == 1 or not parameters:
            continue
        if recipe.zero == 0:
            yield Exchange("all_reduce", layers, summed * parameters / layers, ranks, stride)
            continue
        sums = layers * (micro_batches if recipe.zero >= 2 else 1)
        uses = layers * (2 * micro_batches if recipe.zero >= 3 else 1)
        per_layer = parameters / layers
        yield Exchange("reduce_scatter", sums, summed * per_layer, ranks, stride)
        yield Exchange("all_gather", uses, BF16_BYTES * per_layer, ranks, stride)
