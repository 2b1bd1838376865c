"""Number formats of a checkpoint, from its name, ``config.json`` and ``hf_quant_config.json``."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from foretune.errors import UsageError
from foretune.plan.describe import shipped_json

Fields = Mapping[str, Any]

_NAMES = shipped_json("checkpoint_formats.json")
FORMAT_OF_SUFFIX: dict[str, str] = _NAMES["suffixes"]
"""Last word of a checkpoint's name -> format of its projections and experts."""
MODELOPT_FORMATS: dict[str, str] = _NAMES["modelopt"]
"""NVIDIA ModelOpt's name -> Foretune's."""
CACHE_ONLY_TOOLS = (None, "modelopt", "compressed-tensors")
"""Tools named in a file that may quantize only the cache."""
FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "int4_wo")

_UNQUANTIZED_MODULE_KEYS = ("modules_to_not_convert", "ignore", "exclude_modules")
_INTEGER_BITS = {3: "int3_wo", 4: "int4_wo", 8: "int8_wo"}
"""Bits of weight-only integers -> format; GPTQ and AWQ leave out 4."""
_PROJECTION = re.compile(r"self_attn(\*|\.\*|$|\.(q|k|v|o|qkv|q_a|q_b|kv_b)_proj)")
_LAYER = re.compile(r"layers\.(\d+)\.")
MAX_UNQUANTIZED_LAYERS = 2
"""If more layers keep attention unquantized, all count as such, as engines skip the first few."""


class StoredFormats(NamedTuple):
    """Formats of a checkpoint's projections, routed experts and cache."""

    weights: str = "bf16"
    moe: str = "bf16"
    kv: str = "bf16"


def format_in_name(name: str) -> str:
    """Return the format in a name like ``nvidia/Qwen3-32B-NVFP4``; empty if none."""
    for word in reversed(name.lower().replace(".", "-").replace("_", "-").split("-")):
        if word in FORMAT_OF_SUFFIX:
            # Qwen publishes blockwise fp8 (``weight_block_size`` in ``config.json``).
            blockwise = word == "fp8" and name.lower().startswith("qwen/")
            return "fp8_block" if blockwise else FORMAT_OF_SUFFIX[word]
    return ""


def stored_formats(config: Fields, quantization: Fields) -> StoredFormats:
    """Return the formats of a checkpoint from ``config.json`` and ``hf_quant_config.json``.

    Raises UsageError for an unknown quantization method.
    """
    stored = quantization.get("quantization") or config.get("quantization_config")
    if not isinstance(stored, Mapping):
        return StoredFormats()
    found = _by_algorithm(stored) or _by_method(stored) or _by_groups(stored)
    if not found:
        found, tool = "bf16", stored.get("quant_algo") or stored.get("quant_method")
        if tool not in CACHE_ONLY_TOOLS or stored.get("config_groups"):
            raise UsageError(
                f"checkpoints quantized by {tool} cannot be planned yet: plan its unquantized "
                "model with --formats"
            )
    cache = stored.get("kv_cache_quant_algo") or stored.get("kv_cache_scheme")
    unquantized = [
        str(module) for key in _UNQUANTIZED_MODULE_KEYS for module in stored.get(key) or ()
    ]
    return StoredFormats(
        "bf16" if _attention_unquantized(unquantized) else found, found, "fp8" if cache else "bf16"
    )


def _attention_unquantized(modules: Iterable[str]) -> bool:
    """Return whether attention's projections are among the unquantized modules."""
    layers = set()
    for module in modules:
        if not _PROJECTION.search(module):
            continue
        layer = _LAYER.search(module)
        if layer is None:
            return True
        layers.add(layer[1])
    return len(layers) > MAX_UNQUANTIZED_LAYERS


def _by_algorithm(stored: Fields) -> str:
    """Return the format in ModelOpt's configuration; the most frequent of a mixture."""
    layers = stored.get("quantized_layers")
    if isinstance(layers, Mapping) and layers:
        counts = Counter(
            MODELOPT_FORMATS.get(str(v.get("quant_algo")), "") for v in layers.values()
        )
        return counts.most_common(1)[0][0]
    return MODELOPT_FORMATS.get(str(stored.get("quant_algo", "")).upper(), "")


def _by_method(stored: Fields) -> str:
    method = stored.get("quant_method")
    if method == "fbgemm_fp8":
        return "fp8"
    if method == "fp8":
        return "fp8_block" if stored.get("weight_block_size") else "fp8"
    if method in ("gptq", "awq"):
        return _INTEGER_BITS.get(stored.get("bits", 4), "")
    return "mxfp4" if method == "mxfp4" else ""


def _by_groups(stored: Fields) -> str:
    """Return the format of compressed-tensors' first group."""
    groups = stored.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return ""
    group = next(iter(groups.values()))
    weights = group.get("weights") or {}
    bits = weights.get("num_bits", 0)
    if weights.get("type") == "float":
        if bits == 4:
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if bits == 8 and group.get("input_activations"):
        return "int8"
    return _INTEGER_BITS.get(bits, "")
