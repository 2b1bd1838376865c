"""Training step times from operators, exchanges, schedule and optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.device import peak_rate
from foretune.plan.cost.operator import Operator
from foretune.plan.cost.steps import StepTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.train.exchanges import (
    Exchange,
    LayerExchanges,
    layer_exchanges,
    replica_exchanges,
    stage_exchange,
)
from foretune.plan.train.recipe import Recipe, Recompute, TrainingLayout, TrainingTask, stage_layers
from foretune.plan.train.training_memory import (
    OPTIMIZER_BYTES,
    fullest_stage,
    host_bytes,
    stage_parameters,
)
from foretune.plan.train.training_operators import MicroBatch, micro_batch_operators

ADAM_BYTES = 34.0
"""Bytes per parameter that Adam moves: it reads the gradient (twice, first for its norm), weight
and two moments in fp32, and writes weight and moments and a bf16 weight."""
STREAMING_EFFICIENCY = 0.8
"""Share of memory bandwidth that streaming kernels reach."""
HOST_GBPS = 51.2
"""Host memory bandwidth per GPU: two sockets with eight DDR4-3200 channels, shared by eight
GPUs."""
GRADIENT_BYTES = 4.0
"""Bytes per parameter that go to the host if it updates the parameter: the gradient."""
WEIGHT_BYTES = 2.0
"""Bytes per parameter that come back: the weight."""
EXPOSED = 0.26


@dataclass(frozen=True)
class Calibration:
    """Constants fitted to published training runs.

    Attributes:
        slowdown: operator time in training over that in tables, which replay single operators. It
            covers launches, gaps, and clocks under sustained load.
        exposed: share of the exchanges between replicas and stages that is not hidden.
    """

    slowdown: float
    exposed: float


SOFTWARE = {
    "megatron": Calibration(slowdown=1.04, exposed=EXPOSED),
    "pytorch": Calibration(slowdown=1.12, exposed=EXPOSED),
}
"""Software -> calibration.

Megatron-LM's slowdown is fitted to arXiv:2104.04473 (table 1), that of PyTorch's FSDP to MosaicML's
runs on A100s of 80 GB. ``exposed`` is fitted to all runs of ``benchmarks/plan_training.py``, which
prints the errors of others.
"""


class TimedSteps:
    """Recipes with the times of their operators and exchanges."""

    def __init__(
        self,
        model: ModelDescription,
        system: System,
        recipes: Sequence[Recipe],
        task: TrainingTask,
        timer: StepTimer,
    ) -> None:
        self.model = model
        self.system = system
        self.recipes = recipes
        self.task = task
        self._timer = timer
        self._micro_batches = self._look_up_micro_batches()
        self._replicas_ms = self._exchange_times([self._replica_exchanges(r) for r in recipes])
        """Each recipe's milliseconds of replica exchanges per step, without overlap."""

    def _replica_exchanges(self, recipe: Recipe) -> tuple[Exchange, ...]:
        layout = recipe.layout
        stage = fullest_stage(self.model, layout)
        parameters = stage_parameters(self.model, layout, stage)
        layers = stage_layers(self.model, layout)[stage]
        return tuple(replica_exchanges(recipe, self.task, parameters, layers))

    def _look_up_micro_batches(self) -> dict[tuple[object, ...], dict[str, float]]:
        """Return the milliseconds of every kind of micro-batch in all layers, in one look-up."""
        recipe_of_key = {_micro_batch_key(recipe): recipe for recipe in self.recipes}
        works: list[list[Operator]] = []
        groups: list[tuple[Exchange, ...]] = []
        for recipe in recipe_of_key.values():
            works += micro_batch_operators(self.model, recipe, self.task)
            groups += layer_exchanges(self.model, recipe, self.task)

        # One row per kind of micro-batch, one column per list of operators or exchanges.
        computed_ms = self._timer.times(works)["total"].to_numpy()
        computed_rows = computed_ms.reshape(len(recipe_of_key), -1)
        exchanged_rows = np.reshape(self._exchange_times(groups), (len(recipe_of_key), -1))
        names = (*MicroBatch._fields, *LayerExchanges._fields)
        rows = np.hstack([computed_rows, exchanged_rows])
        return {
            key: dict(zip(names, row, strict=True))
            for key, row in zip(recipe_of_key, rows, strict=True)
        }

    def _exchange_times(self, groups: Sequence[tuple[Exchange, ...]]) -> list[float]:
        """Return the milliseconds of each group of exchanges."""
        system = self.system
        fast_operators: list[list[Operator]] = []
        network_ms: list[float] = []
        for group in groups:
            fast = [each for each in group if each.fits_fast_domain(system)]
            slow = [each for each in group if not each.fits_fast_domain(system)]
            fast_operators.append([each.operator() for each in fast])
            network_ms.append(sum(each.network_ms(system) for each in slow))
        fast_ms = self._timer.times(fast_operators)["total"]
        return [float(fast) + slow for fast, slow in zip(fast_ms, network_ms, strict=True)]

    def parts(self, calibration: Calibration) -> list[dict[str, float]]:
        """Return the parts of each recipe's step in milliseconds."""
        return [
            self._step(recipe, replicas, calibration)
            for recipe, replicas in zip(self.recipes, self._replicas_ms, strict=True)
        ]

    def _step(self, recipe: Recipe, replicas: float, calibration: Calibration) -> dict[str, float]:
        """Return the parts of one step; ``replicas`` are its milliseconds of replica exchanges."""
        model = self.model
        task = self.task
        layout = recipe.layout
        count = recipe.micro_batches(task)
        times = self._micro_batches[_micro_batch_key(recipe)]

        # 1. One micro-batch in all layers: passes, recomputation, and waits for exchanges.
        repeated = {"none": 0.0, "selective": times["recomputed"], "full": times["forward"]}
        layers_ms = calibration.slowdown * (times["forward"] + times["backward"])
        recompute_ms = calibration.slowdown * repeated[recipe.recompute]
        exchange_ms = _exposed_layer_ms(recipe, task, times, calibration)
        hop_ms = calibration.exposed * _hop_ms(model, self.system, recipe, task)

        # 2. Its stages. The first one has the embedding, the last one the output projection.
        shares = [layers / model.layers for layers in stage_layers(model, layout)]
        stages = [share * (layers_ms + recompute_ms + exchange_ms) + hop_ms for share in shares]
        first_ms = calibration.slowdown * times["first"]
        last_ms = calibration.slowdown * times["last"]
        stages[0] += first_ms
        stages[-1] += last_ms
        filling_ms = _filling_ms(layout, calibration.slowdown * times["weights"] / layout.pp)

        # 3. Replicas exchange while the passes run that use or produce it: all with ZeRO 3,
        # backward passes with stage 2, else the first and last micro-batch.
        fullest_ms = max(shares) * layers_ms
        overlap_ms = fullest_ms
        if recipe.zero == 3:
            overlap_ms = count * fullest_ms
        elif recipe.zero == 2:
            overlap_ms = count * fullest_ms * 2 / 3
        hidden_ms = min((1.0 - calibration.exposed) * replicas, overlap_ms)

        # 4. The optimizer updates a rank's parameters after the last backward pass.
        fullest = stage_parameters(model, layout, fullest_stage(model, layout))
        updated = fullest.held(layout, split=recipe.zero >= 1)
        backward_ms = fullest_ms * 2 / 3
        passes_per_stage = count / layout.pp
        parts = {
            "compute_ms": passes_per_stage * (layers_ms + first_ms + last_ms),
            "recompute_ms": passes_per_stage * recompute_ms,
            "communication_ms": passes_per_stage * exchange_ms + count * hop_ms,
            "bubble_ms": pipeline_idle_ms(stages, count, layout.chunks, filling_ms),
            "replicas_ms": replicas - hidden_ms,
            "optimizer_ms": _optimizer_ms(self.system, recipe, updated, backward_ms),
        }
        return {**parts, "step_ms": sum(parts.values())}


def predict_steps(
    model: ModelDescription,
    system: System,
    recipes: Sequence[Recipe],
    task: TrainingTask,
    timer: StepTimer,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Return the time of one optimizer step with each recipe.

    Columns in milliseconds: ``compute_ms``, ``recompute_ms``, ``communication_ms`` (within the
    passes), ``bubble_ms``, ``replicas_ms`` (exposed exchanges between replicas), ``optimizer_ms``,
    and their sum ``step_ms``. Further: ``bubble`` (a share of the step), ``tokens_per_s_per_gpu``,
    ``mfu`` and ``hfu`` (relative to the peak rate of the task's precision). Without a
    ``calibration``, Megatron-LM's is used.
    """
    timed = TimedSteps(model, system, recipes, task, timer)
    table = pd.DataFrame(timed.parts(calibration or SOFTWARE["megatron"]))
    seconds = table["step_ms"] / 1e3
    gpus = pd.Series([recipe.layout.gpus for recipe in recipes])
    peak = 1e9 * float(peak_rate(task.precision, system.device.specs)) * gpus * seconds
    executed = pd.Series([hardware_flops(model, task, r.recompute) for r in recipes])
    return table.assign(
        bubble=table["bubble_ms"] / table["step_ms"],
        tokens_per_s_per_gpu=task.tokens / seconds / gpus,
        mfu=model_flops(model, task) / peak,
        hfu=executed / peak,
    )


def _exposed_layer_ms(
    recipe: Recipe, task: TrainingTask, times: Mapping[str, float], calibration: Calibration
) -> float:
    """Return how long all layers wait for the exchanges of one micro-batch."""
    # Keys of other pieces arrive while attention computes.
    repeated = times["tensor_forward"] if recipe.recompute == "full" else 0.0
    sums = times["tensor_forward"] + times["tensor_backward"] + repeated
    waits = sums * (calibration.exposed if task.overlap else 1.0)
    tokens = times["experts"] * (1.5 if recipe.recompute == "full" else 1.0)
    return waits + tokens + calibration.exposed * times["sequence"]


def _hop_ms(model: ModelDescription, system: System, recipe: Recipe, task: TrainingTask) -> float:
    """Return the milliseconds of sending a micro-batch to the next stage and back."""
    sent = stage_exchange(model, recipe, task)
    if sent is None:
        return 0.0
    if sent.fits_fast_domain(system):
        system = replace(system, inter_node_gbps=system.intra_node_gbps)
    return sent.network_ms(system)


def _optimizer_ms(system: System, recipe: Recipe, parameters: float, backward_ms: float) -> float:
    """Return how long a step waits for the update of a GPU's ``parameters``.

    As in ZeRO-Offload (arXiv:2101.06840, section 4), gradients go to the host during the last
    micro-batch's backward pass (``backward_ms``), and weights return while the host updates others.
    The GPU updates its share afterwards.
    """
    offloaded = host_bytes(recipe, parameters) / OPTIMIZER_BYTES
    bandwidth = system.device.specs["memory_gbps"]
    gpu_ms = (parameters - offloaded) * ADAM_BYTES / (STREAMING_EFFICIENCY * bandwidth * 1e6)
    if not offloaded:
        return gpu_ms
    sent_ms = system.transfer_ms(GRADIENT_BYTES * offloaded)
    update_ms = offloaded * ADAM_BYTES / (STREAMING_EFFICIENCY * HOST_GBPS * 1e6)
    returned_ms = system.transfer_ms(WEIGHT_BYTES * offloaded)
    return gpu_ms + max(sent_ms - backward_ms, 0.0) + max(update_ms, returned_ms)


def _micro_batch_key(recipe: Recipe) -> tuple[object, ...]:
    """Return the part of a recipe that determines a micro-batch."""
    layout = recipe.layout
    return layout.tp, layout.cp, layout.ep, recipe.micro_batch, recipe.sequence_parallel


def _filling_ms(layout: TrainingLayout, weights_ms: float) -> float:
    """Return how much of the bubble per other stage is filled with gradients of weights.

    With passes of ``f`` forward, ``b`` for inputs and ``w`` for weights, one forward, one backward
    waits ``f + b + w`` per other stage; zero bubble ``f + b - w``, or ``f + b - 2w`` with twice the
    activations (Qi et al., arXiv:2401.10241, table 2).
    """
    return (layout.zero_bubble + 1) * weights_ms if layout.zero_bubble else 0.0


def pipeline_idle_ms(
    stages: Sequence[float], micro_batches: int, chunks: int = 1, filling: float = 0.0
) -> float:
    """Return the milliseconds that the average stage waits for others in a step.

    With ``m`` micro-batches, ``p`` stages of equal time ``t`` take ``(m + (p - 1) / v) t`` with
    ``v`` chunks of layers per stage: a bubble of ``(p - 1) / (v m)`` (Narayanan et al.,
    arXiv:2104.04473). In general, the slowest stage is busy once started. The other stages' shares
    for the first micro-batch, divided by ``chunks``, come before and after, less ``filling``
    milliseconds each of other work. ``stages`` has each stage's forward and backward milliseconds.
    """
    slowest = max(stages)
    pass_ms = sum(stages)
    waits = max((pass_ms - slowest) / chunks - (len(stages) - 1) * filling, 0.0)
    total = micro_batches * slowest + waits
    return total - micro_batches * pass_ms / len(stages)


def model_flops(model: ModelDescription, task: TrainingTask) -> float:
    """Return the FLOPs of one step on all GPUs, without recomputation.

    Six per weight and token (two forward, four backward), plus attention's two products over all
    keys, masked or not (PaLM, arXiv:2204.02311, appendix B; Narayanan et al., arXiv:2104.04473).
    """
    head = 2.0 * model.hidden * model.vocab
    return 3.0 * task.tokens * (_projections(model) + _attention(model, task) + head)


def hardware_flops(model: ModelDescription, task: TrainingTask, recompute: Recompute) -> float:
    """Return `model_flops` plus recomputation."""
    recomputed = 0.0
    if recompute == "full":
        recomputed = _projections(model) + _attention(model, task)
    elif recompute == "selective" and task.attention == "unfused":
        recomputed = _attention(model, task)
    return model_flops(model, task) + task.tokens * recomputed


def _projections(model: ModelDescription) -> float:
    """Return forward FLOPs per token of projections, without the output projection."""
    weights = model.weights()
    tables = weights.embedding if model.tied_embeddings else weights.head
    return 2.0 * (model.active_parameters() - tables)


def _attention(model: ModelDescription, task: TrainingTask) -> float:
    mla = model.mla
    widths = mla.qk_nope + mla.qk_rope + mla.v_head if mla else 2 * model.head_dim
    full = model.softmax_layers - model.windowed_layers
    keys = full * task.mean_keys + model.windowed_layers * _windowed_keys(model, task)
    return 2.0 * model.heads * widths * keys


def _windowed_keys(model: ModelDescription, task: TrainingTask) -> float:
    """Return the keys of a mean token in a layer with a window."""
    window = model.sliding_window
    if task.documents is None:
        return min(task.sequence, window)
    kinds = zip(task.documents.lengths, task.documents.token_shares, strict=True)
    return sum(share * min(length, window) for length, share in kinds)
