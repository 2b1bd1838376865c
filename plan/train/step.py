"""Steps of training: how long recipes take, from operators, exchanges, schedule and optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pandas as pd

from foretune.plan.cost.host_link import transfer_ms
from foretune.plan.cost.steps import StepClock
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.train.exchanges import (
    Exchange,
    LayerExchanges,
    layer_exchanges,
    replica_exchanges,
    stage_exchange,
)
from foretune.plan.train.flops import hardware_flops, model_flops, peak_flops
from foretune.plan.train.memory import STATES, StageParameters, host_bytes, stage_parameters
from foretune.plan.train.operators import MicroBatch, Work, micro_batch_operators
from foretune.plan.train.recipe import Recipe, stage_layers
from foretune.plan.train.schedule import pipeline_time
from foretune.plan.train.task import TrainingTask

ADAM_BYTES = 34.0
"""Bytes per parameter that Adam moves: reads gradient (twice, first for its norm), weight and two
moments in fp32, writes the latter three and a bf16 weight."""
STREAMED = 0.8
"""Share of a memory's bandwidth that streaming kernels reach."""
HOST_GBPS = 51.2
"""Host memory bandwidth per GPU: two sockets of eight DDR4-3200 channels, shared by eight."""
GRADIENT_BYTES, WEIGHT_BYTES = 4.0, 2.0
"""Bytes per parameter over the link when the host updates it: gradient there, weight back."""


@dataclass(frozen=True)
class Calibration:
    """What no table of single operators says, learned from published steps of training.

    Attributes:
        slower: time of a rank's operators in training over that of their tables, which replay
            each alone: launches, gaps, clocks under sustained load.
        exposed: share of the exchanges between replicas and stages that nothing hides.
    """

    slower: float
    exposed: float


EXPOSED = 0.26
SOFTWARE = {
    "megatron": Calibration(slower=1.04, exposed=EXPOSED),
    "pytorch": Calibration(slower=1.12, exposed=EXPOSED),
}
"""Kind of software -> its constants: fused kernels as in Megatron-LM, ``slower`` fitted on the runs
of arXiv:2104.04473 (table 1); PyTorch's own with FSDP, on MosaicML's on A100s of 80 GB. ``exposed``
is that of all runs of ``benchmarks/plan_training.py``, which prints how others come out."""


@dataclass(frozen=True)
class _MicroBatchTimes:
    """Milliseconds of one micro-batch, all layers together."""

    forward: float
    backward: float
    again: float
    first: float
    last: float
    tensor_forward: float
    tensor_backward: float
    experts: float
    sequence: float


@dataclass(frozen=True)
class TimedSteps:
    """Recipes whose operators and exchanges were looked up: all that is left is to put together.

    Attributes:
        model, system, recipes, task: as in `predict_steps`.
        micro_batches: of every kind that recipes have.
        replicas: milliseconds that replicas exchange per step and recipe, were nothing hidden.
    """

    model: ModelDescription
    system: System
    recipes: Sequence[Recipe]
    task: TrainingTask
    micro_batches: Mapping[tuple[object, ...], _MicroBatchTimes]
    replicas: Sequence[float]

    @classmethod
    def look_up(
        cls,
        model: ModelDescription,
        system: System,
        recipes: Sequence[Recipe],
        task: TrainingTask,
        clock: StepClock,
    ) -> Self:
        """Return recipes with the times of their operators and exchanges."""
        times = _micro_batches(model, system, recipes, task, clock)
        replicas = _replica_times(model, system, recipes, task, clock)
        return cls(model, system, recipes, task, times, replicas)

    def parts(self, calibration: Calibration) -> list[dict[str, float]]:
        """Return the parts of each recipe's step, milliseconds."""
        return [
            _step(
                self.model, self.system, recipe, self.task, self.micro_batches[_key(recipe)],
                replicas, calibration,
            )
            for recipe, replicas in zip(self.recipes, self.replicas, strict=True)
        ]  # fmt: skip


def predict_steps(
    model: ModelDescription,
    system: System,
    recipes: Sequence[Recipe],
    task: TrainingTask,
    clock: StepClock,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Return how long one optimizer step takes with each recipe.

    Columns, in milliseconds: ``compute_ms``, ``recompute_ms``, ``communication_ms`` (within the
    passes), ``bubble_ms``, ``replicas_ms`` (what is not hidden of exchanges between them),
    ``optimizer_ms``, and their sum ``step_ms``; further ``bubble`` (a share of the step),
    ``tokens_per_s_per_gpu``, ``mfu`` and ``hfu`` (of the peak rate of the task's precision).

    Args:
        model: what is trained.
        system: on which GPUs.
        recipes: how; possible ones.
        task: what a step computes.
        clock: says how long operators take on ``system``.
        calibration: None takes that of Megatron-LM.
    """
    timed = TimedSteps.look_up(model, system, recipes, task, clock)
    table = pd.DataFrame(timed.parts(calibration or SOFTWARE["megatron"]))
    seconds = table["step_ms"] / 1e3
    gpus = pd.Series([recipe.layout.gpus for recipe in recipes])
    peak = peak_flops(system.device, task) * gpus * seconds
    executed = pd.Series([hardware_flops(model, task, r.recompute) for r in recipes])
    return table.assign(
        bubble=table["bubble_ms"] / table["step_ms"],
        tokens_per_s_per_gpu=task.tokens / seconds / gpus,
        mfu=model_flops(model, task) / peak,
        hfu=executed / peak,
    )


def _step(
    model: ModelDescription,
    system: System,
    recipe: Recipe,
    task: TrainingTask,
    times: _MicroBatchTimes,
    replicas: float,
    fitted: Calibration,
) -> dict[str, float]:
    """Return the parts of one step."""
    layout, count = recipe.layout, recipe.micro_batches(task)
    share = stage_layers(model, layout) / model.layers
    repeated = {"none": 0.0, "selective": times.again, "full": times.forward}[recipe.recompute]
    layers = fitted.slower * share * (times.forward + times.backward)
    again = fitted.slower * share * repeated
    passed = fitted.exposed * _passing_ms(model, system, recipe, task)
    exchanged = share * _exchanged(recipe, task, times, fitted) + passed
    stages = [layers + again + exchanged] * layout.pp
    first, last = fitted.slower * times.first, fitted.slower * times.last
    stages[0] += first
    stages[-1] += last
    pipeline = pipeline_time(stages, count, layout.chunks)
    busy = count * sum(stages) / layout.pp
    ends = count * (first + last) / layout.pp
    parts = {
        "compute_ms": count * layers + ends,
        "recompute_ms": count * again,
        "communication_ms": busy - count * (layers + again) - ends,
        "bubble_ms": pipeline.idle,
        "replicas_ms": _not_hidden(recipe, replicas, fitted, layers, count),
        "optimizer_ms": _optimizer_ms(
            system, recipe, stage_parameters(model, layout, 0), layers * 2 / 3
        ),
    }
    return {**parts, "step_ms": sum(parts.values())}


def _exchanged(
    recipe: Recipe, task: TrainingTask, times: _MicroBatchTimes, fitted: Calibration
) -> float:
    """Return what all layers wait for exchanges of one micro-batch.

    Projections wait for tensor-parallel sums, unless they overlap, and experts for their tokens;
    keys of other pieces arrive while those at hand are attended to.
    """
    repeated = times.tensor_forward if recipe.recompute == "full" else 0.0
    sums = times.tensor_forward + times.tensor_backward + repeated
    waits = sums * (fitted.exposed if task.overlap else 1.0)
    tokens = times.experts * (1.5 if recipe.recompute == "full" else 1.0)
    return waits + tokens + fitted.exposed * times.sequence


def _passing_ms(
    model: ModelDescription, system: System, recipe: Recipe, task: TrainingTask
) -> float:
    """Return what passing on a micro-batch to the next stage and back takes."""
    exchange = stage_exchange(model, recipe, task)
    if exchange is None:
        return 0.0
    if exchange.is_near(system):
        system = replace(system, inter_node_gbps=system.intra_node_gbps)
    return exchange.far_ms(system)


def _not_hidden(
    recipe: Recipe, exchanged: float, fitted: Calibration, layers: float, count: int
) -> float:
    """Return what a step waits for exchanges between replicas.

    They run beside the passes that need or produce them: all with ZeRO 3, backward passes with
    stage 2, else the first and the last micro-batch.
    """
    beside = {3: count * layers, 2: count * layers * 2 / 3}.get(recipe.zero, layers)
    hidden = min((1.0 - fitted.exposed) * exchanged, beside)
    return exchanged - hidden


def _optimizer_ms(
    system: System, recipe: Recipe, own: StageParameters, backward_ms: float
) -> float:
    """Return what a step waits for the update of a rank's parameters.

    As in ZeRO-Offload (arXiv:2101.06840, section 4): gradients go to the host beside the backward
    pass of the last micro-batch, and weights come back while the host updates others. What the GPU
    updates itself it updates afterwards.

    Args:
        system: on which GPUs.
        recipe: of the training.
        own: parameters of the stage.
        backward_ms: of the last micro-batch's layers.
    """
    layout, dense, experts = recipe.layout, own.dense, own.experts
    if recipe.zero:
        dense, experts = dense / layout.replicas, experts / layout.expert_replicas
    parameters = dense + experts
    there = host_bytes(recipe, parameters) / STATES
    bandwidth = system.device.specs["memory_gbps"]
    here_ms = (parameters - there) * ADAM_BYTES / (STREAMED * bandwidth * 1e6)
    if not there:
        return here_ms
    sent_ms = transfer_ms(system, GRADIENT_BYTES * there)
    update_ms = there * ADAM_BYTES / (STREAMED * HOST_GBPS * 1e6)
    back_ms = transfer_ms(system, WEIGHT_BYTES * there)
    return here_ms + max(sent_ms - backward_ms, 0.0) + max(update_ms, back_ms)


def _key(recipe: Recipe) -> tuple[object, ...]:
    """Return what of a recipe decides about one micro-batch."""
    layout = recipe.layout
    return layout.tp, layout.cp, layout.ep, recipe.micro_batch, recipe.sequence_parallel


def _micro_batches(
    model: ModelDescription,
    system: System,
    recipes: Sequence[Recipe],
    task: TrainingTask,
    clock: StepClock,
) -> Mapping[tuple[object, ...], _MicroBatchTimes]:
    """Return the times of every kind of micro-batch that recipes have, asked for at once."""
    kinds = {_key(recipe): recipe for recipe in recipes}
    works: list[Work] = []
    groups: list[tuple[Exchange, ...]] = []
    for recipe in kinds.values():
        computed = micro_batch_operators(model, recipe, task)
        exchanged = layer_exchanges(model, recipe, task)
        works += [getattr(computed, name) for name in MicroBatch.__dataclass_fields__]
        groups += [getattr(exchanged, name) for name in LayerExchanges.__dataclass_fields__]
    own, others = len(MicroBatch.__dataclass_fields__), len(LayerExchanges.__dataclass_fields__)
    ms = clock.times(works)["total"].to_numpy()
    exchanged_ms = _exchange_times(groups, system, clock)
    return {
        key: _MicroBatchTimes(
            *ms[own * i : own * (i + 1)], *exchanged_ms[others * i : others * (i + 1)]
        )
        for i, key in enumerate(kinds)
    }


def _replica_times(
    model: ModelDescription,
    system: System,
    recipes: Sequence[Recipe],
    task: TrainingTask,
    clock: StepClock,
) -> list[float]:
    """Return what replicas exchange in a step of each recipe, were nothing hidden."""
    groups = [
        tuple(
            replica_exchanges(
                recipe, task, stage_parameters(model, recipe.layout, 0),
                stage_layers(model, recipe.layout),
            )
        )
        for recipe in recipes
    ]  # fmt: skip
    return _exchange_times(groups, system, clock)


def _exchange_times(
    groups: Sequence[tuple[Exchange, ...]], system: System, clock: StepClock
) -> list[float]:
    """Return milliseconds of each group of exchanges."""
    near = [tuple(e.operator() for e in group if e.is_near(system)) for group in groups]
    far = [sum(e.far_ms(system) for e in group if not e.is_near(system)) for group in groups]
    ms = clock.times([Work(operators) for operators in near])["total"]
    return [float(a) + b for a, b in zip(ms, far, strict=True)]
