"""Number formats: their arithmetic, names and hardware support.

A format is its arithmetic: the bits of a weight, the scales of its groups, and the format of the
activations that it is multiplied with. Usual formats have a name of the run table. Others are
written in their terms:

- ``int4_wo_g32``: as ``int4_wo``, but 32 weights share a scale. ``_g32z`` adds a zero point of as
  many bits as a weight, ``_g32b`` a bias of 16 bits, and ``_row`` has a scale per row instead.
- ``fp8:1.6%bf16``: fp8, but 1.6 % of the weights are in bf16.

Kernels, measured tables and published quality of such a format are those of the usual one in front;
a mixture's times are those of its parts.
The KV cache has separate formats.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Literal

from foretune.errors import UnknownName
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.description import ModelDescription

Support = Literal["native", "emulated", "no"]
WORST_FIRST: tuple[Support, ...] = ("no", "emulated", "native")
GROUP_SCALE_BITS = 16
"""Bits of a group's scale, if the usual format has no groups."""
BIAS_BITS = 16
"""Bits of a group's bias."""
MIN_MIXED_EFFECT = 0.01
"""Formats of a few weights are left out if all of them change the bytes by less than this."""
_GROUPED = re.compile(r"(?P<base>\w+?)_(g(?P<group>[1-9]\d*)(?P<offset>[zb]?)|row)")
_SHARE = re.compile(r"(?P<percent>\d+(\.\d+)?)%(?P<name>\w+)")


@dataclass(frozen=True)
class Format:
    """A number format."""

    name: str
    bits: float  # per number; of a mixture, their mean
    group: int = 0  # numbers that share a scale; 0 for one scale per tensor or row
    scale_bits: int = 0  # per scale
    activations: str = "bf16"  # format of the activations multiplied with it
    block: int = 1  # columns of weights that engines cannot split; 1 if they pad
    head_bits: int = 0  # of a cache, per scale of a token, head, and key or value
    offset_bits: int = 0  # per group: a zero point or a bias
    base: str = ""  # usual format with the same kernels; empty if it is one
    parts: tuple[tuple[float, "Format"], ...] = ()  # of a mixture: shares of the weights

    @property
    def bytes(self) -> float:
        """Bytes per number, including scales of groups."""
        return self.bytes_per_value(inf)

    @property
    def narrowest_bits(self) -> float:
        """Bits per number of the narrowest part of a mixture."""
        return min([part.bits for _, part in self.parts], default=self.bits)

    def bytes_per_value(self, width: float) -> float:
        """Return bytes per number, including scales, for heads of ``width`` numbers."""
        if self.parts:
            return sum(share * part.bytes_per_value(width) for share, part in self.parts)
        scales = self.scale_bits / self.group if self.group else 0.0
        offsets = self.offset_bits / self.group if self.group else 0.0
        return (self.bits + scales + offsets + self.head_bits / width) / 8


def _read_formats(use: str) -> dict[str, Format]:
    texts = ("name", "activations")
    integers = ("bits", "group", "scale_bits", "block", "head_bits")
    formats = {}
    for row in shipped_rows("formats.csv"):
        if row["use"] == use:
            numbers = {column: int(row[column]) for column in integers}
            named = {column: row[column] for column in texts}
            formats[row["name"]] = Format(**named, **numbers)  # type: ignore[arg-type]
    return formats


FORMATS = _read_formats("weights")
"""Usual weight formats; ``…_wo`` is weight-only."""
CACHE_FORMATS = _read_formats("cache")
"""Cache formats, with scales as in the implementations."""
DEFAULT_CACHE_FORMATS = ("bf16", "fp8")
"""Formats planned by default; others are extrapolated and planned on request."""

ACTIVATION_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp8": 1 + 4 / 128,
    "mxfp8": 1 + 1 / 32,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
"""Format of activations -> bytes per number, including scales."""
NARROW_ACTIVATIONS = ("fp8", "mxfp8", "nvfp4", "mxfp4")
"""Formats of activations that prefill attention may compute with, in fp8."""
MEASURED_NAMES = {
    row["name"]: row["measured_as"] for row in shipped_rows("formats.csv") if row["measured_as"]
}
"""Our name -> name in measured tables, if different: of the same or the nearest arithmetic."""


@dataclass(frozen=True)
class Formats:
    """The formats of one deployment; raises UnknownName if one is unknown.

    Attributes:
        weights: format of attention's projections, and of dense MLPs beside experts; embeddings,
            routers, norms and the output projection stay in bf16, as in published checkpoints.
        kv: cache format, as in `foretune.plan.describe.formats`.
        moe: format of routed experts, or of MLPs if there are none; empty means ``weights``.
    """

    weights: str = "bf16"
    kv: str = "bf16"
    moe: str = ""

    def __post_init__(self) -> None:
        find_format(self.weights)
        find_format(self.kv, cache=True)
        object.__setattr__(self, "moe", find_format(self.moe or self.weights).name)

    def __str__(self) -> str:
        experts = f"+{self.moe} experts" if self.moe != self.weights else ""
        return f"{self.weights}{experts}, {self.kv} cache"

    @property
    def pure_parts(self) -> list[tuple[float, "Formats"]]:
        """Shares of the layers, each with formats that are no mixtures; itself if it has none."""
        weights = find_format(self.weights).parts
        moe = find_format(self.moe).parts
        if not weights and not moe:
            return [(1.0, self)]
        return [
            (share * moe_share, replace(self, weights=weight.name, moe=expert.name))
            for share, weight in weights or ((1.0, find_format(self.weights)),)
            for moe_share, expert in moe or ((1.0, find_format(self.moe)),)
            if share * moe_share > 0
        ]

    def mlps(self, model: ModelDescription) -> str:
        """Return the format of dense MLPs."""
        return self.weights if model.is_moe else self.moe

    @property
    def tables(self) -> str:
        """Format of embeddings, output projection, norms, and whatever has no narrower one."""
        return "fp32" if self.weights == "fp32" else "bf16"

    @property
    def activations(self) -> str:
        """Format of the activations multiplied with the weights."""
        return find_format(self.weights).activations

    @property
    def attention(self) -> str:
        """The format in which prefill attention computes.

        It is fp8 if cache and activations have at most 8 bits (NVFP4 caches are converted to 8).
        Decode is memory-bound and computes in `tables`.
        """
        narrow_cache = self.kv in ("fp8", "nvfp4")
        if narrow_cache and self.activations in NARROW_ACTIVATIONS:
            return "fp8"
        return self.tables

    def support(self, architecture: str) -> Support:
        """Return a device's support: that of the least supported format."""
        names = (self.weights, self.moe, support_key(self.kv))
        found = {supported(name, architecture) for name in names}
        return next(support for support in WORST_FIRST if support in found)


def checkpoint_formats(model: ModelDescription) -> Formats:
    """Return the formats in which a model is published."""
    return Formats(weights=model.weight_format, kv=model.kv_format, moe=model.moe_format)


def describe_formats(formats: Formats, model: ModelDescription) -> str:
    """Return a model's formats in words."""
    return str(formats) if model.is_moe else str(formats).replace("experts", "MLPs")


def draft_formats(draft: ModelDescription, formats: Formats) -> Formats:
    """Return a draft model's formats: as published, with the main model's cache format."""
    return replace(checkpoint_formats(draft), kv=formats.kv)


def find_format(name: str, cache: bool = False) -> Format:
    """Return the format of weights, or of a cache, called ``name``; raises UnknownName."""
    if cache:
        if name not in CACHE_FORMATS:
            raise UnknownName("format of the cache", name, CACHE_FORMATS)
        return CACHE_FORMATS[name]
    return _weight_format(name)


@cache
def _weight_format(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]

    main, *others = name.split(":")
    shares = [_SHARE.fullmatch(other) for other in others]
    if others and all(shares):
        named = {share["name"]: float(share["percent"]) / 100 for share in shares if share}
        return _mixture(name, main, named)

    match = _GROUPED.fullmatch(name)
    base = FORMATS.get(match["base"]) if match else None
    if match is None or base is None:
        raise UnknownName("number format", name, FORMATS)
    if match["group"] is None:
        return replace(base, name=name, group=0, block=1, base=base.name)
    group = int(match["group"])
    offset_bits = {"": 0, "z": int(base.bits), "b": BIAS_BITS}[match["offset"]]
    return replace(
        base,
        name=name,
        group=group,
        scale_bits=base.scale_bits or GROUP_SCALE_BITS,
        block=group if base.block > 1 else 1,
        offset_bits=offset_bits,
        base=base.name,
    )


def _mixture(name: str, main: str, shares: Mapping[str, float]) -> Format:
    """Return ``main`` with a share of the weights in each of other formats."""
    first = _weight_format(main)
    others = [(share, _weight_format(other)) for other, share in shares.items()]
    parts = [(max(1.0 - sum(shares.values()), 0.0), first), *others]
    return replace(
        first,
        name=name,
        bits=sum(share * part.bits for share, part in parts),
        block=max(part.block for _, part in parts),
        base=first.base or first.name,
        parts=tuple(parts),
    )


def grouped_name(base: str, group: int, offset: str = "") -> str:
    """Return the name of ``base`` with a scale per ``group`` weights; 0 for one per row.

    ``offset`` is ``z`` for a zero point per group, ``b`` for a bias.
    """
    usual = FORMATS[base]
    if group == usual.group and not offset:
        return base
    return f"{base}_g{group}{offset}" if group else f"{base}_row"


def mixture_name(weights: Mapping[str, float], main: str) -> str:
    """Return the name of a mixture: format -> its number of weights, of which ``main`` is one."""
    total = sum(weights.values())
    mean_bytes = sum(find_format(name).bytes * count for name, count in weights.items()) / total
    if abs(mean_bytes / find_format(main).bytes - 1.0) < MIN_MIXED_EFFECT:
        return main
    others = [
        f"{100 * count / total:.1f}%{name}"
        for name, count in sorted(weights.items(), key=lambda item: -item[1])
        if name != main and count / total >= 0.0005
    ]
    return ":".join([main, *others])


def base_format(name: str) -> str:
    """Return the usual weight format whose kernels, tables and quality a format shares."""
    return find_format(name).base or name


def support_key(name: str) -> str:
    """Return a cache format's name in the hardware table; usual formats share that of weights."""
    return name if name in DEFAULT_CACHE_FORMATS else f"kv:{name}"


def table_name(name: str) -> str:
    """Return a format's name in measured tables; cache formats have the same one."""
    if name in CACHE_FORMATS:
        return MEASURED_NAMES.get(name, name)
    base = base_format(name)
    return MEASURED_NAMES.get(base, base)


def supported(name: str, architecture: str) -> Support:
    """Return how a device supports a format.

    ``native``: by matrix units or dedicated kernels. ``emulated``: kernels convert to a wider
    format first, which saves memory but costs time. ``no``: there are no kernels. Raises
    UnknownName if the format is unknown. A ``name`` of the form ``kv:…`` is an unusual cache
    format; ``architecture`` is as in `Device.architecture`: ``sm_90``, ``gfx942``,
    ``x86_64+avx512``.
    """
    if name.startswith("kv:"):
        find_format(name.removeprefix("kv:"), cache=True)
        return _kernels(name, architecture)

    # A mixture is supported as its least supported part.
    parts = [part for _, part in find_format(name).parts] or [find_format(name)]
    levels = {_kernels(part.base or part.name, architecture) for part in parts}
    return next(level for level in WORST_FIRST if level in levels)


def _kernels(name: str, architecture: str) -> Support:
    """Return how a device supports a usual format."""
    table = _support()
    if all(architecture != known for _, known in table):
        architecture = "cpu" if architecture.startswith(("x86_64", "aarch64")) else ""
    return table.get((name, architecture), "no")


@cache
def _support() -> dict[tuple[str, str], Support]:
    return {
        (row["format"], architecture): "native" if row["support"] == "native" else "emulated"
        for row in shipped_rows("format_support.csv")
        for architecture in row["architectures"].split()
    }
