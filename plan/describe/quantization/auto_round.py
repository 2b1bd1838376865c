"""Intel's AutoRound: integers or floats, with other bits for some layers."""

from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
    required_field,
)
from foretune.plan.describe.quantization.weight_formats import (
    DEFAULT_GROUP,
    FP8_BLOCK,
    MX_GROUP,
    NV_GROUP,
    integer_weights,
    weight_format,
)
from foretune.plan.describe.quantized_modules import REGEX, UNQUANTIZED, NamedModules, Rule, Scheme

AUTO_ROUND_PATTERN = set("*+?^$()[]{}|\\")
"""Characters of regular expressions among AutoRound's names of modules."""


def read_auto_round(stored: Fields) -> Scheme:
    """Intel's AutoRound: as GPTQ, with other bits for some layers in ``extra_config``."""
    rules = excluded_modules(stored)
    for name, changes in (stored.get("extra_config") or {}).items():
        own = {**stored, **changes}
        is_pattern = not AUTO_ROUND_PATTERN.isdisjoint(name)
        named = NamedModules([f"{REGEX}.*(?:{name})" if is_pattern else name])
        rules.append(Rule(_auto_round_format(own), named))
    return Scheme(_auto_round_format(stored), rules, cache_format(stored))


def _auto_round_format(stored: Fields) -> str:
    bits = required_field(stored, "bits")
    data_type = str(stored.get("data_type") or "int")
    activation_bits = stored.get("act_bits") or 16
    if bits >= 16:
        return UNQUANTIZED
    if data_type == "int" and activation_bits >= 16:
        offset = "z" if stored.get("sym") is False else ""
        return integer_weights(bits, stored.get("group_size", DEFAULT_GROUP), offset)
    if not data_type.startswith(("int", "fp", "mx_fp", "nv_fp")) or "_dq" in data_type:
        raise NotPlannedError(f"data_type {data_type}")
    group = stored.get("group_size") or 0
    if isinstance(group, (list, tuple)):
        if (data_type, bits, list(group)) != ("fp", 8, FP8_BLOCK):
            raise NotPlannedError(f"{bits}-bit {data_type} weights in blocks of {list(group)}")
        return "fp8_block"
    act_type = str(stored.get("act_data_type") or data_type)
    activations = (_auto_round_kind(act_type), activation_bits) if activation_bits < 16 else None
    if data_type.startswith("mx_fp"):
        group = MX_GROUP
    elif data_type.startswith("nv_fp"):
        group = NV_GROUP
    return weight_format(_auto_round_kind(data_type), bits, group=group, activations=activations)


def _auto_round_kind(data_type: str) -> str:
    """Return whether a type of numbers, like ``mx_fp_rceil``, is of integers or of floats."""
    return "int" if data_type.startswith("int") else "float"
