"""Enumerates training recipes: layouts of all GPUs, and ways to save memory."""

from collections.abc import Iterator
from itertools import product
from math import inf

from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.train.recipe import (
    RECOMPUTE,
    ZERO_STAGES,
    Recipe,
    TrainingLayout,
    layout_impossible_because,
    trade_impossible_because,
)
from foretune.plan.train.task import TrainingTask

MICRO_BATCHES = (1, 2, 4, 8, 16)
MIN_PIECE_TOKENS = 4096
"""Minimum tokens of a sequence piece in context parallelism."""
TABLE_LAYERS = 2
"""Layers that the embedding and the output projection may count as when filling stages."""


def possible_recipes(
    model: ModelDescription,
    task: TrainingTask,
    system: System,
    gpus: int,
    offload: bool = False,
    host_gib: float = inf,
) -> list[Recipe]:
    """Return every useful recipe on exactly ``gpus`` GPUs, regardless of memory.

    ZeRO stage 0 is left out if stage 1 is possible, as that costs nothing.

    Args:
        model: the model to train.
        task: the work of a step.
        system: the GPUs.
        gpus: number of GPUs.
        offload: whether the host holds and updates optimizer states.
        host_gib: maximum GiB of them per GPU.
    """
    return [
        recipe
        for layout in _layouts(model, task, system, gpus)
        if layout_impossible_because(model, layout, task, system) is None
        for recipe in _recipes(layout, offload, host_gib)
        if trade_impossible_because(recipe, task) is None
    ]


def _recipes(layout: TrainingLayout, offload: bool, host_gib: float) -> Iterator[Recipe]:
    single_replica = max(layout.replicas, layout.expert_replicas) == 1
    stages = ZERO_STAGES[:1] if single_replica else ZERO_STAGES[1:]
    for micro_batch, zero, recompute in product(MICRO_BATCHES, stages, RECOMPUTE):
        yield Recipe(layout, micro_batch, zero, recompute, layout.tp > 1, offload, host_gib)


def _layouts(
    model: ModelDescription, task: TrainingTask, system: System, gpus: int
) -> Iterator[TrainingLayout]:
    for tp in _divisors(gpus, system.fast_domain_gpus):
        for pp in _divisors(gpus // tp, model.layers):
            ranks = gpus // tp // pp
            for cp in _divisors(ranks, max(task.sequence // MIN_PIECE_TOKENS, 1)):
                if task.batch % (ranks // cp):
                    continue
                for ep in _divisors(tp * ranks, max(model.experts, 1)):
                    for chunks in _chunks(model, pp):
                        yield TrainingLayout(tp, pp, ranks // cp, cp, ep, chunks)


def _chunks(model: ModelDescription, pp: int) -> list[int]:
    """Return the numbers of equal chunks that a stage can be divided into."""
    max_chunks = model.layers // pp if pp > 1 else 1
    filled = (model.layers, model.layers + TABLE_LAYERS)
    return [c for c in range(1, max_chunks + 1) if c == 1 or any(n % (pp * c) == 0 for n in filled)]


def _divisors(number: int, largest: int) -> list[int]:
    return [d for d in range(1, min(number, largest) + 1) if number % d == 0]
