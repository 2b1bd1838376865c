"""Descriptions of quantized checkpoints are understood completely, or refused by name."""

import json
import os
import re
from pathlib import Path

import pytest

from foretune.errors import UsageError
from foretune.plan.describe.formats import Formats, base_format, checkpoint_formats, find_format
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.model_catalog import describe_model

LAYERS = 4
HIDDEN = 512
MLP_WIDTH = 1024
DENSE = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": MLP_WIDTH,
}
"""Four equal projections of attention per layer, and three matrices of an MLP twice as large."""
SPARSE = {
    **DENSE,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
}


def formats_of(quantization, config=DENSE):
    return checkpoint_formats(read_config({**config, "quantization_config": quantization}, "it"))


def group(weights, inputs=None, **more):
    return {"weights": weights, "input_activations": inputs, "targets": ["Linear"]} | more


def compressed_tensors(weights, inputs=None, **more):
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group(weights, inputs)},
        **more,
    }


def torchao(config, **others):
    return {"quant_method": "torchao", "quant_type": {"default": config, **others}}


MX_OF_TORCHAO = {
    "_type": "MXDynamicActivationMXWeightConfig",
    "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "float8_e4m3fn"}},
}
INT4_OF_TORCHAO = {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "int4_wo_g64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4_wo_row"),
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4_wo"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4_wo_g64"),
        ({"quant_method": "awq", "bits": 4, "zero_point": True}, "int4_wo_g128z"),
        ({"quant_method": "auto-round", "bits": 3, "group_size": 64}, "int3_wo_g64"),
        (
            {"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32},
            "mxfp4",
        ),
        (
            {
                "quant_method": "auto-round",
                "bits": 4,
                "data_type": "nv_fp",
                "group_size": 16,
                "act_bits": 4,
                "act_data_type": "nv_fp4_with_static_gs",
            },
            "nvfp4",
        ),
        (
            {
                "quant_method": "auto-round",
                "bits": 4,
                "data_type": "mx_fp",
                "act_bits": 4,
                "act_data_type": "mx_fp_rceil",
            },
            "w4a4_mxfp4",
        ),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "int_asym_dq"}, None),
        ({"quant_method": "rtn", "bits": 8, "group_size": 64}, "int8_wo_g64"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8_wo"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
            },
            "nf4_dq",
        ),
        ({"quant_method": "bitsandbytes"}, None),
        ({"load_in_8bit": True, "load_in_4bit": False}, "int8_wo"),
        ({"quant_method": "marlin", "group_size": 64}, "int4_wo_g64"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 64}, "int4_wo_g64"),
        ({"quant_method": "gptq", "bits": 8, "format": "fp8"}, None),
        (compressed_tensors(INT4, format="marlin-24"), None),
        (compressed_tensors(INT4), "int4_wo_g32"),
        (compressed_tensors({**INT4, "symmetric": False}), "int4_wo_g32z"),
        (compressed_tensors(FP4), "nvfp4_wo"),
        (compressed_tensors(FP4, FP4), "nvfp4"),
        (compressed_tensors(FP8), "fp8_wo"),
        (compressed_tensors(FP8, FP8), "fp8"),
        (compressed_tensors({**FP4, "group_size": 32}, FP8), "w4a8_mxfp4_fp8"),
        (compressed_tensors({**INT4, "num_bits": 8}, FP8), None),
        (compressed_tensors(FP8, FP8, sparsity_config={"format": "sparse-24-bitmask"}), None),
        (compressed_tensors(FP8, FP8, sparsity_config={"format": "dense"}), "fp8"),
        ({"quant_algo": "W4A16_NVFP4"}, "nvfp4_wo"),
        ({"quant_algo": "W3A7"}, None),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                    "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                },
            },
            "fp8",
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp6_e2m3", "qscheme": "per_group", "group_size": 32}
                },
            },
            None,
        ),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8_wo"),
        (
            {
                "quant_method": "torchao",
                "quant_type": {
                    "default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}
                },
            },
            "int4_wo_g64",
        ),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Novel"}}}, None),
        (torchao({"_type": "Int8DynamicActivationInt4WeightConfig"}), "w4a8_int8_g32"),
        (
            torchao(
                {
                    "_type": "IntxWeightOnlyConfig",
                    "_data": {
                        "weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
                        "granularity": {"_type": "PerGroup", "_data": {"group_size": 32}},
                    },
                }
            ),
            "int4_wo_g32",
        ),
        (torchao(MX_OF_TORCHAO), "mxfp8"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, None),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, "mxfp8"),
        ({"group_size": 32, "bits": 6}, "int6_wo_g32b"),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "mxfp4"),
        ({"group_size": 32, "bits": 8, "mode": "mxfp8"}, "fp8_wo_g32"),
        ({"group_size": 32, "bits": 4, "mode": "novel"}, None),
        ({"quant_method": "novel", "bits": 4}, None),
        ({"quant_method": "quanto", "weights": "int8", "activations": None}, "int8_wo"),
        ({"quant_method": "quanto", "weights": "int8", "activations": "int8"}, None),
        ({"quant_method": "qqq", "wbits": 4, "group_size": 64}, "w4a8_int8_g64"),
        ({"quant_method": "gptq", "bits": 4, "sym": False}, "int4_wo_g128z"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin_24"}, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": "many"}, None),
        ({"quant_method": "gptq", "group_size": 64}, None),
    ],
)
def test_stored_formats_of_all_weights(quantization, expected):
    if expected is None:
        with pytest.raises(UsageError, match=r"cannot be planned|not understood") as refusal:
            formats_of(quantization)
        assert "--formats" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    else:
        assert formats_of(quantization) == Formats(expected)


def test_stored_formats_gptq_dynamic_has_other_bits_for_some_modules():
    quantization = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {"+:.*down_proj.*": {"bits": 8, "group_size": 64}, "-:.*q_proj.*": {}},
    }

    formats = formats_of(quantization)

    # One of three matrices of the MLPs, and one of four projections of attention.
    assert formats == Formats("int4_wo:25.0%bf16", moe="int4_wo:33.3%int8_wo_g64")


def test_stored_formats_auto_round_layers_have_their_own_bits():
    quantization = {
        "quant_method": "auto-round",
        "bits": 4,
        "extra_config": {
            "model.layers.0.self_attn.q_proj": {"bits": 16, "data_type": "fp"},
            "model.layers.1.mlp.down_proj": {"bits": 8},
        },
    }

    formats = formats_of(quantization)

    attention = 100 / LAYERS / 4
    mlps = 100 / LAYERS / 3
    assert formats.weights == f"int4_wo:{attention:.1f}%bf16"
    assert formats.moe == f"int4_wo:{mlps:.1f}%int8_wo_g128"


@pytest.mark.parametrize(
    "excluded",
    [
        ["model.layers.0.self_attn", "model.layers.2.self_attn"],
        [f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 2) for p in "qkvo"],
        ["model.layers.0.self_attn*", "model.layers.2.self_attn*"],
        [r"re:.*layers\.(0|2)\.self_attn.*"],
        [
            "language_model.model.layers.0.self_attn",
            "re:.*layers.2.*qkv_proj",
            "re:.*layers.2.*o_proj",
        ],
    ],
)
def test_stored_formats_excluded_layers_however_they_are_named(excluded):
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", *excluded]}
    assert formats_of(quantization) == Formats("fp8:50.0%bf16", moe="fp8")


@pytest.mark.parametrize(
    "other",
    ["lm_head", "mlp.gate", "model.vision_tower.layers.0.mlp", "model.layers.1.input_layernorm"],
)
def test_stored_formats_other_excluded_modules_change_nothing(other):
    assert formats_of({"quant_method": "fp8", "modules_to_not_convert": [other]}) == Formats("fp8")


def test_stored_formats_experts_without_what_lies_beside_them():
    ignored = ["re:.*self_attn.*", "re:.*shared_expert.*", "lm_head"]
    formats = formats_of(compressed_tensors(INT4, ignore=ignored), SPARSE)
    assert formats == Formats("bf16", moe="int4_wo_g32")


def test_stored_formats_shared_experts_count_with_projections():
    formats = formats_of(compressed_tensors(INT4, ignore=["re:.*self_attn.*"]), SPARSE)

    attention = 4 * HIDDEN * HIDDEN
    shared = 3 * HIDDEN * 256
    percent = 100 * shared / (attention + shared)
    assert formats == Formats(f"bf16:{percent:.1f}%int4_wo_g32", moe="int4_wo_g32")


@pytest.mark.parametrize(
    ("method", "weights", "experts"),
    [("mxfp4", "bf16", "mxfp4"), ("w4afp8", "fp8", "w4afp8"), ("experts_int8", "bf16", "int8_wo")],
)
def test_stored_formats_methods_for_experts_only(method, weights, experts):
    assert formats_of({"quant_method": method}, SPARSE) == Formats(weights, moe=experts)


@pytest.mark.parametrize(
    "quantization",
    [
        # AutoRound's names may be regular expressions, which match anywhere in a path.
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"self_attn": {"bits": 16}}},
        {
            "quant_method": "auto-round",
            "bits": 4,
            "extra_config": {r"self_attn\.[qkvo]_proj": {"bits": 16}},
        },
        {
            "quant_method": "hqq",
            "quant_config": {
                f"mlp.{name}_proj": {"weight_quant_params": {"nbits": 4, "group_size": 128}}
                for name in ("gate", "up", "down")
            },
        },
        torchao(None, **{"re:.*mlp.*": INT4_OF_TORCHAO}),
        torchao(
            {
                "_type": "ModuleFqnToConfig",
                "_data": {
                    "module_fqn_to_config": {
                        "_default": INT4_OF_TORCHAO,
                        "re:.*self_attn.*": None,
                        "model.embed_tokens": {"_type": "Int8WeightOnlyConfig"},
                    }
                },
            }
        ),
    ],
    ids=["path", "pattern", "hqq", "torchao", "torchao-modules"],
)
def test_stored_formats_other_formats_by_module(quantization):
    formats = formats_of(quantization)
    assert formats.weights == "bf16"
    assert base_format(formats.moe) == "int4_wo"


def test_stored_formats_listed_modules_that_are_unknown_are_refused():
    layers = {"model.layers.0.novel.weight": {"quant_algo": "FP8"}}
    with pytest.raises(UsageError, match=r"model.layers.0.novel.weight, …\) are not known"):
        formats_of({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})


@pytest.mark.parametrize(
    ("scheme", "cache"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ("FP8", "fp8"),
        ("static", "fp8"),
        ("none", "bf16"),
        (None, "bf16"),
    ],
)
def test_stored_formats_cache(scheme, cache):
    quantization = compressed_tensors(FP8, FP8, kv_cache_scheme=scheme)
    assert formats_of(quantization).kv == cache


def test_stored_formats_unknown_cache_is_refused():
    with pytest.raises(UsageError, match="a cache of 4-bit int"):
        formats_of(compressed_tensors(FP8, FP8, kv_cache_scheme={"num_bits": 4, "type": "int"}))


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32}, "int4_wo_g32"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64}, "int4_wo_g64"),
    ],
)
def test_read_folder_with_an_older_tools_file(tmp_path, file, content, expected):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    (tmp_path / file).write_text(json.dumps(content))
    assert checkpoint_formats(describe_model(str(tmp_path))) == Formats(expected)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}}, "fp8"),
        ({"hf_quant_config.json": {"quant_algo": "FP8"}}, "fp8"),
        ({"hf_quant_config.json": {"producer": {"name": "modelopt"}}}, None),
        ({"config.json": {**DENSE, "dtype": "float8_e4m3fn"}}, None),
        ({"config.json": {**DENSE, "torch_dtype": "float16"}}, "bf16"),
    ],
)
def test_read_folder_describes_its_formats_or_is_refused(tmp_path, files, expected):
    for file, content in {"config.json": DENSE, **files}.items():
        (tmp_path / file).write_text(json.dumps(content))
    if expected is None:
        with pytest.raises(UsageError, match=r"no field quantization|float8_e4m3fn without"):
            describe_model(str(tmp_path))
    else:
        assert checkpoint_formats(describe_model(str(tmp_path))) == Formats(expected)


def test_stored_formats_mixed_precision_by_groups():
    groups = {
        "group_0": group(FP8, FP8, targets=["re:.*self_attn.*"]),
        "group_1": group(FP4, FP4, targets=["re:.*mlp.*"]),
    }
    quantization = {"quant_algo": "MIXED_PRECISION", "config_groups": groups}
    assert formats_of(quantization) == Formats("fp8", moe="nvfp4")


def test_read_folder_of_mlx(tmp_path):
    mlx = {"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": {"bits": 8}}
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "quantization": mlx}))

    formats = checkpoint_formats(describe_model(str(tmp_path)))

    percent = 100 / LAYERS / 3
    assert formats == Formats("int4_wo_g64b", moe=f"int4_wo_g64b:{percent:.1f}%int8_wo_g64b")


def shared_cases():
    data = os.environ.get("FORETUNE_SHARED_DATA")
    path = Path(data or "absent").parent / "cases" / "files" / "quantization_configs.json"
    return json.loads(path.read_text()) if path.is_file() else {}


CASES = shared_cases()


@pytest.mark.skipif(not CASES, reason="FORETUNE_SHARED_DATA has no cases beside it")
@pytest.mark.parametrize("name", CASES)
def test_shared_cases_are_right_or_refused_where_that_is_right(name):
    right = CASES[name]["right"]
    only_refusal = right.startswith("refused by name") and " or " not in right
    try:
        formats = formats_of(CASES[name]["quantization_config"], SPARSE)
    except UsageError:
        assert "refused by name" in right
        return
    assert not only_refusal

    experts = find_format(formats.moe)
    base = base_format(formats.moe)
    if bits := re.search(r"(?:weights|experts) (\d+) bits", right):
        assert (experts.parts[0][1].bits if experts.parts else experts.bits) == int(bits[1])
    if size := re.search(r"group (\d+)", right):
        assert experts.group == int(size[1])
    if both := re.search(r"weights and activations (\w+)", right):
        assert (base, experts.activations) == (both[1], both[1])
    elif kind := re.search(r"activations (fp8|8 bits integer|16 bits)", right):
        names = {"fp8": "fp8", "8 bits integer": "int8", "16 bits": "bf16"}
        assert experts.activations == names[kind[1]]
    if cache := re.search(r"cache (\w+)", right):
        assert formats.kv == cache[1]
    if right == "bf16":
        assert formats == Formats("bf16")
