"""The fields of a ``config.json``: `plan/describe/huggingface.py`."""

import pytest
from model_configs import CONFIG

from foretune.errors import ForetuneWarning, UsageError
from foretune.plan.describe.huggingface import read_config

STEP = {
    "model_type": "step3p7",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_attention_groups": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "intermediate_size": 96,
    "sliding_window": 8,
    "layer_types": ["full_attention"] + 3 * ["sliding_attention"],
    "moe_num_experts": 8,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 48,
    "moe_layers_enum": "2,3",
}
"""Layers with a window have other heads than the others."""
STEP_WINDOW_HEADS = {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16}
GEMMA_TEXT = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "sliding_window": 1024,
}
"""A file that leaves out what its class knows."""
HYBRIDS = {
    "lfm3": {"layer_types": ["conv", "sliding_attention"], "conv_L_cache": 7},
    "jamba": {"attn_layer_period": 8, "mamba_d_state": 16},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 2560},
}
"""Family -> fields of layers that are not attention, and that cannot be planned."""


def test_read_config_windowed_layers_have_heads_of_their_own():
    read = read_config(STEP | {"attention_other_setting": STEP_WINDOW_HEADS}, "step")
    groups = [(count, window, heads.heads) for count, window, heads in read.softmax_groups()]
    assert groups == [(1, 0, 4), (3, 8, 6)]
    assert (read.kv_heads, read.moe_layers, read.shared_width) == (2, 2, 48)


def test_read_config_layers_for_drafting_do_not_count():
    config = STEP | {"attention_other_setting": STEP_WINDOW_HEADS}
    drafting = {"layer_types": STEP["layer_types"] + 2 * ["sliding_attention"]}
    assert read_config(config | drafting, "step") == read_config(config, "step")


def test_read_config_windowed_layers_without_their_heads_are_refused():
    with pytest.raises(UsageError, match="attention_other_setting"):
        read_config(STEP, "step")


def deci(*layers):
    """Return the config of a model of Deci; a layer is (multiple of the width, heads in a group).

    A layer with None has no attention.
    """
    blocks = []
    for multiple, heads_in_group in layers:
        attention = {"no_op": heads_in_group is None, "n_heads_in_group": heads_in_group}
        blocks.append({"attention": attention, "ffn": {"no_op": False, "ffn_mult": multiple}})
    return {
        "num_hidden_layers": 3,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "vocab_size": 10,
        "block_configs": blocks,
    }


def test_read_config_layers_of_deci_have_their_own_width():
    read = read_config(deci((5.25, 2), (1.3125, None), (5.25, 2)), "deci")
    # 2/3 · 1.3125 · 8192 and 2/3 · 5.25 · 8192
    assert read.mlp_widths == ((7168, 1), (28672, 2))
    assert (read.softmax_layers, read.mlp_layers) == (2, 3)
    assert read.kv_heads == 64 // 2


def test_read_config_layers_of_deci_with_different_heads_are_refused():
    with pytest.raises(UsageError, match="layers with different heads"):
        read_config(deci((1.0, 2), (1.0, 4)), "deci")


@pytest.mark.parametrize("family", HYBRIDS)
def test_read_config_layers_that_are_not_attention_are_refused(family):
    with pytest.raises(UsageError, match=r"layers|convolutions"):
        read_config(CONFIG | {"model_type": family} | HYBRIDS[family], family)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hybrid_override_pattern": "MX"}, "layers of kind 'X'"),
        ({"hybrid_override_pattern": "M*E"}, r"mamba_num_heads in .* is not complete"),
        (
            {
                "hybrid_override_pattern": "M*E",
                "n_groups": "two",
                "ssm_state_size": 16,
                "mamba_head_dim": 8,
                "conv_kernel": 4,
            },
            r"mamba_num_heads in .*key_heads is 'two'",
        ),
    ],
    ids=["unknown kind", "incomplete state", "text for a number"],
)
def test_read_config_incomplete_hybrid_is_refused(fields, reason):
    with pytest.raises(UsageError, match=reason):
        read_config(CONFIG | {"mamba_num_heads": 4} | fields, "hybrid")


def test_read_config_class_supplies_missing_fields():
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": GEMMA_TEXT,
    }
    gemma = read_config(config, "gemma-3-12b")
    assert (gemma.vocab, gemma.head_dim, gemma.tied_embeddings) == (262_208, 256, True)
    assert (gemma.windowed_layers, gemma.sliding_window) == (40, 1024)


def test_read_config_value_outside_of_the_text_part_counts():
    config = {"model_type": "gemma3", "tie_word_embeddings": False, "text_config": GEMMA_TEXT}
    assert not read_config(config, "own head").tied_embeddings


def test_read_config_decoder_inside_another_names_its_architecture():
    outer = {"architectures": ["NovelModel"], "vision_config": {}}
    inner = CONFIG | {"architectures": ["Qwen3MoeForCausalLM"]}
    assert read_config({**outer, "llm_config": inner}, "it").images
    with pytest.raises(UsageError, match="NovelModel is not known to generate text"):
        read_config({**outer, "llm_config": CONFIG}, "it")


@pytest.mark.parametrize(
    ("fields", "windowed", "window"),
    [
        ({"sliding_window": 128}, 0, 0),  # the class needs use_sliding_window
        ({"sliding_window": 128, "use_sliding_window": False}, 0, 0),
        ({"sliding_window": 128, "use_sliding_window": True}, 4, 128),
        ({"sliding_window": 128, "model_type": "mistral"}, 4, 128),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 128,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            1,
            128,
        ),
        (
            {
                "sliding_window": 128,
                "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2,
            },
            2,
            128,
        ),
        ({"sliding_window": 128, "sliding_window_pattern": 2}, 2, 128),
        ({"sliding_window": 128, "sliding_window_pattern": "LLLG"}, 3, 128),
        ({"sliding_window": None}, 0, 0),
    ],
)
def test_read_config_windows(fields, windowed, window):
    described = read_config(CONFIG | fields, "w")
    assert (described.windowed_layers, described.sliding_window) == (windowed, window)


@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        ({"first_k_dense_replace": 3}, 3),
        ({"mlp_only_layers": [0, 2]}, 2),
        ({"decoder_sparse_step": 2}, 2),
        ({"interleave_moe_layer_step": 4}, 3),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, 1),
        ({}, 0),
    ],
)
def test_read_config_dense_layers(fields, dense):
    assert read_config(CONFIG | fields, "d").dense_layers == dense


@pytest.mark.parametrize(
    ("stored", "formats"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8_block", "fp8_block")),
        ({"quant_method": "fp8"}, ("fp8", "fp8")),
        ({"quant_method": "awq", "bits": 4}, ("int4_wo", "int4_wo")),
        ({"quant_method": "gptq", "bits": 8}, ("int8_wo_g128", "int8_wo_g128")),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
            ("bf16", "mxfp4"),
        ),
        (
            {"config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}}},
            ("int4_wo", "int4_wo"),
        ),
        (
            {
                "config_groups": {
                    "group_0": {
                        "weights": {"type": "int", "num_bits": 8},
                        "input_activations": {"num_bits": 8},
                    }
                }
            },
            ("int8", "int8"),
        ),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": [
                    "model.layers.0.self_attn.q_proj",
                    "model.layers.9.self_attn.indexer",
                ],
            },
            # One of four layers; 4 of 12 heads are those of queries.
            (f"fp8:{100 / 4 * 4 / 12:.1f}%bf16", "fp8"),
        ),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": [
                    f"vision_model.layers.{layer}.self_attn.q_proj" for layer in range(9)
                ],
            },
            ("fp8", "fp8"),
        ),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {}}}, ("bf16", "int4_wo")),
        (
            {
                "config_groups": {
                    "group_0": {
                        "weights": {"type": "int", "num_bits": 4},
                        "input_activations": {"type": "float"},
                    }
                }
            },
            ("w4afp8", "w4afp8"),
        ),
        (
            {
                "config_groups": {
                    "group_0": {
                        "weights": {"type": "float"},
                        "input_activations": {"type": "float"},
                        "targets": ["re:.*self_attn.*"],
                    },
                    "group_1": {
                        "weights": {"type": "float", "num_bits": 4},
                        "input_activations": {"type": "float", "num_bits": 4},
                        "targets": ["re:.*mlp.*"],
                    },
                }
            },
            ("fp8", "nvfp4"),
        ),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    f"layers.{layer}.{module}": {"quant_algo": algorithm}
                    for layer in range(4)
                    for module, algorithm in (
                        ("self_attn.qkv_proj", "MXFP8"),
                        ("self_attn.o_proj", "MXFP8"),
                        ("mlp.experts", "NVFP4"),
                    )
                },
            },
            ("mxfp8", "nvfp4"),
        ),
    ],
)
def test_read_config_formats(stored, formats):
    described = read_config(CONFIG | {"quantization_config": stored}, "q")
    assert (described.weight_format, described.moe_format) == formats


def test_read_config_older_name_of_the_quantization():
    stored = {"compression_config": {"quant_method": "fp8"}}
    assert read_config(CONFIG | stored, "q").weight_format == "fp8"


def test_read_config_sizes_in_texts_are_numbers():
    texts = {"num_key_value_heads": "2", "head_dim": "16", "tie_word_embeddings": "False"}
    numbers = {"num_key_value_heads": 2.0, "head_dim": 16, "tie_word_embeddings": False}

    read = read_config(CONFIG | texts, "it")

    assert read == read_config(CONFIG | numbers, "it")
    assert read.kv_heads == 2
    assert not read.tied_embeddings


@pytest.mark.parametrize("value", ["eight", 8.5])
def test_read_config_size_that_is_no_whole_number_is_refused(value):
    with pytest.raises(UsageError, match=r"num_key_value_heads .* is no whole number"):
        read_config(CONFIG | {"num_key_value_heads": value}, "it")


@pytest.mark.parametrize(
    "fields",
    [
        {"num_moe_experts": 8, "moe_router_topk": 2},
        {"n_experts": 8},
        {"moe": {"num_experts": 8}},
        {"moe_config": {"num_experts": 8}},
    ],
    ids=["Megatron", "short", "part", "config"],
)
def test_read_config_experts_by_other_names_are_no_dense_model(fields):
    dense = {name: value for name, value in CONFIG.items() if "expert" not in name}
    with pytest.raises(UsageError, match="call their number num_experts"):
        read_config(dense | {"model_type": "of_nobody"} | fields, "it")


def test_read_config_dense_model_may_have_fields_of_experts():
    dense = {name: value for name, value in CONFIG.items() if "expert" not in name}
    defaults = {"moe_layer_freq": 1, "num_experts": 0, "num_experts_per_tok": 8, "n_experts": 1}
    assert read_config(dense | {"model_type": "of_nobody"} | defaults, "it").experts == 0


def test_read_config_key_heads_by_other_names_are_refused():
    unknown = {name: value for name, value in CONFIG.items() if name != "num_key_value_heads"}
    with pytest.raises(UsageError, match="call their number num_key_value_heads"):
        read_config(unknown | {"model_type": "of_nobody", "num_attention_kv_heads": 2}, "it")


def test_read_config_names_the_part_with_the_sizes():
    parts = {"vision_config": CONFIG, "thinker": {"text_config": CONFIG}}
    with pytest.raises(UsageError, match=r"its part thinker\.text_config"):
        read_config({"model_type": "of_nobody", **parts}, "it")


@pytest.mark.parametrize("activation", ["relu2", "gelu_new"])
def test_read_config_unknown_gate_is_said(activation):
    with pytest.warns(ForetuneWarning, match="have a gate is not known"):
        read_config(CONFIG | {"model_type": "of_nobody", "hidden_act": activation}, "it")


def test_read_config_laguna_gates_per_element_count():
    fields = {"model_type": "laguna", "num_key_value_heads": 2, "num_attention_heads": 4}
    plain = read_config(CONFIG | fields | {"gating": "per-head"}, "it")
    gated = read_config(CONFIG | fields | {"gating": "per-element"}, "it")

    # A gate is as wide as the queries, in every layer.
    queries = gated.heads * gated.head_dim
    assert gated.parameters() - plain.parameters() == gated.layers * gated.hidden * queries


@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        # Of the layers 0 to 3, these have experts: 2 …
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, 3),
        # … 1, 3 …
        ({"moe_layer_start_index": 1, "moe_layer_interval": 2}, 2),
        # … and 1, 2.
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1}, 2),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_layer_end_index": -1}, 1),
    ],
    ids=["frequency", "interval", "end", "last"],
)
def test_read_config_layers_with_experts(fields, dense):
    assert read_config(CONFIG | {"model_type": "deepseek_v3"} | fields, "it").dense_layers == dense
