"""What descriptions of quantization have in common: excluded modules, the cache, missing fields."""

from collections.abc import Mapping
from typing import Any

from foretune.plan.describe.quantized_modules import UNQUANTIZED, NamedModules, Rule

Fields = Mapping[str, Any]

EXCLUDED_FIELDS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)
"""Fields that list modules in 16 bits."""


class NotPlannedError(Exception):
    """A part of a description that is not planned; its text says which."""


def excluded_modules(stored: Fields) -> list[Rule]:
    """Return a rule for the modules that stay in 16 bits, if any."""
    names = [str(name) for field in EXCLUDED_FIELDS for name in stored.get(field) or ()]
    return [Rule(UNQUANTIZED, NamedModules(names))] if names else []


def cache_format(stored: Fields) -> str:
    """Return the format of the cache that a checkpoint has scales for."""
    scheme = stored.get("kv_cache_quant_algo") or stored.get("kv_cache_scheme")
    if not scheme or str(scheme).lower() in ("none", "auto"):
        return UNQUANTIZED
    if isinstance(scheme, Mapping):
        if (scheme.get("type", "float"), scheme.get("num_bits", 8)) == ("float", 8):
            return "fp8"
        raise NotPlannedError(f"a cache of {scheme.get('num_bits')}-bit {scheme.get('type')}")
    # AutoFP8 writes how its scales were found: static.
    names = {"FP8": "fp8", "FP8_E4M3": "fp8", "STATIC": "fp8", "NVFP4": "nvfp4"}
    if str(scheme).upper() not in names:
        raise NotPlannedError(f"a cache in {scheme}")
    return names[str(scheme).upper()]


def required_field(stored: Fields, *names: str) -> Any:
    """Return the first of some fields that a description has."""
    for name in names:
        if stored.get(name) is not None:
            return stored[name]
    raise NotPlannedError(f"{names[0]} is missing")
