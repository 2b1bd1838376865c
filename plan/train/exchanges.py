"""Exchanges between the ranks of a training run.

Tensor, sequence, expert and pipeline ranks, and replicas exchange data. Within fast links, times
are those of measured collectives; beyond them, those of `foretune.plan.cost.network`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from foretune.plan.cost.network import network_ms
from foretune.plan.cost.operator import BF16_BYTES, Operator, collective
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.train.recipe import Recipe, TrainingTask
from foretune.plan.train.training_memory import StageParameters


@dataclass(frozen=True)
class Exchange:
    """A repeated exchange."""

    kernel: str  # the collective; ``send_recv`` is between two ranks
    count: float  # number of runs
    bytes: float  # size of the whole message, as in ``problem.message_bytes``
    ranks: int  # participating ranks
    stride: int  # rank distance between neighbors of the group

    def fits_fast_domain(self, system: System) -> bool:
        """Return whether fast links join the whole group."""
        return self.ranks * self.stride <= system.fast_domain_gpus

    def operator(self) -> Operator:
        """Return the collective as an operator."""
        return collective(
            self.kernel,
            self.kernel,
            phase="prefill",
            count=self.count,
            elements=self.bytes / BF16_BYTES,
            devices=self.ranks,
        )

    def network_ms(self, system: System) -> float:
        """Return the milliseconds of all runs over the links between nodes."""
        once_ms = network_ms(self.kernel, self.bytes, self.ranks, self.stride, system)
        return self.count * once_ms


class LayerExchanges(NamedTuple):
    """Exchanges of one micro-batch in all layers."""

    tensor_forward: tuple[Exchange, ...]  # between tensor-parallel ranks
    tensor_backward: tuple[Exchange, ...]
    experts: tuple[Exchange, ...]  # of tokens with their experts, in both passes
    sequence: tuple[Exchange, ...]  # of keys between pieces, in both passes


def layer_exchanges(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> LayerExchanges:
    """Return the exchanges of all layers in a micro-batch.

    Tokens are sent to their experts in both passes. Keys and values are sent once in the forward
    pass, and twice (with gradients) in the backward pass.
    """
    forward, backward = _tensor(model, recipe, task)
    return LayerExchanges(
        tensor_forward=forward,
        tensor_backward=backward,
        experts=_token_exchanges(model, recipe, task),
        sequence=_key_exchanges(model, recipe, task),
    )


def _token_exchanges(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> tuple[Exchange, ...]:
    """Return the exchanges of tokens with their experts: there and back, in both passes."""
    layout = recipe.layout
    if layout.ep == 1:
        return ()
    copies = min(model.experts_per_token, layout.ep)
    size = BF16_BYTES * recipe.local_tokens(task) / layout.tp * model.hidden * copies
    exchange = Exchange(
        kernel="all_to_all", count=4 * model.moe_layers, bytes=size, ranks=layout.ep, stride=1
    )
    return (exchange,)


def _key_exchanges(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> tuple[Exchange, ...]:
    """Return the exchanges of keys and values between the pieces of a sequence."""
    layout = recipe.layout
    if layout.cp == 1:
        return ()
    heads = max(model.kv_heads / layout.tp, 1.0)
    width = model.mla.kv_lora_rank if model.mla else 2 * heads * model.head_dim
    size = BF16_BYTES * recipe.micro_batch * task.sequence * width
    exchange = Exchange(
        kernel="all_gather",
        count=3 * model.softmax_layers,
        bytes=size,
        ranks=layout.cp,
        stride=layout.tp,
    )
    return (exchange,)


def _tensor(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
    """Return the sums of tensor-parallel shares, after attention and MLPs, in both passes."""
    tp = recipe.layout.tp
    if tp == 1:
        return (), ()
    sums = model.layers + model.mlp_layers + (model.moe_layers if model.shared_width else 0)
    size = BF16_BYTES * recipe.local_tokens(task) * model.hidden
    if not recipe.sequence_parallel:
        both = (Exchange("all_reduce", sums, size, tp, 1),)
        return both, both
    # Ranks gather before and scatter after; gradients of weights need their inputs gathered again.
    gather = Exchange("all_gather", sums, size, tp, 1)
    scatter = Exchange("reduce_scatter", sums, size, tp, 1)
    return (gather, scatter), (gather, scatter, gather)


def stage_exchange(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> Exchange | None:
    """Return the data that a stage sends per micro-batch, forward and back, chunk by chunk."""
    layout = recipe.layout
    if layout.pp == 1:
        return None
    size = BF16_BYTES * recipe.local_tokens(task) / layout.tp * model.hidden
    return Exchange("send_recv", 2 * layout.chunks, size, 2, layout.stage_ranks)


def replica_exchanges(
    recipe: Recipe, task: TrainingTask, stage_params: StageParameters, layers: int
) -> Iterator[Exchange]:
    """Yield the replicas' exchanges per step: gradients, and weights if split.

    Without ZeRO, all ranks sum the gradients. With it, each rank sums its share, and weights are
    gathered afterwards, with stage 3 before every use. Stages 2 and 3 sum gradients per
    micro-batch. All exchanges go layer by layer.
    """
    layout = recipe.layout
    micro_batches = recipe.micro_batches(task)
    gradient_bytes = task.gradient_bytes
    for parameters, ranks, stride in (
        (stage_params.dense, layout.replicas, layout.tp),
        (stage_params.experts, layout.expert_replicas, layout.ep),
    ):
        if ranks == 1 or not parameters:
            continue
        if recipe.zero == 0:
            size = gradient_bytes * parameters / layers
            yield Exchange("all_reduce", count=layers, bytes=size, ranks=ranks, stride=stride)
            continue
        per_layer = parameters / layers
        sums = layers * micro_batches if recipe.zero >= 2 else layers
        yield Exchange(
            "reduce_scatter",
            count=sums,
            bytes=gradient_bytes * per_layer,
            ranks=ranks,
            stride=stride,
        )
        uses = layers * 2 * micro_batches if recipe.zero >= 3 else layers
        yield Exchange(
            "all_gather", count=uses, bytes=BF16_BYTES * per_layer, ranks=ranks, stride=stride
        )
