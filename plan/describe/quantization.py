"""The number formats of a checkpoint, from its files.

Every tool describes its quantization in its own fields. A description is understood completely, or
refused with its tool's name: a format that is guessed would give a wrong plan in silence.
"""

from collections.abc import Callable, Mapping
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe import shipped_json
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, grouped_name
from foretune.plan.describe.quantized_modules import (
    EVERY_LINEAR,
    REGEX,
    UNQUANTIZED,
    NamedModules,
    Rule,
    Scheme,
    resolve,
)

Fields = Mapping[str, Any]

DESCRIPTION_FIELDS = ("quantization_config", "compression_config", "quantization")
"""Fields of ``config.json`` that describe it; the last one is MLX's."""
EXCLUDED_FIELDS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)
"""Fields that list modules in 16 bits."""
DEFAULT_GROUP = 128
"""Weights of a group in GPTQ, AWQ and AutoRound, if the file does not say."""
GPTQ_FORMATS = ("gptq", "gptq_v2", "marlin", "bitblas", "gemm", "gemv", "gemv_fast", "llm-awq")
"""GPTQModel's names of layouts of integers; others stand for other numbers."""
MX_GROUP = 32
"""Numbers of a group in OCP Microscaling formats."""
NV_GROUP = 16
"""Numbers of a group in NVFP4."""
FP8_BLOCK = [128, 128]
"""Weights that share a scale in fp8_block, by output and input."""

AUTO_ROUND_PATTERN = set("*+?^$()[]{}|\\")
"""Characters of regular expressions among AutoRound's names of modules."""

_NAMES = shipped_json("checkpoint_formats.json")
MODELOPT_FORMATS: dict[str, str] = _NAMES["modelopt"]
"""NVIDIA ModelOpt's name -> Foretune's."""
TORCHAO_FORMATS: dict[str, str] = _NAMES["torchao"]
"""torchao's configuration or short name -> Foretune's format."""
TORCHAO_GROUPS = {"w4a8_int8": 32}
"""Format -> weights of a group, if torchao's file does not say."""
TORCHAO_PER_MODULE = ("ModuleFqnToConfig", "FqnToConfig")
TORCHAO_ANY_BITS = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")
"""torchao's configurations whose bits and groups are fields."""
PRESETS: dict[str, str] = _NAMES["presets"]
"""compressed-tensors' name of a scheme -> Foretune's format."""
FIXED_METHODS: dict[str, str] = _NAMES["methods"]
"""``quant_method`` with one format -> the format."""
QUARK_TYPES: dict[str, tuple[str, int]] = {
    name: (kind, bits) for name, (kind, bits) in _NAMES["quark_types"].items()
}
"""Quark's name of a type -> integer or float, and bits."""


class NotPlannedError(Exception):
    """A part of a description that is not planned; its text says which."""


def stored_formats(config: Fields, quantization: Fields, model: ModelDescription) -> Formats:
    """Return the formats of a checkpoint.

    ``config`` is the content of ``config.json``. ``quantization`` has the field ``quantization``
    with the description of a separate file, if there is one. Raises UsageError for descriptions
    that are not understood.
    """
    stored = quantization.get("quantization")
    if stored is None and "quant_algo" in quantization:
        stored = quantization
    if stored is None:
        stored = next(filter(None, map(config.get, DESCRIPTION_FIELDS)), None)
    if stored is None:
        _require_unquantized(config, quantization, model.name)
        return Formats()
    if not isinstance(stored, Mapping):
        raise UsageError(f"{model.name}: its quantization is not an object: correct the file")

    names = (stored.get(field) for field in ("quant_method", "quant_algo", "quantization"))
    tool = str(next(filter(None, names), "an unnamed tool"))
    try:
        return resolve(_scheme(stored), model, str(config.get("model_type")))
    except (NotPlannedError, UsageError) as e:
        reason = f"checkpoints quantized by {tool} ({e}) cannot be planned yet"
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        reason = f"the quantization by {tool} is not understood ({e!r})"
    raise UsageError(f"{model.name}: {reason}: plan its unquantized model with --formats")


def _require_unquantized(config: Fields, quantization: Fields, name: str) -> None:
    """Raise UsageError if files without a description still say that weights are quantized."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    if quantization:
        raise UsageError(f"{name}: its quantization file has no field quantization: correct it")
    if dtype.startswith(("float8", "int8", "uint8", "float4")):
        raise UsageError(
            f"{name}: weights in {dtype} without a quantization_config cannot be planned yet: plan "
            "its unquantized model with --formats"
        )


def _scheme(stored: Fields) -> Scheme:
    """Return the formats that a description gives to modules."""
    method = str(stored.get("quant_method") or "").lower().replace("_", "-")
    _require_dense_weights(stored)

    # ModelOpt's and compressed-tensors' fields are exact, whatever the method is called.
    mixed = stored.get("quant_algo") == "MIXED_PRECISION" and not stored.get("quantized_layers")
    if (stored.get("quantized_layers") or stored.get("quant_algo")) and not mixed:
        return _modelopt(stored)
    if stored.get("config_groups"):
        return _compressed_tensors(stored)
    if method in READERS:
        return READERS[method](stored)
    if method in FIXED_METHODS:
        return Scheme(FIXED_METHODS[method], _excluded(stored), _cache(stored))
    if not method and (stored.get("load_in_4bit") or stored.get("load_in_8bit")):
        return _bitsandbytes(stored)
    if not method and "bits" in stored:
        return _mlx(stored)
    if method in ("", "modelopt", "compressed-tensors") and _cache(stored) != UNQUANTIZED:
        return Scheme(cache=_cache(stored))  # only the cache is quantized
    if not method and "quant_algo" in stored:
        return Scheme()
    raise NotPlannedError("its format is not known")


def _require_dense_weights(stored: Fields) -> None:
    """Raise NotPlannedError for weights of which many are left out."""
    sparsity = stored.get("sparsity_config") or {}
    if sparsity and sparsity.get("format") != "dense":
        raise NotPlannedError(f"sparse weights, {sparsity.get('format', 'sparsity_config')}")
    if stored.get("format") == "marlin-24":
        raise NotPlannedError("sparse weights, marlin-24")


def _excluded(stored: Fields) -> list[Rule]:
    """Return a rule for the modules that stay in 16 bits, if any."""
    names = [str(name) for field in EXCLUDED_FIELDS for name in stored.get(field) or ()]
    return [Rule(UNQUANTIZED, NamedModules(names))] if names else []


def _cache(stored: Fields) -> str:
    """Return the format of the cache that a checkpoint has scales for."""
    scheme = stored.get("kv_cache_quant_algo") or stored.get("kv_cache_scheme")
    if not scheme or str(scheme).lower() == "none":
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


def _integer_weights(bits: Any, group: int, offset: str = "") -> str:
    """Return the format of weight-only integers; ``group`` is 0 or less for a scale per row."""
    if isinstance(bits, str) and bits.isdigit():
        bits = int(bits)
    if bits not in (2, 3, 4, 5, 6, 8):
        raise NotPlannedError(f"{bits} bits")
    return grouped_name(f"int{bits}_wo", max(group, 0), offset)


def _required(stored: Fields, *names: str) -> Any:
    """Return the first of some fields that a description has."""
    for name in names:
        if stored.get(name) is not None:
            return stored[name]
    raise NotPlannedError(f"{names[0]} is missing")


def _gptq(stored: Fields) -> Scheme:
    """GPTQ and AWQ: integer weights in groups; ``dynamic`` has other bits for some modules."""
    method = str(stored.get("quant_method") or "")
    default_bits = 4 if method.startswith("awq") or method == "marlin" else None
    bits = stored.get("bits", stored.get("w_bit", default_bits))
    if bits is None:
        raise NotPlannedError("bits is missing")
    group = stored.get("group_size", stored.get("q_group_size", DEFAULT_GROUP))
    if stored.get("is_marlin_24") or "24" in str(stored.get("checkpoint_format", "")):
        raise NotPlannedError("sparse weights, marlin_24")
    if str(stored.get("format") or "gptq") not in GPTQ_FORMATS:
        raise NotPlannedError(f"weights in the format {stored['format']}")
    offset = "z" if stored.get("zero_point") or stored.get("sym") is False else ""
    default = _integer_weights(bits, group, offset)
    rules = _excluded(stored)

    for pattern, changes in (stored.get("dynamic") or {}).items():
        named = NamedModules([REGEX + pattern.removeprefix("+:").removeprefix("-:")])
        if pattern.startswith("-:"):
            rules.append(Rule(UNQUANTIZED, named))
        else:
            own_bits = changes.get("bits", bits)
            own_group = changes.get("group_size", group)
            rules.append(Rule(_integer_weights(own_bits, own_group, offset), named))

    # Some files list the only modules that are quantized.
    inside = stored.get("modules_in_block_to_quantize")
    if inside:
        names = [str(name) for part in inside for name in _as_list(part)]
        rules.append(Rule(default, NamedModules(names)))
        return Scheme(rules=rules, cache=_cache(stored), must_match=True)
    return Scheme(default, rules, _cache(stored))


def _moe_wna16(stored: Fields) -> Scheme:
    """VLLM's kernels for GPTQ and AWQ in experts; the files are theirs."""
    return _gptq({**stored, "quant_method": stored.get("linear_quant_method", "gptq")})


def _qqq(stored: Fields) -> Scheme:
    """QQQ: 4-bit weights, multiplied with int8."""
    group = stored.get("group_size", DEFAULT_GROUP)
    if stored.get("wbits", stored.get("bits", 4)) != 4:
        raise NotPlannedError(f"{stored.get('wbits')} bits")
    return Scheme(grouped_name("w4a8_int8", max(group, 0)), _excluded(stored), _cache(stored))


def _quanto(stored: Fields) -> Scheme:
    """Hugging Face's Quanto: a type of weights, and of activations."""
    weights = {"int8": "int8_wo", "int4": "int4_wo", "int2": "int2_wo", "float8": "fp8_wo"}
    name = str(_required(stored, "weights"))
    if name not in weights or stored.get("activations"):
        raise NotPlannedError(f"weights {name}, activations {stored.get('activations')}")
    return Scheme(weights[name], _excluded(stored), _cache(stored))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _auto_round(stored: Fields) -> Scheme:
    """Intel's AutoRound: as GPTQ, with other bits for some layers in ``extra_config``."""
    rules = _excluded(stored)
    for name, changes in (stored.get("extra_config") or {}).items():
        own = {**stored, **changes}
        is_pattern = not AUTO_ROUND_PATTERN.isdisjoint(name)
        named = NamedModules([f"{REGEX}.*(?:{name})" if is_pattern else name])
        rules.append(Rule(_auto_round_format(own), named))
    return Scheme(_auto_round_format(stored), rules, _cache(stored))


def _auto_round_format(stored: Fields) -> str:
    bits = _required(stored, "bits")
    data_type = str(stored.get("data_type") or "int")
    activation_bits = stored.get("act_bits") or 16
    if bits >= 16:
        return UNQUANTIZED
    if data_type == "int" and activation_bits >= 16:
        offset = "z" if stored.get("sym") is False else ""
        return _integer_weights(bits, stored.get("group_size", DEFAULT_GROUP), offset)
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
    return _arithmetic(_auto_round_kind(data_type), bits, group=group, activations=activations)


def _auto_round_kind(data_type: str) -> str:
    """Return whether a type of numbers, like ``mx_fp_rceil``, is of integers or of floats."""
    return "int" if data_type.startswith("int") else "float"


def _rtn(stored: Fields) -> Scheme:
    """Round to nearest: integer weights in groups."""
    group = stored.get("group_size", DEFAULT_GROUP)
    default = _integer_weights(_required(stored, "bits"), group)
    return Scheme(default, _excluded(stored), _cache(stored))


def _hqq(stored: Fields) -> Scheme:
    """HQQ: integer weights in groups with a scale and an offset."""
    inside = stored.get("quant_config") or {}
    names = [str(name) for name in stored.get("skip_modules") or ()]
    skipped = [Rule(UNQUANTIZED, NamedModules(names))] if names else []
    rules = [*_excluded(stored), *skipped]
    if inside and "weight_quant_params" not in inside:
        for name, own in inside.items():
            rules.append(Rule(_hqq_format(own["weight_quant_params"]), NamedModules([name])))
        return Scheme(rules=rules, cache=_cache(stored), must_match=True)
    return Scheme(_hqq_format(inside.get("weight_quant_params") or stored), rules, _cache(stored))


def _hqq_format(weights: Fields) -> str:
    return _integer_weights(
        _required(weights, "nbits", "bits"), _required(weights, "group_size"), "b"
    )


def _bitsandbytes(stored: Fields) -> Scheme:
    if stored.get("load_in_8bit"):
        return Scheme("int8_wo", _excluded(stored), _cache(stored))
    if not stored.get("load_in_4bit"):
        raise NotPlannedError("neither load_in_4bit nor load_in_8bit")
    default = "nf4_dq" if stored.get("bnb_4bit_use_double_quant") else "nf4"
    return Scheme(default, _excluded(stored), _cache(stored))


def _fp8(stored: Fields) -> Scheme:
    """Fine-grained or per-tensor fp8, as DeepSeek, Qwen and vLLM write it."""
    block = stored.get("weight_block_size")
    if not block:
        default = "fp8"
    elif list(block) == [1, MX_GROUP]:
        default = "mxfp8"
    elif list(block) == FP8_BLOCK:
        default = "fp8_block"
    else:
        raise NotPlannedError(f"blocks of {block}")
    return Scheme(default, _excluded(stored), _cache(stored))


def _experts_int8(stored: Fields) -> Scheme:
    """Quantizes routed experts while loading."""
    experts = Rule("int8_wo", NamedModules([rf"{REGEX}.*\.experts\..*"]))
    return Scheme(rules=[*_excluded(stored), experts], cache=_cache(stored))


def _mxfp4(stored: Fields) -> Scheme:
    """OpenAI's: engines have it for routed experts only."""
    return Scheme("mxfp4", _excluded(stored), _cache(stored), beside_experts=UNQUANTIZED)


def _w4afp8(stored: Fields) -> Scheme:
    """SGLang's: routed experts in 4 bits, everything beside them in fp8."""
    beside = "fp8_block" if stored.get("weight_block_size") else "fp8"
    return Scheme("w4afp8", _excluded(stored), _cache(stored), beside_experts=beside)


def _fp_quant(stored: Fields) -> Scheme:
    name = str(stored.get("forward_dtype", "")).lower()
    formats = {"nvfp4": "nvfp4", "mxfp4": "w4a4_mxfp4"}
    if name not in formats:
        raise NotPlannedError(f"forward_dtype {name}")
    return Scheme(formats[name], _excluded(stored), _cache(stored))


def _nvfp4(stored: Fields) -> Scheme:
    """Transformers' NVFP4: weights and activations."""
    return Scheme("nvfp4", _excluded(stored), _cache(stored))


def _four_over_six(stored: Fields) -> Scheme:
    """Four Over Six (arXiv:2512.02010): NVFP4 or MXFP4 with other scales."""
    if stored.get("module_config_overrides"):
        raise NotPlannedError("module_config_overrides")
    default = str(stored.get("dtype") or "nvfp4")
    weights = str(stored.get("weight_dtype") or default)
    activations = str(stored.get("activation_dtype") or default)
    formats = {"nvfp4": "nvfp4", "mxfp4": "w4a4_mxfp4"}
    if weights != activations or weights not in formats:
        raise NotPlannedError(f"weights {weights}, activations {activations}")
    return Scheme(formats[weights], _excluded(stored), _cache(stored))


def _metal(stored: Fields) -> Scheme:
    """Transformers' kernels of MLX: integers with a scale and a bias per group."""
    default = _integer_weights(_required(stored, "bits"), _required(stored, "group_size"), "b")
    return Scheme(default, _excluded(stored), _cache(stored))


def _sinq(stored: Fields) -> Scheme:
    """SINQ: integers with a scale and an offset per group; scales per column are left out."""
    default = _integer_weights(_required(stored, "nbits"), _required(stored, "group_size"), "b")
    return Scheme(default, _excluded(stored), _cache(stored))


def _gemma(stored: Fields) -> Scheme:
    """Google's Gemma: integers with a scale per row, and other bits for some modules."""
    if stored.get("quantize_embeddings"):
        raise NotPlannedError("quantized embeddings")
    bits = stored.get("num_bits", 4)
    rules = _excluded(stored)
    for pattern, own in (stored.get("module_quant_configs") or {}).items():
        named = NamedModules([f"{REGEX}.*(?:{pattern})"])
        rules.append(Rule(_integer_weights(own.get("num_bits", bits), 0), named))
    return Scheme(_integer_weights(bits, 0), rules, _cache(stored))


def _modelopt(stored: Fields) -> Scheme:
    """NVIDIA ModelOpt: one algorithm, or one per module."""
    rules = _excluded(stored)
    layers = stored.get("quantized_layers")
    if not layers:
        algorithm = stored.get("quant_algo")
        default = _algorithm(stored) if algorithm else UNQUANTIZED
        if default == "nvfp4" and _has_no_inputs(stored):
            default = "nvfp4_wo"
        return Scheme(default, rules, _cache(stored))
    names_by_format: dict[str, list[str]] = {}
    for name, layer in layers.items():
        names_by_format.setdefault(_algorithm(layer), []).append(name)
    rules += [Rule(name, NamedModules(names)) for name, names in names_by_format.items()]
    return Scheme(rules=rules, cache=_cache(stored), must_match=True)


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


def _compressed_tensors(stored: Fields) -> Scheme:
    """compressed-tensors: groups of modules with a format of weights and of activations each."""
    rules = _excluded(stored)
    default = UNQUANTIZED
    cache = _cache(stored)
    for group_name, described in stored["config_groups"].items():
        # A list of targets has the scheme that the group is called after.
        is_preset = isinstance(described, list)
        group = {"targets": described} if is_preset else described
        targets = [str(target) for target in group.get("targets") or ("Linear",)]
        outputs = group.get("output_activations")
        if outputs:
            if not any("k_proj" in target for target in targets):
                raise NotPlannedError("output_activations")
            cache = _cache({"kv_cache_scheme": outputs})
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
        return _arithmetic(kind, bits, group=0, activations=None)
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
    return _arithmetic(kind, bits, group=group_size, activations=activations, offset=offset)


def _quark(stored: Fields) -> Scheme:
    """AMD Quark: one format, and others for some layers by wildcard or for a class of layers."""
    default_config = stored["global_quant_config"]
    if stored.get("layer_type_quant_config"):
        raise NotPlannedError("layer_type_quant_config")
    rules = _excluded(stored)
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
    return _arithmetic(kind, bits, group=group or 0, activations=activations, offset=offset)


def _quark_type(tensor: Fields) -> tuple[str, int]:
    name = str(tensor.get("dtype"))
    if name not in QUARK_TYPES:
        raise NotPlannedError(f"dtype {name}")
    return QUARK_TYPES[name]


def _torchao(stored: Fields) -> Scheme:
    """Torchao: a configuration, a short name, or a configuration per module."""
    kind = stored.get("quant_type")
    if isinstance(kind, str):
        default = _torchao_format(kind, stored.get("quant_type_kwargs") or {})
        return Scheme(default, _excluded(stored), _cache(stored))
    configs = dict(_required(stored, "quant_type"))
    inside = configs.get("default") or {}
    if inside.get("_type") in TORCHAO_PER_MODULE:
        options = inside.get("_data") or {}
        configs = dict(_required(options, "module_fqn_to_config", "fqn_to_config"))
        configs["default"] = configs.pop("_default", None)

    # Without a default, only the named modules are quantized.
    rules = _excluded(stored)
    default_config = configs.pop("default", None)
    for name, config in configs.items():
        rules.append(Rule(_torchao_config(config), NamedModules([name])))
    return Scheme(
        _torchao_config(default_config), rules, _cache(stored), must_match=default_config is None
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
        return _arithmetic("int", bits, group=group, activations=activations)
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


def _mlx(stored: Fields) -> Scheme:
    """Apple's MLX: integers with a scale and a bias per group, and other bits by module path."""
    mode = stored.get("mode", "affine")
    rules = []
    for name, changes in stored.items():
        if changes is False:
            rules.append(Rule(UNQUANTIZED, NamedModules([name])))
        elif isinstance(changes, Mapping):
            rules.append(Rule(_mlx_format({**stored, **changes}, mode), NamedModules([name])))
    return Scheme(_mlx_format(stored, mode), rules, _cache(stored))


def _mlx_format(stored: Fields, mode: str) -> str:
    own_mode = stored.get("mode", mode)
    if own_mode == "affine":
        return _integer_weights(stored["bits"], _required(stored, "group_size"), "b")
    formats = {"mxfp4": "mxfp4", "mxfp8": "fp8_wo_g32", "nvfp4": "nvfp4_wo"}
    if own_mode not in formats:
        raise NotPlannedError(f"mode {own_mode}")
    return formats[own_mode]


def _arithmetic(
    kind: str,
    bits: int,
    group: int,
    activations: tuple[str, int] | None,
    offset: str = "",
) -> str:
    """Return the format of weights by their arithmetic.

    ``kind`` is ``int`` or ``float``, ``group`` 0 for a scale per tensor or row. ``activations`` are
    their kind and bits; None means 16 bits.
    """
    group = max(group, 0)
    if kind == "int" and activations is None:
        return _integer_weights(bits, group, offset)
    if kind == "int":
        pairs = {
            (8, ("int", 8)): "int8",
            (4, ("int", 8)): "w4a8_int8",
            (4, ("float", 8)): "w4afp8",
        }
        base = pairs.get((bits, activations or ("", 0)))
        if base and (bits == 4 or not group):
            return grouped_name(base, group)
        if base:
            raise NotPlannedError(f"int8 weights in groups of {group}")
    elif bits == 4 and group in (MX_GROUP, NV_GROUP):
        return _four_bit_floats(group, activations)
    elif bits == 8 and group == MX_GROUP:
        if activations is None or activations[1] == 8:
            return "mxfp8" if activations else "fp8_wo_g32"
    elif bits == 8 and activations is None:
        return grouped_name("fp8_wo", group)
    elif bits == 8 and activations in (("float", 8), ("mxfloat", 8)):
        return grouped_name("fp8", group)
    by = f", {activations[1]}-bit {activations[0]} activations" if activations else ""
    raise NotPlannedError(f"{bits}-bit {kind} weights in groups of {group}{by}")


def _four_bit_floats(group: int, activations: tuple[str, int] | None) -> str:
    if group == NV_GROUP:
        formats = {None: "nvfp4_wo", ("float", 4): "nvfp4"}
    else:
        formats = {
            None: "mxfp4",
            ("float", 4): "w4a4_mxfp4",
            ("float", 8): "w4a8_mxfp4_fp8",
            ("mxfloat", 8): "w4a8_mxfp4_mxfp8",
        }
    if activations not in formats:
        raise NotPlannedError(f"4-bit floats in groups of {group}, activations {activations}")
    return formats[activations]


READERS: dict[str, Callable[[Fields], Scheme]] = {
    "gptq": _gptq,
    "gptq-marlin": _gptq,
    "marlin": _gptq,
    "awq": _gptq,
    "awq-marlin": _gptq,
    "auto-round": _auto_round,
    "auto-gptq": _gptq,
    "auto-awq": _gptq,
    "gptq-bitblas": _gptq,
    "bitblas": _gptq,
    "ipex": _gptq,
    "moe-wna16": _moe_wna16,
    "qqq": _qqq,
    "quanto": _quanto,
    "intel/auto-round": _auto_round,
    "inc": _auto_round,
    "rtn": _rtn,
    "hqq": _hqq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "mxfp8": _fp8,
    "experts-int8": _experts_int8,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "fouroversix": _four_over_six,
    "metal": _metal,
    "sinq": _sinq,
    "gemma": _gemma,
    "w4afp8": _w4afp8,
    "fp-quant": _fp_quant,
    "quark": _quark,
    "torchao": _torchao,
    "mlx": _mlx,
}
"""``quant_method`` -> function that reads its description."""
