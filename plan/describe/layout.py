"""Layouts: how a model is split over GPUs, and which splits are legal.

Attention runs in ``dp`` groups of ``tp`` ranks, each group with different requests. The experts of
a layer use the same ranks: ``moe_ep`` groups of experts, each split into ``moe_tp`` slices. ``pp``
stages hold consecutive layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Self

from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, find_format

UNEVEN_EXPERTS_ABOVE = 8
"""With more groups of experts than this, ranks are filled with redundant experts: engines balance
many ranks with copies anyway."""


@dataclass(frozen=True, order=True)
class Layout:
    """Degrees of parallelism.

    Attributes:
        tp: ranks that split heads and dense projections.
        pp: pipeline stages.
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
        """Return the number of copied experts needed for equally many per rank."""
        return -model.experts % self.moe_ep

    @classmethod
    def from_labels(cls, model: ModelDescription, tp: int, pp: int, dp: int, moe_tp: int,
                    moe_ep: int) -> Self:  # fmt: skip
        """Return the layout of a measured deployment's labels.

        Labels may omit what an engine derives: experts are then split like dense projections, and
        excess expert ranks are attention-DP. Dense models have no experts to split.

        If both expert degrees are equal and their product is that of attention's, the label of
        ``g`` ranks in ``g`` expert groups was squared: deployments labeled 16 ranks, 4 x 4, are as
        fast as those on 4, and slower than those on 8.
        """
        tp, pp, dp = max(tp, 1), max(pp, 1), max(dp, 1)
        if not model.is_moe:
            return cls(tp, pp, dp)
        moe_tp, moe_ep = max(moe_tp, 1), max(moe_ep, 1)
        ranks = tp * dp
        if moe_tp == moe_ep > 1 and ranks == moe_tp * moe_ep:
            return cls(1 if dp > 1 else moe_ep, pp, moe_ep if dp > 1 else 1, 1, moe_ep)
        if moe_tp * moe_ep > ranks and moe_tp * moe_ep % tp == 0:
            return cls(tp, pp, moe_tp * moe_ep // tp, moe_tp, moe_ep)
        if moe_tp * moe_ep != ranks:
            moe_ep = moe_ep if ranks % moe_ep == 0 else 1
            moe_tp = ranks // moe_ep
        return cls(tp, pp, dp, moe_tp, moe_ep)


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
    return [
        layout
        for layout in _candidate_layouts(model, gpus)
        if illegal_because(model, layout, formats) is None
    ]


def _candidate_layouts(model: ModelDescription, gpus: int) -> Iterator[Layout]:
    for pp in divisors(gpus):
        ranks = gpus // pp
        for tp in divisors(ranks):
            if not model.is_moe:
                yield Layout(tp, pp, ranks // tp)
                continue
            for moe_ep in divisors(ranks):
                yield Layout(tp, pp, ranks // tp, ranks // moe_ep, moe_ep)


def _attention(model: ModelDescription, layout: Layout) -> str | None:
    tp, linear = layout.tp, model.linear
    if model.heads % tp:
        return f"{model.heads} heads cannot be split over tp={tp}"
    for _, _, heads in () if model.mla else model.softmax_groups():
        if heads.kv_heads % tp and tp % heads.kv_heads:
            return f"{heads.kv_heads} key heads can neither be split over nor copied to tp={tp}"
    if linear and (linear.key_heads % tp or linear.value_heads % tp):
        return f"{linear.key_heads} linear-attention heads cannot be split over tp={tp}"
    if model.compressed and model.compressed.o_groups % tp:
        return f"{model.compressed.o_groups} groups of heads cannot be split over tp={tp}"
    for width, layers in model.dense_widths:
        if layers and width % tp:
            return f"an MLP {width} wide cannot be split over tp={tp}"
    return None


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
    """Return which split divides a weight block with a common scale."""
    cuts = [(formats.weights, width, layout.tp, layers > 0) for width, layers in model.dense_widths]
    # Shared experts are small: engines replicate them if they cannot be split.
    cuts.append((formats.moe, model.moe_intermediate, layout.moe_tp, model.is_moe))
    for name, width, parts, used in cuts:
        block = find_format(name).block
        if used and parts > 1 and width // parts % block:
            return f"{width} / {parts} columns split {name}'s blocks of {block}"
    return None


def divisors(number: int, largest: float = inf) -> list[int]:
    """Return the divisors of a number, up to ``largest``, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0 and d <= largest]
