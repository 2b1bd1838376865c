"""Tools that store integers: GPTQ and AWQ, Quanto, HQQ, bitsandbytes and others."""

from typing import Any

from foretune.plan.describe.formats import grouped_name
from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
    required_field,
)
from foretune.plan.describe.quantization.weight_formats import DEFAULT_GROUP, integer_weights
from foretune.plan.describe.quantized_modules import REGEX, UNQUANTIZED, NamedModules, Rule, Scheme

GPTQ_FORMATS = ("gptq", "gptq_v2", "marlin", "bitblas", "gemm", "gemv", "gemv_fast", "llm-awq")
"""GPTQModel's names of layouts of integers; others stand for other numbers."""


def read_gptq(stored: Fields) -> Scheme:
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
    default = integer_weights(bits, group, offset)
    rules = excluded_modules(stored)

    for pattern, changes in (stored.get("dynamic") or {}).items():
        named = NamedModules([REGEX + pattern.removeprefix("+:").removeprefix("-:")])
        if pattern.startswith("-:"):
            rules.append(Rule(UNQUANTIZED, named))
        else:
            own_bits = changes.get("bits", bits)
            own_group = changes.get("group_size", group)
            rules.append(Rule(integer_weights(own_bits, own_group, offset), named))

    # Some files list the only modules that are quantized.
    inside = stored.get("modules_in_block_to_quantize")
    if inside:
        names = [str(name) for part in inside for name in _as_list(part)]
        rules.append(Rule(default, NamedModules(names)))
        return Scheme(rules=rules, cache=cache_format(stored), must_match=True)
    return Scheme(default, rules, cache_format(stored))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def read_moe_wna16(stored: Fields) -> Scheme:
    """VLLM's kernels for GPTQ and AWQ in experts; the files are theirs."""
    return read_gptq({**stored, "quant_method": stored.get("linear_quant_method", "gptq")})


def read_qqq(stored: Fields) -> Scheme:
    """QQQ: 4-bit weights, multiplied with int8."""
    group = stored.get("group_size", DEFAULT_GROUP)
    if stored.get("wbits", stored.get("bits", 4)) != 4:
        raise NotPlannedError(f"{stored.get('wbits')} bits")
    return Scheme(
        grouped_name("w4a8_int8", max(group, 0)), excluded_modules(stored), cache_format(stored)
    )


def read_quanto(stored: Fields) -> Scheme:
    """Hugging Face's Quanto: a type of weights, and of activations."""
    weights = {"int8": "int8_wo", "int4": "int4_wo", "int2": "int2_wo", "float8": "fp8_wo"}
    name = str(required_field(stored, "weights"))
    if name not in weights or stored.get("activations"):
        raise NotPlannedError(f"weights {name}, activations {stored.get('activations')}")
    return Scheme(weights[name], excluded_modules(stored), cache_format(stored))


def read_rtn(stored: Fields) -> Scheme:
    """Round to nearest: integer weights in groups."""
    group = stored.get("group_size", DEFAULT_GROUP)
    default = integer_weights(required_field(stored, "bits"), group)
    return Scheme(default, excluded_modules(stored), cache_format(stored))


def read_hqq(stored: Fields) -> Scheme:
    """HQQ: integer weights in groups with a scale and an offset."""
    inside = stored.get("quant_config") or {}
    names = [str(name) for name in stored.get("skip_modules") or ()]
    skipped = [Rule(UNQUANTIZED, NamedModules(names))] if names else []
    rules = [*excluded_modules(stored), *skipped]
    if inside and "weight_quant_params" not in inside:
        for name, own in inside.items():
            rules.append(Rule(_hqq_format(own["weight_quant_params"]), NamedModules([name])))
        return Scheme(rules=rules, cache=cache_format(stored), must_match=True)
    return Scheme(
        _hqq_format(inside.get("weight_quant_params") or stored), rules, cache_format(stored)
    )


def _hqq_format(weights: Fields) -> str:
    return integer_weights(
        required_field(weights, "nbits", "bits"), required_field(weights, "group_size"), "b"
    )


def read_bitsandbytes(stored: Fields) -> Scheme:
    """Read bitsandbytes' formats: integers in 8 bits, or NormalFloat in 4 bits."""
    if stored.get("load_in_8bit"):
        return Scheme("int8_wo", excluded_modules(stored), cache_format(stored))
    if not stored.get("load_in_4bit"):
        raise NotPlannedError("neither load_in_4bit nor load_in_8bit")
    default = "nf4_dq" if stored.get("bnb_4bit_use_double_quant") else "nf4"
    return Scheme(default, excluded_modules(stored), cache_format(stored))


def read_metal(stored: Fields) -> Scheme:
    """Transformers' kernels of MLX: integers with a scale and a bias per group."""
    default = integer_weights(
        required_field(stored, "bits"), required_field(stored, "group_size"), "b"
    )
    return Scheme(default, excluded_modules(stored), cache_format(stored))


def read_sinq(stored: Fields) -> Scheme:
    """SINQ: integers with a scale and an offset per group; scales per column are left out."""
    default = integer_weights(
        required_field(stored, "nbits"), required_field(stored, "group_size"), "b"
    )
    return Scheme(default, excluded_modules(stored), cache_format(stored))


def read_gemma(stored: Fields) -> Scheme:
    """Google's Gemma: integers with a scale per row, and other bits for some modules."""
    if stored.get("quantize_embeddings"):
        raise NotPlannedError("quantized embeddings")
    bits = stored.get("num_bits", 4)
    rules = excluded_modules(stored)
    for pattern, own in (stored.get("module_quant_configs") or {}).items():
        named = NamedModules([f"{REGEX}.*(?:{pattern})"])
        rules.append(Rule(integer_weights(own.get("num_bits", bits), 0), named))
    return Scheme(integer_weights(bits, 0), rules, cache_format(stored))
