"""Number formats of published checkpoints' weights and cache."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Fields = Mapping[str, Any]

FORMAT_OF_SUFFIX = {
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "fp8": "fp8",
    "mxfp4": "mxfp4",
    "awq": "int4_wo",
    "gptq": "int4_wo",
    "w4a16": "int4_wo",
    "int4": "int4_wo",
    "w8a8": "int8",
    "w8a16": "int8_wo",
    "bf16": "bf16",
}
"""Last word of a checkpoint's name -> format of its projections and experts."""
BLOCKWISE_FP8_PUBLISHER = "qwen/"
"""Publisher of blockwise fp8 checkpoints (``weight_block_size`` in ``config.json``)."""

FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "int4_wo")

MODELOPT_FORMATS = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A16_AWQ": "int4_wo",
    "W4A8_AWQ": "w4afp8",
    "W8A16": "int8_wo",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""NVIDIA ModelOpt's name -> ours."""

_UNQUANTIZED_MODULE_KEYS = ("modules_to_not_convert", "ignore", "exclude_modules")
_PROJECTION = re.compile(r"self_attn(\*|\.\*|$|\.(q|k|v|o|qkv|q_a|q_b|kv_b)_proj)")
_LAYER = re.compile(r"layers\.(\d+)\.")
MAX_UNQUANTIZED_LAYERS = 2
"""If more layers keep attention unquantized, all do: engines skip the first few anyway."""


class StoredFormats(NamedTuple):
    """Formats of a checkpoint's projections, routed experts and cache."""

    weights: str = "bf16"
    moe: str = "bf16"
    kv: str = "bf16"


def format_in_name(name: str) -> str:
    """Return the format in a name like ``nvidia/Qwen3-32B-NVFP4``; empty if none."""
    for word in reversed(name.lower().replace(".", "-").replace("_", "-").split("-")):
        if word in FORMAT_OF_SUFFIX:
            blockwise = word == "fp8" and name.lower().startswith(BLOCKWISE_FP8_PUBLISHER)
            return "fp8_block" if blockwise else FORMAT_OF_SUFFIX[word]
    return ""


def stored_formats(config: Fields, quantization: Fields) -> StoredFormats:
    """Return the formats of a checkpoint from ``config.json`` and ``hf_quant_config.json``."""
    stored = quantization.get("quantization") or config.get("quantization_config")
    if not isinstance(stored, Mapping):
        return StoredFormats()
    found = _by_algorithm(stored) or _by_method(stored) or _by_groups(stored) or "bf16"
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
    if method == "fp8":
        return "fp8_block" if stored.get("weight_block_size") else "fp8"
    if method in ("gptq", "awq"):
        return "int8_wo" if stored.get("bits") == 8 else "int4_wo"
    return "mxfp4" if method == "mxfp4" else ""


def _by_groups(stored: Fields) -> str:
    """Return the format of compressed-tensors' first group."""
    groups = stored.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return ""
    group = next(iter(groups.values()))
    weights = group.get("weights") or {}
    bits = weights.get("num_bits")
    if weights.get("type") == "float":
        if bits == 4:
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        return "fp8"
    if bits == 4:
        return "int4_wo"
    return "int8" if group.get("input_activations") else "int8_wo"
