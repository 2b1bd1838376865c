"""NVIDIA ModelOpt: one algorithm, or one per module."""

from collections.abc import Mapping

from foretune.plan.describe import shipped_json
from foretune.plan.describe.formats import grouped_name
from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
)
from foretune.plan.describe.quantized_modules import UNQUANTIZED, NamedModules, Rule, Scheme

MODELOPT_FORMATS: dict[str, str] = shipped_json("checkpoint_formats.json")["modelopt"]
"""NVIDIA ModelOpt's name -> Foretune's."""


def read_modelopt(stored: Fields) -> Scheme:
    """NVIDIA ModelOpt: one algorithm, or one per module."""
    rules = excluded_modules(stored)
    layers = stored.get("quantized_layers")
    if not layers:
        algorithm = stored.get("quant_algo")
        default = _algorithm(stored) if algorithm else UNQUANTIZED
        if default == "nvfp4" and _has_no_inputs(stored):
            default = "nvfp4_wo"
        return Scheme(default, rules, cache_format(stored))
    names_by_format: dict[str, list[str]] = {}
    for name, layer in layers.items():
        names_by_format.setdefault(_algorithm(layer), []).append(name)
    rules += [Rule(name, NamedModules(names)) for name, names in names_by_format.items()]
    return Scheme(rules=rules, cache=cache_format(stored), must_match=True)


def _has_no_inputs(stored: Fields) -> bool:
    """Whether a description says that no group quantizes activations, as vLLM reads it."""
    groups = stored.get("config_groups") or {}
    return bool(groups) and all(
        isinstance(group, Mapping) and group.get("input_activations") is None
        for group in groups.values()
    )


def _algorithm(stored: Fields) -> str:
    name = str(stored.get("quant_algo") or "").upper()
    if name not in MODELOPT_FORMATS:
        raise NotPlannedError(f"quant_algo {name or 'missing'}")
    base = MODELOPT_FORMATS[name]
    group = stored.get("group_size")
    if group and base.startswith(("int4", "w4afp8")):
        return grouped_name(base, group)
    return base
