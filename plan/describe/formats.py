"""Number formats: names, sizes, hardware support, published quality, and those of a checkpoint.

Names are those of the run table. A weight format implies the format of activations. The KV cache
has separate formats.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf
from statistics import median
from typing import Any, Literal

from foretune.errors import RunTableError, UnknownName, UsageError
from foretune.plan.describe import parse_rows, read_text, shipped_json, shipped_rows, shipped_text
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


EQUIVALENT_FORMATS = {"fp8_static": "fp8", "fp8_block": "fp8"}
"""Format -> format whose quality results it shares: finer scales lose no more."""


@dataclass(frozen=True)
class AccuracyResult:
    """One benchmark of one model in one format."""

    format: str  # weight format, as in `FORMATS`; cache formats are written ``kv:fp8``
    method: str
    model: str
    benchmark: str
    baseline: float
    quantized: float
    better: str  # ``higher`` or ``lower``
    source: str

    @property
    def recovery(self) -> float:
        """Share of the baseline's quality that is kept; 1 is all."""
        share = self.quantized / self.baseline
        return share if self.better == "higher" else 1 / share


RESULT_COLUMNS = tuple(field.name for field in fields(AccuracyResult))


@cache
def published_accuracy() -> tuple[AccuracyResult, ...]:
    """Return the results shipped with the package."""
    return _parse_results(shipped_text("accuracy.csv"), "accuracy.csv")


def read_accuracy(path: str | os.PathLike[str]) -> tuple[AccuracyResult, ...]:
    """Return a user's results: a CSV file with the shipped table's columns.

    Raises RunTableError if the file cannot be read, lacks a column, or has an invalid row.
    """
    return _parse_results(read_text(path, "accuracies"), str(path))


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
    native = {"bf16", model.weight_format, model.moe_format} if model else {"bf16"}
    lossy = []
    if changed := {name for name in (formats.weights, formats.moe) if name not in native}:
        narrowest = min(changed, key=lambda name: FORMATS[name].bytes)
        lossy.append(EQUIVALENT_FORMATS.get(narrowest, narrowest))
    if formats.kv not in {"bf16", model.kv_format if model else "bf16"}:
        lossy.append(f"kv:{formats.kv}")
    total = 1.0
    for name in lossy:
        found = [r for r in known if EQUIVALENT_FORMATS.get(r.format, r.format) == name]
        same_model = [r for r in found if model and _base_name(r.model) == _base_name(model.name)]
        if not found:
            return None
        total *= median(r.recovery for r in same_model or found)
    return total


def _base_name(name: str) -> str:
    """Return a model's name without its publisher and format."""
    words = name.rpartition("/")[2].lower().split("-")
    return "-".join(w for w in words if w not in {"meta", "instruct", *FORMAT_OF_SUFFIX})


def _parse_results(text: str, name: str) -> tuple[AccuracyResult, ...]:
    rows = parse_rows(text, name, RESULT_COLUMNS)
    return tuple(_parse_result(row, f"{name}, row {i}") for i, row in enumerate(rows, 1))


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
    texts = {c: row[c] for c in RESULT_COLUMNS if c not in ("baseline", "quantized")}
    return AccuracyResult(baseline=scores[0], quantized=scores[1], **texts)


_NAMES = shipped_json("checkpoint_formats.json")
FORMAT_OF_SUFFIX: dict[str, str] = _NAMES["suffixes"]
"""Last word of a checkpoint's name -> format of its projections and experts."""
MODELOPT_FORMATS: dict[str, str] = _NAMES["modelopt"]
"""NVIDIA ModelOpt's name -> Foretune's."""
CACHE_ONLY_TOOLS = (None, "modelopt", "compressed-tensors")
"""Tools named in a file that may quantize only the cache."""
FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "int4_wo")

_FIELDS = ("quantization_config", "compression_config")
_UNQUANTIZED_MODULE_KEYS = ("modules_to_not_convert", "ignore", "exclude_modules")
_INTEGER_BITS = {3: "int3_wo", 4: "int4_wo", 8: "int8_wo"}
"""Bits of weight-only integers -> format; GPTQ and AWQ leave out 4."""
_PROJECTION = re.compile(r"attn(\*|\.\*|$|\.(q|k|v|o|qkv|q_a|q_b|kv_b)_proj)")
_ATTENTION = re.compile(r"attn|mixer\.(in|out)_proj")
_ENCODER = re.compile(r"vision|visual|audio")
_LAYER = re.compile(r"layers\.(\d+)\.")
MAX_UNQUANTIZED_LAYERS = 2
"""If more layers keep attention unquantized, all count as such, as engines skip the first few."""


def format_in_name(name: str) -> str:
    """Return the format in a name like ``nvidia/Qwen3-32B-NVFP4``; empty if none."""
    for word in reversed(name.lower().replace(".", "-").replace("_", "-").split("-")):
        if word in FORMAT_OF_SUFFIX:
            # Qwen publishes blockwise fp8 (``weight_block_size`` in ``config.json``).
            blockwise = word == "fp8" and name.lower().startswith("qwen/")
            return "fp8_block" if blockwise else FORMAT_OF_SUFFIX[word]
    return ""


def stored_formats(config: Mapping[str, Any], quantization: Mapping[str, Any]) -> Formats:
    """Return the formats of a checkpoint from ``config.json`` and ``hf_quant_config.json``.

    Raises UsageError for an unknown quantization method.
    """
    stored = quantization.get("quantization") or next(filter(None, map(config.get, _FIELDS)), None)
    if not isinstance(stored, Mapping):
        return Formats()
    weights, moe = _split(_formats_of_modules(stored))
    if not moe:
        weights, moe = "bf16", "bf16"
        tool = stored.get("quant_algo") or stored.get("quant_method")
        if tool not in CACHE_ONLY_TOOLS or stored.get("config_groups"):
            bits = f" ({stored['bits']} bits)" if "bits" in stored else ""
            raise UsageError(
                f"checkpoints quantized by {tool}{bits} cannot be planned yet: plan its "
                "unquantized model with --formats"
            )
    cache = stored.get("kv_cache_quant_algo") or stored.get("kv_cache_scheme")
    unquantized = [
        str(module) for key in _UNQUANTIZED_MODULE_KEYS for module in stored.get(key) or ()
    ]
    unquantized += [name for name in stored.get("dynamic") or () if name.startswith("-:")]
    weights = "bf16" if _attention_unquantized(unquantized) else weights
    return Formats(weights, kv="fp8" if cache else "bf16", moe=moe)


def _attention_unquantized(modules: Iterable[str]) -> bool:
    """Return whether attention's projections are among the unquantized modules."""
    layers = set()
    for module in modules:
        if not _PROJECTION.search(module) or _ENCODER.search(module):
            continue
        layer = _LAYER.search(module)
        if layer is None:
            return True
        layers.add(layer[1])
    return len(layers) > MAX_UNQUANTIZED_LAYERS


def _formats_of_modules(stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the formats in a file by module or pattern; an unknown one is empty."""
    groups = (stored.get("config_groups") or {}).values()
    if layers := stored.get("quantized_layers"):
        return {name: _by_algorithm(layer) for name, layer in layers.items()}
    if kind := _by_algorithm(stored) or _by_method(stored):
        return {"": kind}
    return {str(name): _by_group(g) for g in groups for name in g.get("targets") or ("",)}


def _split(kinds: Mapping[str, str]) -> tuple[str, str]:
    """Return the most frequent format of attention, and of other modules; empty if unknown."""
    attention = Counter(kind for name, kind in kinds.items() if _ATTENTION.search(name))
    counts = attention, Counter(kinds.values()) - attention
    first, second = (next((k for k, _ in count.most_common() if k), "") for count in counts)
    return first or second, second or first


def _by_algorithm(stored: Mapping[str, Any]) -> str:
    """Return the format of one of ModelOpt's algorithms."""
    return MODELOPT_FORMATS.get(str(stored.get("quant_algo", "")).upper(), "")


def _by_method(stored: Mapping[str, Any]) -> str:
    method = stored.get("quant_method")
    if method == "fp8":
        return "fp8_block" if stored.get("weight_block_size") else "fp8"
    if method in ("gptq", "awq"):
        return _INTEGER_BITS.get(stored.get("bits", 4), "")
    return {"fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}.get(str(method), "")


def _by_group(group: Mapping[str, Any]) -> str:
    """Return the format of one of compressed-tensors' groups."""
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    bits = weights.get("num_bits", 0)
    if weights.get("type") == "float":
        if bits == 4:
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    kinds = {(8, "int"): "int8", (4, "float"): "w4afp8"}
    multiplied = activations.get("type", "int") if activations else ""
    return kinds.get((bits, multiplied), _INTEGER_BITS.get(bits, ""))
