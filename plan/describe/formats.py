"""Number formats of a deployment: names, sizes, hardware support, and published quality.

Names are those of the run table. A weight format implies the activations it is multiplied with. The
KV cache has separate formats.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import inf
from statistics import median
from typing import Literal

from foretune.errors import RunTableError, UnknownName
from foretune.files import read_bytes, translate_read_errors
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.huggingface import FORMAT_OF_SUFFIX

Support = Literal["native", "emulated", "no"]
WORST_FIRST: tuple[Support, ...] = ("no", "emulated", "native")


@dataclass(frozen=True)
class Format:
    """How numbers are stored.

    Attributes:
        name: as in the run table's ``config.format``.
        bits: per number.
        group: numbers that share a scale; 0 for one scale per tensor or row.
        scale_bits: per scale.
        activations: format of the activations multiplied with it.
        block: columns of weights that engines cannot split; 1 if they pad.
        head_bits: of a cache, per scale of a token, head, and key or value.
    """

    name: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    activations: str = "bf16"
    block: int = 1
    head_bits: int = 0

    @property
    def bytes(self) -> float:
        """Bytes per number, including scales of groups."""
        return self.bytes_per_value(inf)

    def bytes_per_value(self, width: float) -> float:
        """Return bytes per number, including scales, for heads of ``width`` numbers."""
        scales = self.scale_bits / self.group if self.group else 0.0
        return (self.bits + scales + self.head_bits / width) / 8


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bf16", 16),
        Format("fp8", 8, activations="fp8"),
        Format("fp8_static", 8, activations="fp8"),
        Format("fp8_block", 8, 128 * 128, 32, "fp8", block=128),
        Format("int8", 8, activations="int8"),
        Format("int8_wo", 8),
        Format("int4_wo", 4, 128, 16, block=128),
        Format("int3_wo", 3, 128, 16, block=128),
        Format("nvfp4", 4, 16, 8, "nvfp4", block=16),
        Format("mxfp4", 4, 32, 8),
        Format("w4a8_mxfp4_mxfp8", 4, 32, 8, "mxfp8"),
        Format("w4afp8", 4, 128, 16, "fp8", block=128),
    )
}
"""Weight formats. fp8 has a scale per tensor or row, fp8_static also static activation scales; int8
is W8A8; ``…_wo`` is weight-only; mxfp4 is multiplied with 16 bits."""

CACHE_FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bf16", 16),
        Format("fp8", 8),
        Format("nvfp4", 4, 16, 8),
        Format("fp4_e2m1", 4, 16, 8),
        Format("int4_head", 4, head_bits=32),
    )
}
"""Cache formats, with scales as in the implementations: fp8 has one per tensor; NVFP4 follows
TensorRT-LLM and vLLM's ``nvfp4_kv_cache_full_dim``; SGLang's ``fp4_e2m1`` has an 8-bit exponent per
16 numbers (OCP: 32); vLLM's ``int4_per_token_head`` an fp32 word per token, head, and key or
value."""
DEFAULT_CACHE_FORMATS = ("bf16", "fp8")
"""Formats planned by default; others are extrapolated and planned on request."""

ACTIVATION_BYTES = {
    "bf16": 2.0, "fp8": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "int8": 1.0, "nvfp4": 0.5 + 1 / 16
}  # fmt: skip
"""Format of activations -> bytes per number, including scales."""
TABLE_NAMES = {"mxfp4": "w4a16_mxfp4"}
"""Our name -> name in measured tables, if different."""


@dataclass(frozen=True)
class Formats:
    """The formats of one deployment; raises UnknownName if one is unknown.

    Attributes:
        weights: of attention's and dense projections; embeddings, routers, norms and the output
            projection stay in bf16, as in published checkpoints.
        kv: cache format, as in `foretune.plan.describe.formats`.
        moe: of routed experts; empty means that of the weights.
    """

    weights: str = "bf16"
    kv: str = "bf16"
    moe: str = ""

    def __post_init__(self) -> None:
        find_format(self.weights)
        find_cache_format(self.kv)
        object.__setattr__(self, "moe", find_format(self.moe or self.weights).name)

    def __str__(self) -> str:
        experts = f"+{self.moe} experts" if self.moe != self.weights else ""
        return f"{self.weights}{experts}, {self.kv} cache"

    @property
    def activations(self) -> str:
        """Format of the activations multiplied with the weights."""
        return FORMATS[self.weights].activations

    @property
    def attention(self) -> str:
        """The format that prefill attention computes in.

        It is fp8 if cache and activations have at most 8 bits (NVFP4 caches are converted to 8).
        Decode is memory-bound and computes in bf16.
        """
        eight_bits = self.kv in ("fp8", "nvfp4") and self.activations in ("fp8", "nvfp4")
        return "fp8" if eight_bits else "bf16"

    @property
    def dispatch_bytes(self) -> float:
        """Bytes per number of tokens sent to experts on other ranks.

        They are quantized before sending: TensorRT-LLM's post-quant all-gather, DeepEP.
        """
        return ACTIVATION_BYTES[find_format(self.moe).activations]

    def support(self, architecture: str) -> Support:
        """Return the support of a device: that of the least supported format."""
        names = (self.weights, self.moe, support_key(self.kv))
        found = {supported(name, architecture) for name in names}
        return next(support for support in WORST_FIRST if support in found)


def checkpoint_formats(model: ModelDescription) -> Formats:
    """Return the formats that a model is published in."""
    return Formats(weights=model.weight_format, kv=model.kv_format, moe=model.moe_format)


def draft_formats(draft: ModelDescription, formats: Formats) -> Formats:
    """Return a draft model's formats: as published, with the main model's cache format."""
    return replace(checkpoint_formats(draft), kv=formats.kv)


def find_format(name: str) -> Format:
    """Return the format called ``name``.

    Raises UnknownName.
    """
    if name not in FORMATS:
        raise UnknownName("number format", name, FORMATS)
    return FORMATS[name]


def find_cache_format(name: str) -> Format:
    """Return the cache format called ``name``.

    Raises UnknownName.
    """
    if name not in CACHE_FORMATS:
        raise UnknownName("format of the cache", name, CACHE_FORMATS)
    return CACHE_FORMATS[name]


def support_key(name: str) -> str:
    """Return a cache format's name in the hardware table; usual ones share that of weights."""
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
    if name.startswith("kv:"):
        find_cache_format(name.removeprefix("kv:"))
    else:
        find_format(name)
    table = _support()
    if architecture not in _architectures():
        architecture = "cpu" if architecture.startswith(("x86_64", "aarch64")) else ""
    return table.get((name, architecture), "no")


@cache
def _support() -> dict[tuple[str, str], Support]:
    package = files("foretune.plan.describe")
    text = package.joinpath("format_support.csv").read_text(encoding="utf-8")
    return {
        (row["format"], architecture): "native" if row["support"] == "native" else "emulated"
        for row in csv.DictReader(text.splitlines())
        for architecture in row["architectures"].split()
    }


@cache
def _architectures() -> set[str]:
    return {architecture for _, architecture in _support()}


RESULT_COLUMNS = (
    "format",
    "method",
    "model",
    "benchmark",
    "baseline",
    "quantized",
    "better",
    "source",
)
EQUIVALENT_FORMATS = {"fp8_static": "fp8", "fp8_block": "fp8"}
"""Format -> format whose results it shares: finer scales lose no more."""


@dataclass(frozen=True)
class AccuracyResult:
    """One benchmark of one model in one format.

    Attributes:
        format: weight format, as in `FORMATS`; cache formats are written ``kv:fp8``.
        method: the quantization method.
        model, benchmark: the measured model and benchmark.
        baseline, quantized: the scores.
        better: ``higher`` or ``lower``.
        source: the publication.
    """

    format: str
    method: str
    model: str
    benchmark: str
    baseline: float
    quantized: float
    better: str
    source: str

    @property
    def recovery(self) -> float:
        """Share of the baseline's quality that is kept; 1 is all."""
        share = self.quantized / self.baseline
        return share if self.better == "higher" else 1 / share


@cache
def published_accuracy() -> tuple[AccuracyResult, ...]:
    """Return the results shipped with the package."""
    text = files("foretune.plan.describe").joinpath("accuracy.csv").read_text(encoding="utf-8")
    return _parse_results(text, "accuracy.csv")


def read_accuracy(path: str | os.PathLike[str]) -> tuple[AccuracyResult, ...]:
    """Return a user's results: a CSV file with the shipped table's columns.

    Raises RunTableError if the file cannot be read, lacks a column, or has an invalid row.
    """
    with translate_read_errors(path, RunTableError, "is no readable table of accuracies: {}"):
        return _parse_results(read_bytes(path).decode("utf-8-sig"), str(path))


def recovery(
    formats: Formats,
    model: ModelDescription | None = None,
    results: Sequence[AccuracyResult] | None = None,
) -> float | None:
    """Return the share of quality that a deployment's formats keep; None if unpublished.

    It multiplies, over weight and cache formats, the median over results: of this model if there
    are any, else of all models. Formats that the model was published in lose nothing. ``results``
    replace the published ones.
    """
    known = published_accuracy() if results is None else results
    total = 1.0
    for name in _lossy_formats(formats, model):
        found = [r for r in known if EQUIVALENT_FORMATS.get(r.format, r.format) == name]
        same_model = [r for r in found if model and _base_name(r.model) == _base_name(model.name)]
        if not found:
            return None
        total *= median(r.recovery for r in same_model or found)
    return total


def _lossy_formats(formats: Formats, model: ModelDescription | None) -> list[str]:
    """Return the lossy formats: the narrowest of weights, and that of the cache."""
    native, cache_native = {"bf16"}, {"bf16"}
    if model:
        native |= {model.weight_format, model.moe_format}
        cache_native.add(model.kv_format)
    moe = formats.moe if model is None or model.is_moe else formats.weights
    changed = {f for f in (formats.weights, moe) if f not in native}
    names = []
    if changed:
        narrowest = min(changed, key=lambda f: FORMATS[f].bytes)
        names.append(EQUIVALENT_FORMATS.get(narrowest, narrowest))
    if formats.kv not in cache_native:
        names.append(f"kv:{formats.kv}")
    return names


def _base_name(name: str) -> str:
    """Return a model's name without its publisher and format."""
    words = name.rpartition("/")[2].lower().split("-")
    return "-".join(w for w in words if w not in {"meta", "instruct", *FORMAT_OF_SUFFIX})


def _parse_results(text: str, name: str) -> tuple[AccuracyResult, ...]:
    reader = csv.DictReader(text.splitlines())
    if missing := [c for c in RESULT_COLUMNS if c not in (reader.fieldnames or ())]:
        raise RunTableError(
            f"{name} has no column {missing[0]!r}: expected {', '.join(RESULT_COLUMNS)}"
        )
    return tuple(_parse_result(row, f"{name}, row {i}") for i, row in enumerate(reader, 1))


def _parse_result(row: dict[str, str], where: str) -> AccuracyResult:
    try:
        scores = float(row["baseline"]), float(row["quantized"])
    except ValueError as e:
        raise RunTableError(f"{where}: baseline and quantized must be numbers ({e})") from e
    if min(scores) <= 0:
        raise RunTableError(f"{where}: scores must be positive")
    if row["better"] not in ("higher", "lower"):
        raise RunTableError(f"{where}: better is 'higher' or 'lower', not {row['better']!r}")
    known = CACHE_FORMATS if row["format"].startswith("kv:") else FORMATS
    if row["format"].removeprefix("kv:") not in known:
        raise RunTableError(f"{where}: unknown number format {row['format']!r}")
    texts = {c: row[c] for c in ("format", "method", "model", "benchmark", "better", "source")}
    return AccuracyResult(baseline=scores[0], quantized=scores[1], **texts)
