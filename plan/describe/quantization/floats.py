"""Tools that store floats of 8 or 4 bits; and experts in int8, which vLLM makes itself."""

from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
)
from foretune.plan.describe.quantization.weight_formats import FP8_BLOCK, MX_GROUP
from foretune.plan.describe.quantized_modules import REGEX, UNQUANTIZED, NamedModules, Rule, Scheme


def read_fp8(stored: Fields) -> Scheme:
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
    return Scheme(default, excluded_modules(stored), cache_format(stored))


def read_experts_int8(stored: Fields) -> Scheme:
    """VLLM's experts in int8, which it quantizes while it loads them."""
    experts = Rule("int8_wo", NamedModules([rf"{REGEX}.*\.experts\..*"]))
    return Scheme(rules=[*excluded_modules(stored), experts], cache=cache_format(stored))


def read_mxfp4(stored: Fields) -> Scheme:
    """OpenAI's MXFP4: engines have it for routed experts only."""
    return Scheme(
        "mxfp4", excluded_modules(stored), cache_format(stored), beside_experts=UNQUANTIZED
    )


def read_w4afp8(stored: Fields) -> Scheme:
    """SGLang's W4AFP8: routed experts in 4 bits, everything beside them in fp8."""
    beside = "fp8_block" if stored.get("weight_block_size") else "fp8"
    return Scheme("w4afp8", excluded_modules(stored), cache_format(stored), beside_experts=beside)


def read_fp_quant(stored: Fields) -> Scheme:
    """FP-Quant: weights and activations in NVFP4 or MXFP4."""
    name = str(stored.get("forward_dtype", "")).lower()
    formats = {"nvfp4": "nvfp4", "mxfp4": "w4a4_mxfp4"}
    if name not in formats:
        raise NotPlannedError(f"forward_dtype {name}")
    return Scheme(formats[name], excluded_modules(stored), cache_format(stored))


def read_nvfp4(stored: Fields) -> Scheme:
    """Transformers' NVFP4: weights and activations."""
    return Scheme("nvfp4", excluded_modules(stored), cache_format(stored))


def read_four_over_six(stored: Fields) -> Scheme:
    """Four Over Six (arXiv:2512.02010): NVFP4 or MXFP4 with other scales."""
    if stored.get("module_config_overrides"):
        raise NotPlannedError("module_config_overrides")
    default = str(stored.get("dtype") or "nvfp4")
    weights = str(stored.get("weight_dtype") or default)
    activations = str(stored.get("activation_dtype") or default)
    formats = {"nvfp4": "nvfp4", "mxfp4": "w4a4_mxfp4"}
    if weights != activations or weights not in formats:
        raise NotPlannedError(f"weights {weights}, activations {activations}")
    return Scheme(formats[weights], excluded_modules(stored), cache_format(stored))
