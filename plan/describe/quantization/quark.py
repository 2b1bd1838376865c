"""AMD Quark: one format, and others for some layers."""

from foretune.plan.describe import shipped_json
from foretune.plan.describe.quantization.fields import Fields, NotPlannedError, excluded_modules
from foretune.plan.describe.quantization.weight_formats import weight_format
from foretune.plan.describe.quantized_modules import UNQUANTIZED, NamedModules, Rule, Scheme

QUARK_TYPES: dict[str, tuple[str, int]] = {
    name: (kind, bits)
    for name, (kind, bits) in shipped_json("checkpoint_formats.json")["quark_types"].items()
}
"""Quark's name of a type -> integer or float, and bits."""


def read_quark(stored: Fields) -> Scheme:
    """AMD Quark: one format, and others for some layers by wildcard or for a class of layers."""
    default_config = stored["global_quant_config"]
    if stored.get("layer_type_quant_config"):
        raise NotPlannedError("layer_type_quant_config")
    rules = excluded_modules(stored)
    cache_fields = [stored.get("kv_cache_quant_config") or {}]
    for name, layer in (stored.get("layer_quant_config") or {}).items():
        if layer.get("output_tensors"):
            cache_fields.append(layer)
        if layer.get("weight"):
            rules.append(Rule(_quark_format(layer), NamedModules([name])))
    names = stored.get("kv_cache_group") or (stored.get("export") or {}).get("kv_cache_group")
    cache = UNQUANTIZED
    if names or any(cache_fields):
        text = str(cache_fields)
        if "fp8" not in text:
            raise NotPlannedError("the cache's format")
        cache = "fp8"
    return Scheme(_quark_format(default_config), rules, cache)


def _quark_format(layer: Fields) -> str:
    weight = layer.get("weight")
    if not weight:
        return UNQUANTIZED
    if isinstance(weight, list):
        raise NotPlannedError("weights quantized in two steps")
    kind, bits = _quark_type(weight)
    inputs = layer.get("input_tensors")
    activations = _quark_type(inputs) if inputs else None
    group = weight.get("group_size") if weight.get("qscheme") == "per_group" else 0
    if inputs and inputs.get("qscheme") == "per_group" and activations == ("float", 8):
        activations = ("mxfloat", 8)
    unsigned = str(weight.get("dtype")).startswith("uint")
    symmetric = weight.get("symmetric", not unsigned)
    offset = "" if symmetric or kind == "float" or not group else "z"
    return weight_format(kind, bits, group=group or 0, activations=activations, offset=offset)


def _quark_type(tensor: Fields) -> tuple[str, int]:
    name = str(tensor.get("dtype"))
    if name not in QUARK_TYPES:
        raise NotPlannedError(f"dtype {name}")
    return QUARK_TYPES[name]
