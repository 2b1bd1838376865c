"""Training tasks, and recipes for them: layout of a run, and time traded for memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf
from typing import Literal, get_args

from foretune.errors import ProblemError, UnknownName
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.system import System

Precision = Literal["bf16", "fp8"]
Attention = Literal["flash", "unfused"]
Gradients = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class TrainingTask:
    """The work of one optimizer step.

    Attributes:
        batch: sequences of all replicas together.
        sequence: tokens per sequence.
        precision: of matrix products; other operations are bf16, the optimizer fp32.
        attention: ``flash`` keeps no scores; ``unfused`` writes and keeps scores and dropout masks,
            as before FlashAttention (arXiv:2205.14135).
        gradients: format of gradients summed over micro-batches and replicas.
        overlap: whether tensor-parallel exchanges overlap with products (Transformer Engine's user
            buffers).

    Raises:
        ProblemError: batch or sequence is not positive.
        UnknownName: an unknown precision, attention or gradient format.
    """

    batch: int
    sequence: int
    precision: Precision = "bf16"
    attention: Attention = "flash"
    gradients: Gradients = "fp32"
    overlap: bool = False

    def __post_init__(self) -> None:
        for field in ("batch", "sequence"):
            if getattr(self, field) < 1:
                raise ProblemError(f"{field}={getattr(self, field)} must be positive")
        for field, known in (
            ("precision", get_args(Precision)),
            ("attention", get_args(Attention)),
            ("gradients", get_args(Gradients)),
        ):
            if getattr(self, field) not in known:
                raise UnknownName(f"{field} of training", getattr(self, field), known)

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.sequence

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a summed gradient."""
        return 4.0 if self.gradients == "fp32" else 2.0

    @property
    def formats(self) -> Formats:
        """Formats of matrix products."""
        return Formats(self.precision)


Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
ZERO_STAGES = (0, 1, 2, 3)
ZERO_BUBBLE = (0, 1, 2)


@dataclass(frozen=True, order=True)
class TrainingLayout:
    """Degrees of parallelism; neighboring ranks differ in ``tp`` first, then cp, dp, pp.

    Attributes:
        tp: ranks that split each projection.
        pp: pipeline stages.
        dp: replicas with different sequences.
        cp: pieces of each sequence (context parallelism).
        ep: ranks of a stage that a layer's experts are divided over.
        chunks: runs of consecutive layers per stage (interleaving); 1 is the plain one-forward,
            one-backward schedule.
        zero_bubble: with 1 or 2, weights' gradients fill the pipeline's bubbles, within so many
            times the activations of one forward, one backward (Qi et al., arXiv:2401.10241).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    zero_bubble: int = 0

    def __str__(self) -> str:
        degrees = {**vars(self), "zero_bubble": 0}
        named = [f"{k}{v}" for k, v in degrees.items() if v > 1]
        named += [f"zb{self.zero_bubble}"] if self.zero_bubble else []
        return " ".join(named) or "one GPU"

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stage_ranks(self) -> int:
        """GPUs of one stage."""
        return self.tp * self.dp * self.cp

    @property
    def replicas(self) -> int:
        """Ranks with the same share of everything except experts."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Ranks with the same experts."""
        return self.stage_ranks // self.ep


@dataclass(frozen=True, order=True)
class Recipe:
    """A layout with its batch and memory settings.

    Attributes:
        layout: degrees of parallelism.
        micro_batch: sequences that a replica computes at a time.
        zero: states split over replicas (ZeRO, arXiv:1910.02054): 1 optimizer states, 2 also
            gradients, 3 also weights.
        recompute: recomputation in the backward pass: none, selective (attention's scores if kept,
            else norms and the MLP's activation), or full.
        sequence_parallel: whether tensor-parallel ranks also split operations between projections
            (Korthikanti et al., arXiv:2205.05198).
        offload: whether the host holds and updates optimizer states.
        host_gib: maximum GiB of them per GPU; the GPU keeps and updates the rest.
    """

    layout: TrainingLayout = TrainingLayout()
    micro_batch: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = True
    offload: bool = False
    host_gib: float = inf

    def micro_batches(self, task: TrainingTask) -> int:
        """Return the micro-batches per replica and step."""
        return task.batch // (self.layout.dp * self.micro_batch)

    def local_tokens(self, task: TrainingTask) -> float:
        """Return the tokens of a micro-batch on one tensor-parallel group."""
        return self.micro_batch * task.sequence / self.layout.cp


def stage_layers(model: ModelDescription, layout: TrainingLayout) -> list[int]:
    """Return the layers of each stage.

    The last and the first, which have the tables, are the first to have fewer.
    """
    pp = layout.pp
    fullest = layout.chunks * ceil(model.layers / (pp * layout.chunks))
    all_fewer, some_fewer = divmod(fullest * pp - model.layers, pp)
    layers = [fullest - all_fewer] * pp
    for stage in [pp - 1, *range(pp - 1)][:some_fewer]:
        layers[stage] -= 1
    return layers


def layout_impossible_because(
    model: ModelDescription, layout: TrainingLayout, task: TrainingTask, system: System
) -> str | None:
    """Return why a model does not allow a layout; None if it does."""
    if min({**vars(layout), "zero_bubble": 1}.values()) < 1:
        return "degrees of parallelism must be positive"
    if model.has_mixed_layers:
        return "training is planned only for models with equal layers"
    return (
        _tensor(model, layout, system)
        or _experts(model, layout)
        or _stages(model, layout)
        or _sequences(model, layout, task)
    )


def trade_impossible_because(recipe: Recipe, task: TrainingTask) -> str | None:
    """Return why the other settings do not fit the layout; None if they do."""
    if recipe.micro_batch < 1:
        return "a micro-batch needs at least one sequence"
    if recipe.zero not in ZERO_STAGES:
        return f"ZeRO has no stage {recipe.zero}"
    if recipe.layout.zero_bubble and recipe.recompute == "full":
        return "zero bubble keeps the activations that full recomputation drops"
    return _batch(recipe, task) or _sharding(recipe)


def _tensor(model: ModelDescription, layout: TrainingLayout, system: System) -> str | None:
    tp, linear = layout.tp, model.linear
    if tp > system.fast_domain_gpus:
        return f"tp={tp} exceeds the {system.fast_domain_gpus} GPUs joined by fast links"
    if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
        return f"{model.heads} heads with {model.kv_heads} key heads cannot be split over tp={tp}"
    if linear and (linear.key_heads % tp or linear.value_heads % tp):
        return f"{linear.key_heads} linear-attention heads cannot be split over tp={tp}"
    for width in (model.intermediate if model.mlp_layers else 0, model.shared_width):
        if width % tp:
            return f"an MLP {width} wide cannot be split over tp={tp}"
    return None


def _experts(model: ModelDescription, layout: TrainingLayout) -> str | None:
    if layout.ep == 1:
        return None
    if not model.is_moe:
        return "a dense model has no experts to divide"
    if model.experts % layout.ep:
        return f"{model.experts} experts cannot be divided over ep={layout.ep}"
    if layout.stage_ranks % layout.ep:
        return f"the {layout.stage_ranks} ranks of a stage are not a multiple of ep={layout.ep}"
    return None


def _stages(model: ModelDescription, layout: TrainingLayout) -> str | None:
    if layout.pp * layout.chunks > model.layers:
        return f"{model.layers} layers do not fill {layout.pp} stages of {layout.chunks} chunks"
    if layout.chunks > 1 and layout.pp == 1:
        return "interleaving needs several stages"
    if layout.zero_bubble not in ZERO_BUBBLE:
        return f"zero bubble keeps 1 or 2 times the activations, not {layout.zero_bubble}"
    if layout.zero_bubble and (layout.pp == 1 or layout.chunks > 1):
        return "zero bubble needs several stages of one chunk"
    return None


def _sequences(model: ModelDescription, layout: TrainingLayout, task: TrainingTask) -> str | None:
    if layout.cp == 1:
        return None
    if task.attention != "flash" or model.linear:
        return "context parallelism needs flash attention in every layer"
    # Each rank has an early and a late piece, which balances the number of keys.
    if task.sequence % (2 * layout.cp):
        return f"sequences of {task.sequence} cannot be cut into 2 x cp={2 * layout.cp} pieces"
    return None


def _batch(recipe: Recipe, task: TrainingTask) -> str | None:
    layout, each = recipe.layout, recipe.layout.dp * recipe.micro_batch
    if task.batch % each:
        return f"a batch of {task.batch} is not a multiple of dp x micro-batch = {each}"
    if layout.chunks > 1 and recipe.micro_batches(task) % layout.pp:
        return (
            f"interleaving needs micro-batches ({recipe.micro_batches(task)}) in multiples of "
            f"pp={layout.pp}"
        )
    return None


def _sharding(recipe: Recipe) -> str | None:
    layout = recipe.layout
    if recipe.zero and max(layout.replicas, layout.expert_replicas) == 1:
        return "ZeRO needs replicas to split states over"
    if recipe.zero > 1 and layout.pp > 1:
        return "ZeRO stages 2 and 3 sum gradients per micro-batch: use them without pipelines"
    return None


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
    zero_bubble: bool = False,
) -> list[Recipe]:
    """Return every useful recipe on exactly ``gpus`` GPUs, regardless of memory.

    ZeRO stage 0 is left out if stage 1 is possible, as that costs nothing. With ``offload``, the
    host holds and updates optimizer states, at most ``host_gib`` GiB per GPU. With ``zero_bubble``,
    pipelines are tried with it, too.
    """
    schedules = ZERO_BUBBLE if zero_bubble else ZERO_BUBBLE[:1]
    return [
        recipe
        for plain in _layouts(model, task, system, gpus)
        for layout in (replace(plain, zero_bubble=n) for n in schedules)
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
