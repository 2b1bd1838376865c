"""Plans training: predicts every recipe that fits, and the bottleneck of the best."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import supported
from foretune.plan.describe.system import System
from foretune.plan.train.recipe import Recipe, TrainingTask, possible_recipes
from foretune.plan.train.step import Calibration, predict_steps
from foretune.plan.train.training_memory import (
    USABLE_SHARE,
    TrainingMemory,
    offloaded_gib,
    training_memory,
)

BACKEND = "sglang"
"""Engine whose tables are used: all engines call the same libraries, and its tables cover the most
tokens."""
GPU_MULTIPLES = (2, 4, 8, 16, 32, 64)
"""Multiples of the number of GPUs to suggest if a model does not fit."""
SECONDS_PER_DAY = 86_400.0
STEP_PARTS = {
    "compute_ms": "matrix products and the operations between them",
    "recompute_ms": "recomputation of activations",
    "communication_ms": "exchanges between tensor, expert, sequence or pipeline ranks",
    "bubble_ms": "other pipeline stages (the bubble)",
    "replicas_ms": "exchanges between replicas",
    "optimizer_ms": "the optimizer",
}
"""Parts of a step -> description."""


@dataclass(frozen=True)
class TrainingPlan:
    """All recipes that fit memory, fastest first.

    Attributes:
        task: the work of a step.
        candidates: one row each: ``layout, tp, pp, dp, cp, ep, chunks, zero_bubble,
            micro_batch, zero, recompute, offload, offloaded_gib`` (optimizer states of the fullest
            GPU in host memory), the columns of `predict_steps`, and the fullest GPU's
            ``memory_gib`` with its parts ``weights_gib``, ``gradients_gib``, ``optimizer_gib``,
            ``activations_gib``, ``buffers_gib``.
        recipes_considered: number of recipes, including those that do not fit.
        price_per_hour: USD of all GPUs; NaN if unknown.
    """

    task: TrainingTask
    candidates: pd.DataFrame
    recipes_considered: int
    price_per_hour: float

    @property
    def best(self) -> "pd.Series[float]":
        """The fastest recipe."""
        return self.candidates.iloc[0]

    @property
    def distinct(self) -> pd.DataFrame:
        """The candidates, each recipe with its fastest schedule only."""
        recipe = ["tp", "pp", "dp", "cp", "ep", "micro_batch", "zero", "recompute", "offload"]
        return self.candidates.drop_duplicates(recipe, ignore_index=True)

    @property
    def limited_by(self) -> str:
        """The longest part of the best step except compute: a key of `STEP_PARTS`."""
        others = [name for name in STEP_PARTS if name != "compute_ms"]
        return str(self.best[others].astype(float).idxmax())

    def days(self, tokens: float) -> float:
        """Return the days that the best recipe takes for ``tokens`` tokens."""
        steps = tokens / self.task.tokens
        return float(steps * self.best["step_ms"] / 1e3 / SECONDS_PER_DAY)

    def cost(self, tokens: float) -> float:
        """Return the cost of ``tokens`` tokens in USD; NaN without a price."""
        return 24.0 * self.days(tokens) * self.price_per_hour


def plan_training(
    model: ModelDescription,
    system: System,
    gpus: int,
    task: TrainingTask,
    timers: StepTimerFactory,
    calibration: Calibration | None = None,
    offload: float = 0.0,
    zero_bubble: bool = False,
) -> TrainingPlan:
    """Predict every way to train ``model`` on ``gpus`` GPUs of ``system``.

    Raises UsageError if the offload is negative, the GPU lacks the precision, layers differ, the
    batch cannot be divided, or the model does not fit; the message suggests a fix. ``calibration``
    is one of `SOFTWARE`, by default Megatron-LM's. ``offload`` is the maximum GiB of optimizer
    states per GPU in host memory; with 0, all are offloaded if nothing fits otherwise. With
    ``zero_bubble``, pipelines are also tried with it.
    """
    architecture = system.device.architecture
    if task.precision == "fp8" and supported("fp8", architecture) != "native":
        raise UsageError(f"{system.name} has no fp8 units: train in bf16")
    if model.has_mixed_layers:
        raise UsageError(f"{model.name}: training is planned only for models with equal layers")
    if not 0 <= offload < np.inf:
        raise UsageError(f"cannot offload {offload:g} GiB to host memory: give 0 or more")

    def memories(offload: bool = False, host_gib: float = np.inf) -> dict[Recipe, TrainingMemory]:
        recipes = possible_recipes(
            model,
            task,
            system=system,
            gpus=gpus,
            offload=offload,
            host_gib=host_gib,
            zero_bubble=zero_bubble,
        )
        return {recipe: training_memory(model, recipe, task) for recipe in recipes}

    # Every recipe that fits. If none does, all optimizer states may move to host memory.
    considered = memories()
    if offload:
        considered |= memories(offload=True, host_gib=offload)
    if not considered:
        raise UsageError(_indivisible_message(model, system, gpus, task))
    fitting = _fitting(considered, system)
    if not fitting and not offload:
        considered |= memories(offload=True)
        fitting = _fitting(considered, system)
    if not fitting:
        raise UsageError(_too_large_message(model, system, gpus, task, considered))

    # The time of a step of each, fastest first.
    steps = predict_steps(
        model,
        system,
        recipes=fitting,
        task=task,
        timer=timers(system, BACKEND),
        calibration=calibration,
    )
    rows = pd.DataFrame([_candidate_row(model, recipe, considered[recipe]) for recipe in fitting])
    table = rows.join(steps).sort_values("step_ms", ignore_index=True, kind="stable")
    price = np.nan if system.price_per_hour is None else system.price_per_hour
    return TrainingPlan(
        task=task,
        candidates=table,
        recipes_considered=len(considered),
        price_per_hour=price * gpus,
    )


def _fitting(memories: Mapping[Recipe, TrainingMemory], system: System) -> list[Recipe]:
    """Return the recipes that fit in GPU memory."""
    capacity = USABLE_SHARE * system.memory_gib * GIB
    return [recipe for recipe, memory in memories.items() if memory.total <= capacity]


def _candidate_row(
    model: ModelDescription, recipe: Recipe, memory: TrainingMemory
) -> dict[str, object]:
    parts = {f"{name}_gib": value / GIB for name, value in vars(memory).items()}
    return {
        "layout": str(recipe.layout),
        **vars(recipe.layout),
        **{name: getattr(recipe, name) for name in ("micro_batch", "zero", "recompute", "offload")},
        "offloaded_gib": offloaded_gib(model, recipe),
        "memory_gib": memory.gib,
        **parts,
    }


def _indivisible_message(
    model: ModelDescription, system: System, gpus: int, task: TrainingTask
) -> str:
    """Return the nearest batch that can be divided."""

    def can_be_divided(batch: int) -> bool:
        if batch <= 0:
            return False
        changed_task = replace(task, batch=batch)
        return bool(possible_recipes(model, changed_task, system=system, gpus=gpus))

    nearest_first = (task.batch + sign * offset for offset in count(1) for sign in (1, -1))
    batch = next(filter(can_be_divided, nearest_first))
    return f"a batch of {task.batch} cannot be divided over {gpus} GPUs: try --batch {batch}"


def _too_large_message(
    model: ModelDescription,
    system: System,
    gpus: int,
    task: TrainingTask,
    memories: Mapping[Recipe, TrainingMemory],
) -> str:
    min_gib = min(memory.total for memory in memories.values()) / GIB
    text = (
        f"training {model.name} does not fit on {gpus} × {system.name} "
        f"({system.memory_gib:.0f} GiB each): a GPU needs at least {min_gib:.0f} GiB"
    )
    for factor in GPU_MULTIPLES:
        recipes = possible_recipes(model, task, system=system, gpus=factor * gpus, offload=True)
        if _fitting({recipe: training_memory(model, recipe, task) for recipe in recipes}, system):
            return f"{text}; it fits on {factor * gpus} GPUs"
    return f"{text}; use GPUs with more memory"
