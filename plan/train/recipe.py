"""Training tasks and their recipes: parallel layout, and options that trade time for memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf
from typing import Literal, get_args

from foretune.errors import ProblemError, UnknownName
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import divisors
from foretune.plan.describe.system import System
from foretune.plan.train.documents import Documents

Precision = Literal["bf16", "fp8"]
Attention = Literal["flash", "unfused"]
Gradients = Literal["fp32", "bf16"]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences that a replica may compute at a time."""
MIN_PIECE_TOKENS = 4096
"""Minimum tokens of a sequence piece in context parallelism."""
TABLE_LAYERS = 2
"""Layers as which the embedding and the output projection may count when filling stages."""


@dataclass(frozen=True)
class TrainingTask:
    """The work of one optimizer step.

    Attention is ``unfused`` if it writes and keeps scores and dropout masks, as before
    FlashAttention (arXiv:2205.14135).

    Raises:
        ProblemError: batch or sequence is not positive, or documents are packed and attention is
            unfused, which computes the scores of whole sequences.
        UnknownName: an unknown precision, attention or gradient format.
    """

    batch: int  # sequences of all replicas together
    sequence: int  # tokens per sequence
    precision: Precision = "bf16"  # of matrix products; others are bf16, the optimizer fp32
    attention: Attention = "flash"
    gradients: Gradients = "fp32"  # format of gradients summed over micro-batches and replicas
    overlap: bool = False  # of tensor-parallel exchanges and products, as with user buffers
    documents: Documents | None = None  # packed into each sequence; None: a sequence is one

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
        if self.documents and self.attention == "unfused":
            raise ProblemError("unfused attention computes all scores: pack documents with flash")

    @property
    def mean_keys(self) -> float:
        """Keys that a mean token may attend to, masked or not."""
        return self.documents.mean_keys if self.documents else self.sequence

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


@dataclass(frozen=True, order=True)
class TrainingLayout:
    """Degrees of parallelism; neighboring ranks differ in ``tp`` first, then cp, dp, pp.

    With ``zero_bubble`` 1 or 2, weights' gradients fill the pipeline's bubbles, using 1 or 2 times
    the activations of one forward, one backward (Qi et al., arXiv:2401.10241).
    """

    tp: int = 1  # ranks that split each projection
    pp: int = 1  # pipeline stages
    dp: int = 1  # replicas with different sequences
    cp: int = 1  # pieces of each sequence (context parallelism)
    ep: int = 1  # ranks of a stage that a layer's experts are divided over
    chunks: int = 1  # runs of consecutive layers per stage (interleaving)
    zero_bubble: int = 0

    def __str__(self) -> str:
        named = [f"{k}{v}" for k, v in vars(self).items() if v > 1 and k != "zero_bubble"]
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

    ZeRO (arXiv:1910.02054) splits states over replicas: stage 1 optimizer states, 2 also gradients,
    3 also weights. Selective recomputation repeats attention's scores if kept, else norms and the
    MLP's activation. Sequence-parallel ranks also split operations between projections (Korthikanti
    et al., arXiv:2205.05198).
    """

    layout: TrainingLayout = TrainingLayout()
    micro_batch: int = 1  # sequences that a replica computes at a time
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = True
    offload: bool = False  # whether the host holds and updates optimizer states
    host_gib: float = inf  # maximum GiB of these per GPU; the GPU keeps and updates the rest

    def micro_batches(self, task: TrainingTask) -> int:
        """Return the micro-batches per replica and step."""
        return task.batch // (self.layout.dp * self.micro_batch)

    def local_tokens(self, task: TrainingTask) -> float:
        """Return the tokens of a micro-batch on one tensor-parallel group."""
        return self.micro_batch * task.sequence / self.layout.cp

    def residual_tokens(self, task: TrainingTask) -> float:
        """Return a micro-batch's tokens per rank outside split projections."""
        return self.local_tokens(task) / (self.layout.tp if self.sequence_parallel else 1)


def stage_layers(model: ModelDescription, layout: TrainingLayout) -> list[int]:
    """Return the layers of each stage.

    If layers do not divide evenly, the last and the first stage, which have the tables, get fewer.
    """
    pp = layout.pp
    fullest = layout.chunks * ceil(model.layers / (pp * layout.chunks))
    all_fewer, some_fewer = divmod(fullest * pp - model.layers, pp)
    layers = [fullest - all_fewer] * pp
    for stage in [pp - 1, *range(pp - 1)][:some_fewer]:
        layers[stage] -= 1
    return layers


def is_possible_layout(model: ModelDescription, layout: TrainingLayout, task: TrainingTask) -> bool:
    """Return whether heads, widths, experts and sequences can be split with this layout."""
    # Tensor-parallel ranks split heads and widths; key heads may also be copied.
    split = [model.heads, model.shared_width]
    if model.mlp_layers:
        split.append(model.intermediate)
    if model.linear:
        split += [model.linear.key_heads, model.linear.value_heads]
    if any(size % layout.tp for size in split):
        return False
    if model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        return False

    if layout.ep > 1 and model.experts % layout.ep:
        return False

    # Each rank has an early and a late piece, which balances the number of keys.
    if layout.cp == 1:
        return True
    pieces_fit = task.sequence % (2 * layout.cp) == 0
    return task.attention == "flash" and not model.linear and pieces_fit


def is_possible(recipe: Recipe, task: TrainingTask) -> bool:
    """Return whether the batch divides into micro-batches, in full rounds if chunks interleave.

    Zero bubble keeps the activations that full recomputation drops.
    """
    layout = recipe.layout
    if layout.zero_bubble and recipe.recompute == "full":
        return False
    if task.batch % (layout.dp * recipe.micro_batch):
        return False
    return layout.chunks == 1 or recipe.micro_batches(task) % layout.pp == 0


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

    ZeRO stage 0 is left out if stage 1 is possible, as stage 1 costs nothing. With ``offload``, the
    host holds and updates optimizer states, at most ``host_gib`` GiB per GPU. With ``zero_bubble``,
    pipelines without chunks are also tried with it.
    """
    return [
        recipe
        for plain in _layouts(model, task, system, gpus)
        for layout in _schedules(plain, zero_bubble)
        if is_possible_layout(model, layout, task)
        for recipe in _recipes(model, layout, offload, host_gib)
        if is_possible(recipe, task)
    ]


def _schedules(layout: TrainingLayout, zero_bubble: bool) -> list[TrainingLayout]:
    """Return the layout without and, if possible, with filled bubbles."""
    if not zero_bubble or layout.pp == 1 or layout.chunks > 1:
        return [layout]
    return [layout, replace(layout, zero_bubble=1), replace(layout, zero_bubble=2)]


def _recipes(
    model: ModelDescription, layout: TrainingLayout, offload: bool, host_gib: float
) -> Iterator[Recipe]:
    expert_replicas = layout.expert_replicas if model.is_moe else 1
    zero_stages: tuple[int, ...] = (1, 2, 3)
    if max(layout.replicas, expert_replicas) == 1:
        zero_stages = (0,)
    elif layout.pp > 1:  # stages 2 and 3 sum gradients per micro-batch, which pipelines do not
        zero_stages = (1,)
    for micro_batch, zero, recompute in product(MICRO_BATCHES, zero_stages, RECOMPUTE):
        yield Recipe(
            layout=layout,
            micro_batch=micro_batch,
            zero=zero,
            recompute=recompute,
            sequence_parallel=layout.tp > 1,
            offload=offload,
            host_gib=host_gib,
        )


def _layouts(
    model: ModelDescription, task: TrainingTask, system: System, gpus: int
) -> Iterator[TrainingLayout]:
    for tp in divisors(gpus, system.fast_domain_gpus):
        for pp in divisors(gpus // tp, model.layers):
            ranks = gpus // tp // pp
            for cp in divisors(ranks, max(task.sequence // MIN_PIECE_TOKENS, 1)):
                if task.batch % (ranks // cp):
                    continue
                for ep in divisors(tp * ranks, max(model.experts, 1)):
                    for chunks in _chunks(model, pp):
                        yield TrainingLayout(
                            tp=tp, pp=pp, dp=ranks // cp, cp=cp, ep=ep, chunks=chunks
                        )


def _chunks(model: ModelDescription, pp: int) -> list[int]:
    """Return the numbers of equal chunks that a stage can be divided into."""
    max_chunks = model.layers // pp if pp > 1 else 1
    filled = (model.layers, model.layers + TABLE_LAYERS)
    return [c for c in range(1, max_chunks + 1) if c == 1 or any(n % (pp * c) == 0 for n in filled)]
