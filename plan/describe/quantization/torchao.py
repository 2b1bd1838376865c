"""torchao: a configuration, a short name, or a configuration per module."""

from collections.abc import Mapping
from typing import Any

from foretune.plan.describe import shipped_json
from foretune.plan.describe.formats import grouped_name
from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
    required_field,
)
from foretune.plan.describe.quantization.weight_formats import weight_format
from foretune.plan.describe.quantized_modules import UNQUANTIZED, NamedModules, Rule, Scheme

TORCHAO_FORMATS: dict[str, str] = shipped_json("checkpoint_formats.json")["torchao"]
"""torchao's configuration or short name -> Foretune's format."""

TORCHAO_GROUPS = {"w4a8_int8": 32}
"""Format -> weights of a group, if torchao's file does not say."""

TORCHAO_PER_MODULE = ("ModuleFqnToConfig", "FqnToConfig")

TORCHAO_ANY_BITS = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")
"""torchao's configurations whose bits and groups are fields."""


def read_torchao(stored: Fields) -> Scheme:
    """Torchao: a configuration, a short name, or a configuration per module."""
    kind = stored.get("quant_type")
    if isinstance(kind, str):
        default = _torchao_format(kind, stored.get("quant_type_kwargs") or {})
        return Scheme(default, excluded_modules(stored), cache_format(stored))
    configs = dict(required_field(stored, "quant_type"))
    inside = configs.get("default") or {}
    if inside.get("_type") in TORCHAO_PER_MODULE:
        options = inside.get("_data") or {}
        configs = dict(required_field(options, "module_fqn_to_config", "fqn_to_config"))
        configs["default"] = configs.pop("_default", None)

    # Without a default, only the named modules are quantized.
    rules = excluded_modules(stored)
    default_config = configs.pop("default", None)
    for name, config in configs.items():
        rules.append(Rule(_torchao_config(config), NamedModules([name])))
    return Scheme(
        _torchao_config(default_config),
        rules,
        cache_format(stored),
        must_match=default_config is None,
    )


def _torchao_config(config: Fields | None) -> str:
    """Return the format of one of torchao's configurations, as its ``to_dict`` writes it."""
    if config is None:
        return UNQUANTIZED
    return _torchao_format(str(config.get("_type")), config.get("_data") or {})


def _torchao_format(name: str, options: Fields) -> str:
    weight_type = str(_torchao_value(options.get("weight_dtype")))
    if name in TORCHAO_ANY_BITS:
        granularity = options.get("weight_granularity") or options.get("granularity") or {}
        group = (granularity.get("_data") or {}).get("group_size", 0)
        activations = ("int", 8) if name.startswith("Int8Dynamic") else None
        bits = int(weight_type.removeprefix("int"))
        return weight_format("int", bits, group=group, activations=activations)
    if name.startswith("MXDynamicActivation"):
        return "w4a4_mxfp4" if weight_type.startswith("float4") else "mxfp8"
    if name not in TORCHAO_FORMATS:
        raise NotPlannedError(f"quant_type {name}")
    base = TORCHAO_FORMATS[name]
    group = options.get("group_size", TORCHAO_GROUPS.get(base, 0))
    return grouped_name(base, group) if isinstance(group, int) and group > 0 else base


def _torchao_value(value: Any) -> Any:
    """Return a value that torchao may have written with its type."""
    return value.get("_data") if isinstance(value, Mapping) else value
