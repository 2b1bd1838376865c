"""Apple's MLX: integers or floats in groups, with others for some modules."""

from collections.abc import Mapping

from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    required_field,
)
from foretune.plan.describe.quantization.weight_formats import integer_weights
from foretune.plan.describe.quantized_modules import UNQUANTIZED, NamedModules, Rule, Scheme


def read_mlx(stored: Fields) -> Scheme:
    """Apple's MLX: integers with a scale and a bias per group, and other bits by module path."""
    mode = stored.get("mode", "affine")
    rules = []
    for name, changes in stored.items():
        if changes is False:
            rules.append(Rule(UNQUANTIZED, NamedModules([name])))
        elif isinstance(changes, Mapping):
            rules.append(Rule(_mlx_format({**stored, **changes}, mode), NamedModules([name])))
    return Scheme(_mlx_format(stored, mode), rules, cache_format(stored))


def _mlx_format(stored: Fields, mode: str) -> str:
    own_mode = stored.get("mode", mode)
    if own_mode == "affine":
        return integer_weights(stored["bits"], required_field(stored, "group_size"), "b")
    formats = {"mxfp4": "mxfp4", "mxfp8": "fp8_wo_g32", "nvfp4": "nvfp4_wo"}
    if own_mode not in formats:
        raise NotPlannedError(f"mode {own_mode}")
    return formats[own_mode]
