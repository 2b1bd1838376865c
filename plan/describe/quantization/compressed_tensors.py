"""compressed-tensors: groups of modules with a format each."""

from foretune.plan.describe import shipped_json
from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
)
from foretune.plan.describe.quantization.weight_formats import (
    DEFAULT_GROUP,
    FP8_BLOCK,
    NV_GROUP,
    weight_format,
)
from foretune.plan.describe.quantized_modules import (
    EVERY_LINEAR,
    UNQUANTIZED,
    NamedModules,
    Rule,
    Scheme,
)

PRESETS: dict[str, str] = shipped_json("checkpoint_formats.json")["presets"]
"""compressed-tensors' name of a scheme -> Foretune's format."""


def read_compressed_tensors(stored: Fields) -> Scheme:
    """compressed-tensors: groups of modules with a format of weights and of activations each."""
    rules = excluded_modules(stored)
    default = UNQUANTIZED
    cache = cache_format(stored)
    for group_name, described in stored["config_groups"].items():
        # A list of targets has the scheme that the group is called after.
        is_preset = isinstance(described, list)
        group = {"targets": described} if is_preset else described
        targets = [str(target) for target in group.get("targets") or ("Linear",)]
        outputs = group.get("output_activations")
        if outputs:
            if not any("k_proj" in target for target in targets):
                raise NotPlannedError("output_activations")
            cache = cache_format({"kv_cache_scheme": outputs})
        if is_preset:
            name = _preset_format(group_name)
        elif group.get("weights"):
            name = _group_format(group)
        else:
            continue
        if any(target in EVERY_LINEAR for target in targets):
            default = name
        else:
            classes = [t for t in targets if "." not in t and t[:1].isupper()]
            if classes:
                raise NotPlannedError(f"targets {classes[0]}")
            rules.append(Rule(name, NamedModules(targets)))
    return Scheme(default, rules, cache, must_match=default == UNQUANTIZED)


def _preset_format(name: str) -> str:
    """Return the format that a name of compressed-tensors' schemes stands for."""
    if name not in PRESETS:
        raise NotPlannedError(f"scheme {name}")
    return PRESETS[name]


def _group_format(group: Fields) -> str:
    """Return the format of one of compressed-tensors' groups."""
    weights = group["weights"]
    inputs = group.get("input_activations")
    activations = (inputs.get("type", "int"), inputs.get("num_bits", 8)) if inputs else None
    strategy = weights.get("strategy")
    kind = weights.get("type", "int")
    bits = weights.get("num_bits", 8)
    if strategy == "block" and inputs is None:
        return weight_format(kind, bits, group=0, activations=None)
    if strategy == "block":
        if list(weights.get("block_structure") or FP8_BLOCK) != FP8_BLOCK:
            raise NotPlannedError(f"blocks of {weights['block_structure']}")
        if (kind, bits) != ("float", 8):
            raise NotPlannedError("blocks of integers")
        return "fp8_block"
    in_groups = strategy in (None, "group", "tensor_group")
    usual_groups = {("float", 4): NV_GROUP, ("int", 8): 0, ("float", 8): 0}
    group_size = weights.get("group_size") if in_groups else 0
    if group_size is None:
        group_size = usual_groups.get((kind, bits), DEFAULT_GROUP)
    offset = "" if weights.get("symmetric", True) else "z"
    return weight_format(kind, bits, group=group_size, activations=activations, offset=offset)
