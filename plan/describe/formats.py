"""Number formats: names, sizes and hardware support.

Names are those of the run table. A weight format implies the format of activations. The KV cache
has separate formats.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf
from typing import Literal

from foretune.errors import UnknownName
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.description import ModelDescription

Support = Literal["native", "emulated", "no"]
WORST_FIRST: tuple[Support, ...] = ("no", "emulated", "native")


@dataclass(frozen=True)
class Format:
    """A number format."""

    name: str  # as in the run table's ``config.format``
    bits: int  # per number
    group: int = 0  # numbers that share a scale; 0 for one scale per tensor or row
    scale_bits: int = 0  # per scale
    activations: str = "bf16"  # format of the activations multiplied with it
    block: int = 1  # columns of weights that engines cannot split; 1 if they pad
    head_bits: int = 0  # of a cache, per scale of a token, head, and key or value

    @property
    def bytes(self) -> float:
        """Bytes per number, including scales of groups."""
        return self.bytes_per_value(inf)

    def bytes_per_value(self, width: float) -> float:
        """Return bytes per number, including scales, for heads of ``width`` numbers."""
        scales = self.scale_bits / self.group if self.group else 0.0
        return (self.bits + scales + self.head_bits / width) / 8


def _read_formats(use: str) -> dict[str, Format]:
    names = [field.name for field in fields(Format)]
    rows = [{k: row[k] for k in names} for row in shipped_rows("formats.csv") if row["use"] == use]
    texts = ("name", "activations")
    return {
        row["name"]: Format(**{k: v if k in texts else int(v) for k, v in row.items()})  # type: ignore[arg-type]
        for row in rows
    }


FORMATS = _read_formats("weights")
"""Weight formats; ``…_wo`` is weight-only."""
CACHE_FORMATS = _read_formats("cache")
"""Cache formats, with scales as in the implementations."""
DEFAULT_CACHE_FORMATS = ("bf16", "fp8")
"""Formats planned by default; others are extrapolated and planned on request."""

ACTIVATION_BYTES = {
    "bf16": 2.0,
    "fp8": 1 + 4 / 128,
    "mxfp8": 1 + 1 / 32,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,
}
"""Format of activations -> bytes per number, including scales."""
TABLE_NAMES = {"mxfp4": "w4a16_mxfp4"}
"""Our name -> name in measured tables, if different."""


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

    def mlps(self, model: ModelDescription) -> str:
        """Return the format of dense MLPs; without experts, the narrower one."""
        narrower = min(self.weights, self.moe, key=lambda name: find_format(name).bytes)
        return self.weights if model.is_moe else narrower

    @property
    def activations(self) -> str:
        """Format of the activations multiplied with the weights."""
        return FORMATS[self.weights].activations

    @property
    def attention(self) -> str:
        """The format in which prefill attention computes.

        It is fp8 if cache and activations have at most 8 bits (NVFP4 caches are converted to 8).
        Decode is memory-bound and computes in bf16.
        """
        eight_bits = self.kv in ("fp8", "nvfp4") and self.activations in ("fp8", "nvfp4")
        return "fp8" if eight_bits else "bf16"

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
    known = CACHE_FORMATS if cache else FORMATS
    if name not in known:
        raise UnknownName("format of the cache" if cache else "number format", name, known)
    return known[name]


def support_key(name: str) -> str:
    """Return a cache format's name in the hardware table; usual formats share that of weights."""
    return name if name in DEFAULT_CACHE_FORMATS else f"kv:{name}"


def table_name(name: str) -> str:
    """Return a format's name in measured tables."""
    return TABLE_NAMES.get(name, name)


def supported(name: str, architecture: str) -> Support:
    """Return how a device supports a format.

    ``native``: by matrix units or dedicated kernels. ``emulated``: kernels convert to a wider
    format first, which saves memory but costs time. ``no``: there are no kernels. Raises
    UnknownName if the format is unknown. A ``name`` of the form ``kv:…`` is an unusual cache
    format; ``architecture`` is as in `Device.architecture`: ``sm_90``, ``gfx942``,
    ``x86_64+avx512``.
    """
    find_format(name.removeprefix("kv:"), cache=name.startswith("kv:"))
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
