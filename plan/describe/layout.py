"""Layouts over GPUs, request lengths, offloading, and drafted tokens.

Attention runs in ``dp`` groups of ``tp`` ranks, each group with different requests. The experts of
a layer use the same ranks: ``moe_ep`` groups of experts, each split into ``moe_tp`` slices. ``pp``
stages hold consecutive layers.
"""

from dataclasses import dataclass, replace
from math import inf, isqrt
from typing import Self

from foretune.errors import ProblemError, UsageError
from foretune.plan.describe.description import LinearAttention, ModelDescription
from foretune.plan.describe.formats import Formats, draft_formats, find_format
from foretune.plan.describe.lengths import LengthMix
from foretune.values import counted

UNEVEN_EXPERTS_ABOVE = 8
"""With more groups of experts than this, ranks are filled with redundant experts, because engines
balance many ranks with copies anyway."""


@dataclass(frozen=True, order=True)
class Layout:
    """Degrees of parallelism.

    Attributes:
        tp: ranks that split heads and dense projections.
        dp: groups that serve different requests with the same experts (attention-DP).
        moe_tp: slices of an expert.
        moe_ep: groups of experts.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    def __str__(self) -> str:
        degrees = ("tp", "pp", "dp", "moe_tp", "moe_ep")
        named = [f"{name}{getattr(self, name)}" for name in degrees if getattr(self, name) > 1]
        return " ".join(named) or "one GPU"

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> int:
        """Ranks over which a layer's experts are split."""
        return self.moe_tp * self.moe_ep

    def redundant_experts(self, model: ModelDescription) -> int:
        """Return the number of copied experts needed for all ranks to have equally many."""
        return -model.experts % self.moe_ep

    @classmethod
    def from_labels(
        cls, model: ModelDescription, tp: int, pp: int, dp: int, moe_tp: int, moe_ep: int
    ) -> Self:
        """Return the layout of a measured deployment's labels.

        Labels may omit what an engine derives: experts are then split like dense projections, and
        excess expert ranks are attention-DP. Dense models have no experts to split.

        If both expert degrees equal ``g``, and attention has ``g²`` ranks, the label is wrong and
        means ``g`` ranks: deployments labeled 16 ranks, 4 x 4, are as fast as those on 4 ranks, and
        slower than those on 8.
        """
        tp, pp, dp, moe_tp, moe_ep = (max(degree, 1) for degree in (tp, pp, dp, moe_tp, moe_ep))
        if not model.is_moe:
            return cls(tp=tp, pp=pp, dp=dp)
        ranks = tp * dp
        expert_ranks = moe_tp * moe_ep

        # A wrong label: both expert degrees are the number of ranks.
        if moe_tp == moe_ep > 1 and ranks == expert_ranks:
            if dp > 1:
                return cls(tp=1, pp=pp, dp=moe_ep, moe_tp=1, moe_ep=moe_ep)
            return cls(tp=moe_ep, pp=pp, dp=1, moe_tp=1, moe_ep=moe_ep)

        # More expert ranks than attention has: attention-DP.
        if expert_ranks > ranks and expert_ranks % tp == 0:
            return cls(tp=tp, pp=pp, dp=expert_ranks // tp, moe_tp=moe_tp, moe_ep=moe_ep)

        # An omitted degree.
        if expert_ranks != ranks:
            moe_ep = moe_ep if ranks % moe_ep == 0 else 1
            moe_tp = ranks // moe_ep
        return cls(tp=tp, pp=pp, dp=dp, moe_tp=moe_tp, moe_ep=moe_ep)


def illegal_because(
    model: ModelDescription, layout: Layout, formats: Formats | None = None
) -> str | None:
    """Return why a model does not allow a layout; without ``formats``, blocks may be split."""
    if min(vars(layout).values()) < 1:
        return "degrees of parallelism must be positive"
    if reason := _attention(model, layout) or _experts(model, layout):
        return reason
    if layout.pp > model.layers:
        return f"{model.layers} layers do not fill {layout.pp} stages"
    return _blocks(model, layout, formats) if formats else None


def legal_layouts(
    model: ModelDescription, gpus: int, formats: Formats | None = None
) -> list[Layout]:
    """Return every legal layout of one replica on exactly ``gpus`` GPUs."""
    layouts = []
    for pp in divisors(gpus):
        ranks = gpus // pp
        for tp in divisors(ranks):
            dp = ranks // tp
            if not model.is_moe:
                layouts.append(Layout(tp, pp, dp))
                continue
            layouts += [
                Layout(tp, pp, dp, moe_tp=ranks // moe_ep, moe_ep=moe_ep)
                for moe_ep in divisors(ranks)
            ]
    return [layout for layout in layouts if illegal_because(model, layout, formats) is None]


def _attention(model: ModelDescription, layout: Layout) -> str | None:
    tp = layout.tp
    if model.heads % tp:
        return f"{model.heads} heads cannot be split over tp={tp}"
    if not model.mla:
        for _, _, shape in model.softmax_groups():
            key_heads = shape.kv_heads
            if key_heads % tp and tp % key_heads:
                return f"{key_heads} key heads can neither be split over nor copied to tp={tp}"
    if model.linear and not _splits_linear(model.linear, tp):
        return f"{model.linear.key_heads} linear-attention heads cannot be split over tp={tp}"
    if model.compressed and model.compressed.o_groups % tp:
        return f"{model.compressed.o_groups} groups of heads cannot be split over tp={tp}"
    for width, layers in model.dense_widths:
        if layers and width % tp:
            return f"an MLP {width} wide cannot be split over tp={tp}"
    return None


def _splits_linear(linear: LinearAttention, tp: int) -> bool:
    """Return whether ranks can split a linear layer's heads; Mamba-2's single group is copied."""
    copied = linear.kind == "mamba2" and linear.key_heads == 1
    return linear.value_heads % tp == 0 and (copied or linear.key_heads % tp == 0)


def _experts(model: ModelDescription, layout: Layout) -> str | None:
    if not model.is_moe:
        if layout.dp > 1:
            return "a dense model has no experts to share: deploy dp replicas instead"
        if layout.expert_ranks > 1:
            return "a dense model has no experts to divide"
        return None
    if layout.expert_ranks != layout.tp * layout.dp:
        return f"moe_tp x moe_ep = {layout.expert_ranks} must be tp x dp = {layout.tp * layout.dp}"
    if model.experts % layout.moe_ep and not UNEVEN_EXPERTS_ABOVE < layout.moe_ep <= model.experts:
        return f"{model.experts} experts cannot be divided over moe_ep={layout.moe_ep}"
    if model.moe_intermediate % layout.moe_tp:
        return f"experts {model.moe_intermediate} wide cannot be split over moe_tp={layout.moe_tp}"
    if model.shared_width % layout.tp:
        return f"shared experts {model.shared_width} wide cannot be split over tp={layout.tp}"
    return None


def _blocks(model: ModelDescription, layout: Layout, formats: Formats) -> str | None:
    """Return the split that divides a weight block with a common scale."""
    splits = [
        (formats.mlps(model), width, layout.tp) for width, layers in model.dense_widths if layers
    ]
    # Shared experts are small: engines replicate them if they cannot be split.
    if model.is_moe:
        splits.append((formats.moe, model.moe_intermediate, layout.moe_tp))
    for name, width, parts in splits:
        block = find_format(name).block
        if parts > 1 and width // parts % block:
            return f"{width} / {parts} columns split {name}'s blocks of {block}"
    return None


def divisors(number: int, largest: float = inf) -> list[int]:
    """Return the divisors of a number, up to ``largest``, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    found = sorted({*small, *(number // d for d in small)})
    return [d for d in found if d <= largest]


@dataclass(frozen=True)
class Workload:
    """Requests of one length, or of several.

    Raises ProblemError if a length is out of range.

    Attributes:
        isl: input tokens per request, including ``prefix``; of several lengths, their mean.
        osl: output tokens per request; of several lengths, their mean.
        prefix: input tokens already cached.
        mix: the lengths, if they differ.
    """

    isl: int
    osl: int
    prefix: int = 0
    mix: LengthMix | None = None

    @classmethod
    def of_mix(cls, mix: LengthMix, prefix: int = 0) -> Self:
        """Return the workload of requests of several lengths, all with one prefix."""
        return cls(round(mix.mean_isl), round(mix.mean_osl), prefix=prefix, mix=mix)

    def __post_init__(self) -> None:
        if self.isl < 1 or self.osl < 1:
            raise ProblemError(f"isl={self.isl}, osl={self.osl}: both must be at least 1 token")
        shortest = min(self.mix.isl) if self.mix else self.isl
        if not 0 <= self.prefix < shortest:
            raise ProblemError(
                f"prefix={self.prefix} must lie between 0 and {shortest - 1}: "
                "at least one input token is new"
            )

    def __str__(self) -> str:
        if self.mix is not None:
            return str(self.mix)
        return f"prompts of {self.isl:,} tokens, answers of {self.osl:,}"

    @property
    def new_tokens(self) -> int:
        """Input tokens to prefill."""
        return self.isl - self.prefix

    @property
    def last_context(self) -> int:
        """Cached tokens when the longest request ends."""
        return self.mix.longest if self.mix else self.isl + self.osl

    @property
    def longest_prompt(self) -> int:
        """Input tokens of the longest prompt."""
        return self.mix.longest_prompt if self.mix else self.isl

    @property
    def mean_context(self) -> float:
        """Mean cached tokens of a running request: it is halfway through its output."""
        return self.mix.mean_context if self.mix else self.isl + self.osl / 2


@dataclass(frozen=True)
class Offload:
    """Data outside of the GPUs while a deployment serves, in GiB per GPU.

    Raises UsageError if a value is negative or not finite.
    """

    weights_gib: float = 0.0  # maximum of a GPU's layer weights; they are read in every step
    cache_gib: float = 0.0  # cache of prefixes, which are fetched when a request needs them
    disk_gib: float = 0.0  # prefixes on disk: they are read into that cache first

    def __post_init__(self) -> None:
        for value in (self.weights_gib, self.cache_gib, self.disk_gib):
            if not 0 <= value < float("inf"):
                raise UsageError(f"cannot offload {value:g} GiB: give 0 or more")

    def __str__(self) -> str:
        kinds = (
            (self.weights_gib, "weights"),
            (self.cache_gib, "cached prefixes"),
            (self.disk_gib, "cached prefixes on disk"),
        )
        named = [f"{gib:g} GiB of {what} per GPU" for gib, what in kinds if gib]
        return " and ".join(named) or "nothing"

    def __bool__(self) -> bool:
        return self.weights_gib > 0 or self.cache_gib > 0 or self.disk_gib > 0


@dataclass(frozen=True)
class Speculation:
    """How tokens are drafted.

    Raises UsageError if a number is out of range.

    Attributes:
        drafted: tokens drafted in sequence, per request and step.
        acceptance: probability that a drafted token is accepted, given that all earlier ones were.
            It depends on model, draft and text, and must be measured.
        draft: the draft model; None uses the model's own layers.
    """

    drafted: int
    acceptance: float
    draft: ModelDescription | None = None

    def __post_init__(self) -> None:
        if self.drafted < 1:
            raise UsageError(f"{self.drafted} drafted tokens: draft at least 1")
        if not 0 <= self.acceptance < 1:
            raise UsageError(
                f"acceptance {self.acceptance:g}: give the probability that a drafted token is "
                "accepted if those before are, from 0 to below 1"
            )

    def __str__(self) -> str:
        by = self.draft.name if self.draft else "the model's own layers"
        accepted = f"each accepted with probability {self.acceptance:.3g} if those before are"
        drafted = f"{counted(self.drafted, 'token')} drafted by {by}"
        return f"{drafted}, {accepted}: {self.accepted_tokens:.3g} tokens per step"

    @property
    def accepted_tokens(self) -> float:
        """Mean tokens per request and step: accepted drafts, and one from the model itself.

        It is the mean of a capped geometric distribution (Leviathan et al., arXiv:2211.17192).
        """
        return (1.0 - self.acceptance ** (self.drafted + 1)) / (1.0 - self.acceptance)

    def drafter(self, model: ModelDescription) -> ModelDescription:
        """Return the model that drafts; raises UsageError if ``model`` has no layers for it."""
        if self.draft:
            return self.draft
        if not model.drafting_layers:
            raise UsageError(
                f"{model.name} has no layers that draft tokens: name another model: "
                "--speculative TOKENS:ACCEPTANCE:MODEL"
            )
        parts = int(model.without_mlp > 0)  # attention and MLP are separate layers
        return replace(
            model,
            layers=1 + parts,
            without_attention=parts,
            without_mlp=parts,
            dense_layers=0,
            linear=None,
            sliding_window=0,
            windowed_layers=0,
            windowed=None,
            mlp_widths=(),
            index=None if model.compressed else model.index and replace(model.index, layers=0),
            compressed=model.compressed and replace(model.compressed, ratios=((0, 1),)),
        )

    def layout(self, layout: Layout) -> Layout:
        """Return the drafter's layout for the model's ``layout``."""
        return Layout(layout.tp) if self.draft else layout

    def formats(self, formats: Formats) -> Formats:
        """Return the drafter's formats for the model's ``formats``."""
        return draft_formats(self.draft, formats) if self.draft else formats

    def illegal_because(self, layout: Layout) -> str | None:
        """Return why a layout does not allow drafting; None if it does."""
        if layout.pp > 1:
            return "drafting tokens needs pp=1"
        return illegal_because(self.draft, Layout(layout.tp)) if self.draft else None

    def with_drafter(self, model: ModelDescription) -> ModelDescription:
        """Return ``model`` with the drafter loaded: its own layers, or another model."""
        if self.draft:
            return replace(model, draft_model=self.draft)
        added = model.drafting_layers
        parts = added if model.without_mlp else 0
        return replace(
            model,
            layers=model.layers + added + parts,
            without_attention=model.without_attention + parts,
            without_mlp=model.without_mlp + parts,
        )
