"""Descriptions of quantization by less common tools."""

import pytest

from foretune.errors import ForetuneWarning, UsageError
from foretune.plan.describe.formats import checkpoint_formats
from foretune.plan.describe.huggingface import read_config

DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": 1024,
}


def weights_of(quantization):
    """Return the formats of attention and MLPs of a checkpoint."""
    read = checkpoint_formats(read_config({**DENSE, "quantization_config": quantization}, "it"))
    return read.weights, read.moe


NULL_INPUTS = {"group_0": {"weights": {"num_bits": 4}, "input_activations": None}}
WITH_INPUTS = {"group_0": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 4}}}


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        ({"quant_method": "nvfp4", "modules_to_not_convert": ["lm_head"]}, "nvfp4"),
        ({"quant_method": "fouroversix", "dtype": "nvfp4"}, "nvfp4"),
        ({"quant_method": "fouroversix", "dtype": "mxfp4"}, "w4a4_mxfp4"),
        ({"quant_method": "metal", "bits": 4, "group_size": 64}, "int4_wo_g64b"),
        ({"quant_method": "sinq", "nbits": 4, "group_size": 64}, "int4_wo_g64b"),
        ({"quant_method": "gemma", "num_bits": 4}, "int4_wo_row"),
        ({"quant_method": "auto-awq", "bits": 4, "group_size": 128}, "int4_wo"),
        ({"quant_method": "inc", "bits": 4, "group_size": 32}, "int4_wo_g32"),
        (
            {
                "quant_method": "auto-round",
                "bits": 8,
                "data_type": "fp",
                "group_size": [128, 128],
                "packing_format": "auto_round:fp8",
            },
            "fp8_block",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}},
            "int4_wo",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"FP8_BLOCK": ["Linear"]}},
            "fp8_block",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": NULL_INPUTS},
            "nvfp4_wo",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": WITH_INPUTS},
            "nvfp4",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8_BLOCK_SCALES"}, "fp8_block"),
    ],
)
def test_quantization_of_one_format_is_read(quantization, weights):
    assert weights_of(quantization) == (weights, weights)


def test_gemma_s_modules_have_their_own_bits():
    quantization = {
        "quant_method": "gemma",
        "num_bits": 4,
        "module_quant_configs": {r"mlp\.": {"num_bits": 2}},
    }
    assert weights_of(quantization) == ("int4_wo_row", "int2_wo_row")


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "higgs", "bits": 4}, "quantized by higgs"),
        ({"quant_method": "spqr", "bits": 3}, "quantized by spqr"),
        ({"quant_method": "gemma", "quantize_embeddings": True}, "quantized embeddings"),
        ({"quant_method": "metal", "bits": 4}, "group_size is missing"),
        (
            {"quant_method": "fouroversix", "weight_dtype": "nvfp4", "activation_dtype": "bf16"},
            "weights nvfp4, activations bf16",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"W3A3": ["Linear"]}},
            "scheme W3A3",
        ),
        (
            {"quant_method": "auto-round", "bits": 8, "data_type": "fp", "group_size": [64, 64]},
            "in blocks of",
        ),
    ],
)
def test_quantization_that_is_not_planned_is_refused_by_name(quantization, words):
    with pytest.raises(UsageError, match="plan its unquantized model") as refusal:
        weights_of(quantization)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": "True", "load_in_8bit": "False"},
            "nf4",
        ),
        ({"quant_method": "gptq", "bits": "8", "group_size": "32"}, "int8_wo_g32"),
    ],
    ids=["booleans", "numbers"],
)
def test_values_written_as_texts_are_what_they_say(quantization, weights):
    assert weights_of(quantization) == (weights, weights)


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        ({"bits": 4, "group_size": 32, "desc_act": False, "sym": True}, "int4_wo_g32"),
        ({"w_bit": 4, "q_group_size": 64, "zero_point": True}, "int4_wo_g64z"),
        ({"bits": 4, "group_size": 64}, "int4_wo_g64b"),
    ],
    ids=["GPTQ", "AWQ", "MLX"],
)
def test_description_without_method_is_told_by_its_fields(quantization, weights):
    assert weights_of(quantization) == (weights, weights)


def test_modelopt_file_copied_into_the_config_is_read():
    described = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    nested = {"producer": {"name": "modelopt"}, "quantization": described}
    read = read_config({**DENSE, "quantization_config": nested}, "it")
    assert (read.weight_format, read.kv_format) == ("fp8", "fp8")


def test_cache_left_to_the_engine_is_unquantized():
    stored = {"quant_method": "petit_nvfp4", "quant_algo": "NVFP4", "kv_cache_quant_algo": "auto"}
    assert read_config({**DENSE, "quantization_config": stored}, "it").kv_format == "bf16"


def test_quantized_head_is_said():
    stored = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    with pytest.warns(ForetuneWarning, match="output projection is quantized .lm_head."):
        weights_of(stored)
