"""The number formats of a checkpoint, from its files or its name."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe import shipped_json
from foretune.plan.describe.formats import Formats

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
