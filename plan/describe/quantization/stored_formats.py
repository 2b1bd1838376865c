"""The number formats of a checkpoint, from its files.

Every tool describes its quantization in its own fields. A description is understood completely, or
refused with its tool's name: a format that is guessed would give a wrong plan in silence.
"""

import warnings
from collections.abc import Callable, Mapping

from foretune.errors import ForetuneWarning, UsageError
from foretune.plan.describe import shipped_json
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.quantization.auto_round import read_auto_round
from foretune.plan.describe.quantization.compressed_tensors import read_compressed_tensors
from foretune.plan.describe.quantization.fields import (
    Fields,
    NotPlannedError,
    cache_format,
    excluded_modules,
)
from foretune.plan.describe.quantization.floats import (
    read_experts_int8,
    read_four_over_six,
    read_fp8,
    read_fp_quant,
    read_mxfp4,
    read_nvfp4,
    read_w4afp8,
)
from foretune.plan.describe.quantization.integers import (
    read_bitsandbytes,
    read_gemma,
    read_gptq,
    read_hqq,
    read_metal,
    read_moe_wna16,
    read_qqq,
    read_quanto,
    read_rtn,
    read_sinq,
)
from foretune.plan.describe.quantization.mlx import read_mlx
from foretune.plan.describe.quantization.modelopt import read_modelopt
from foretune.plan.describe.quantization.quark import read_quark
from foretune.plan.describe.quantization.torchao import read_torchao
from foretune.plan.describe.quantized_modules import UNQUANTIZED, Scheme, resolve

DESCRIPTION_FIELDS = ("quantization_config", "compression_config", "quantization")
"""Fields of ``config.json`` that describe it; the last one is MLX's."""

GPTQ_FIELDS = {"desc_act", "damp_percent", "true_sequential"}
AWQ_FIELDS = {"zero_point", "q_group_size", "w_bit"}
"""Fields that tell which tool wrote a description without ``quant_method``."""

HEAD_FIELDS = ("lm_head", "quant_lm_head", "include_input_output_embeddings")
"""Fields that say that the output projection is quantized, too."""

FIXED_METHODS: dict[str, str] = shipped_json("checkpoint_formats.json")["methods"]
"""``quant_method`` with one format -> the format."""


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
    # ModelOpt's separate file has the description inside, also where it was copied from there.
    inside = stored.get("quantization")
    if isinstance(inside, Mapping):
        stored = {**stored, **inside}

    head = next((field for field in HEAD_FIELDS if stored.get(field) is True), None)
    if head is not None:
        warnings.warn(
            f"{model.name}: its output projection is quantized ({head}), and counts in 16 bits",
            ForetuneWarning,
            stacklevel=2,
        )

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
    method = _method(stored)
    _require_dense_weights(stored)

    # ModelOpt's and compressed-tensors' fields are exact, whatever the method is called.
    mixed = stored.get("quant_algo") == "MIXED_PRECISION" and not stored.get("quantized_layers")
    if (stored.get("quantized_layers") or stored.get("quant_algo")) and not mixed:
        return read_modelopt(stored)
    if stored.get("config_groups"):
        return read_compressed_tensors(stored)
    if method in READERS:
        return READERS[method](stored)
    if method in FIXED_METHODS:
        return Scheme(FIXED_METHODS[method], excluded_modules(stored), cache_format(stored))
    if method in ("", "modelopt", "compressed-tensors") and cache_format(stored) != UNQUANTIZED:
        return Scheme(cache=cache_format(stored))  # only the cache is quantized
    if not method and "quant_algo" in stored:
        return Scheme()
    raise NotPlannedError("its format is not known")


def _method(stored: Fields) -> str:
    """Return the method of a description; without a name, fields tell it. Empty if none does."""
    named = str(stored.get("quant_method") or "").lower().replace("_", "-")
    if named:
        return named
    if stored.get("load_in_4bit") or stored.get("load_in_8bit"):
        return "bitsandbytes"
    if not GPTQ_FIELDS.isdisjoint(stored):
        return "gptq"
    if not AWQ_FIELDS.isdisjoint(stored):
        return "awq"
    return "mlx" if "bits" in stored else ""


def _require_dense_weights(stored: Fields) -> None:
    """Raise NotPlannedError for weights of which many are left out."""
    sparsity = stored.get("sparsity_config") or {}
    if sparsity and sparsity.get("format") != "dense":
        raise NotPlannedError(f"sparse weights, {sparsity.get('format', 'sparsity_config')}")
    if stored.get("format") == "marlin-24":
        raise NotPlannedError("sparse weights, marlin-24")


READERS: dict[str, Callable[[Fields], Scheme]] = {
    "gptq": read_gptq,
    "gptq-marlin": read_gptq,
    "marlin": read_gptq,
    "awq": read_gptq,
    "awq-marlin": read_gptq,
    "auto-round": read_auto_round,
    "auto-gptq": read_gptq,
    "auto-awq": read_gptq,
    "gptq-bitblas": read_gptq,
    "bitblas": read_gptq,
    "ipex": read_gptq,
    "moe-wna16": read_moe_wna16,
    "qqq": read_qqq,
    "quanto": read_quanto,
    "intel/auto-round": read_auto_round,
    "inc": read_auto_round,
    "rtn": read_rtn,
    "hqq": read_hqq,
    "bitsandbytes": read_bitsandbytes,
    "fp8": read_fp8,
    "mxfp8": read_fp8,
    "experts-int8": read_experts_int8,
    "mxfp4": read_mxfp4,
    "gpt-oss-mxfp4": read_mxfp4,
    "nvfp4": read_nvfp4,
    "fouroversix": read_four_over_six,
    "metal": read_metal,
    "sinq": read_sinq,
    "gemma": read_gemma,
    "w4afp8": read_w4afp8,
    "fp-quant": read_fp_quant,
    "quark": read_quark,
    "torchao": read_torchao,
    "mlx": read_mlx,
}
"""``quant_method`` -> function that reads its description."""
