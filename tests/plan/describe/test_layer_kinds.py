"""Which layers have a window, a state, or attend to an image, also if the file leaves it out."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from foretune.errors import ForetuneError, ProblemError, UsageError
from foretune.plan import Formats, Layout
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.memory import request_bytes
from foretune.plan.cost.operator import Part
from foretune.plan.describe.huggingface import read_config, read_json

LAYERS = 12
WINDOW = 64
SIZES = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "intermediate_size": 128,
}


def windowed_layers(**fields):
    return read_config({**SIZES, **fields}, "it").windowed_layers


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("olmo3", LAYERS * 3 // 4),
        ("afmoe", LAYERS * 3 // 4),
        ("gemma2", LAYERS // 2),
        ("gemma3_text", LAYERS * 5 // 6),
        ("cwm", LAYERS * 3 // 4),
        ("mistral", LAYERS),
        ("llama", 0),
        ("qwen3", 0),
        ("muse_spark_text", LAYERS * 3 // 4),
    ],
)
def test_windows_of_a_file_without_layer_types_follow_the_class(family, expected):
    assert windowed_layers(model_type=family, sliding_window=WINDOW) == expected


def test_windows_pattern_may_end_with_a_full_layer():
    # Ten layers: the sixth is full, and the last one.
    ten = {**SIZES, "num_hidden_layers": 10}
    beam = read_config({**ten, "model_type": "beam", "sliding_window": WINDOW}, "it")
    assert beam.windowed_layers == 8


def test_windows_size_left_out_is_that_of_the_class():
    assert read_config({**SIZES, "model_type": "olmo3"}, "it").sliding_window == 4096
    none = read_config({**SIZES, "model_type": "mistral", "sliding_window": None}, "it")
    assert (none.sliding_window, none.windowed_layers) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sliding_window_pattern": 4}, LAYERS * 3 // 4),
        ({"sliding_window_pattern": "LLG"}, LAYERS * 2 // 3),
        ({"global_attn_every_n_layers": 3}, LAYERS * 2 // 3),
        ({"layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 7}, 5),
        ({"max_window_layers": 10}, 2),
        ({"use_sliding_window": False}, 0),
        ({"max_position_embeddings": WINDOW}, 0),
    ],
)
def test_windows_of_an_unknown_family_follow_its_file(fields, expected):
    assert windowed_layers(model_type="novel", sliding_window=WINDOW, **fields) == expected


def test_windows_of_an_unknown_family_without_layers_are_refused():
    with pytest.raises(UsageError, match=r"it: which layers of novel have the window.*layer_types"):
        windowed_layers(model_type="novel", sliding_window=WINDOW)


def test_layer_types_for_some_layers_only_are_refused():
    with pytest.raises(UsageError, match="5 entries for 12 layers"):
        windowed_layers(model_type="olmo3", layer_types=5 * ["full_attention"])


def test_kimi_linear_has_compressed_gates():
    delta = {
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11],
        "full_attn_layers": [4, 8, 12],
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    }
    latent = {
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
    config = {**SIZES, **latent, "model_type": "kimi_linear", "linear_attn_config": delta}
    compressed = read_config(config, "it")
    full = read_config({**config, "linear_attn_config": {**delta, "use_full_rank_gate": True}}, "")

    # A gate from 64 numbers through 16 to 64 instead of one from 64 to 64, in nine layers.
    saved = 9 * (64 * 64 - (64 * 16 + 16 * 64))
    assert full.parameters() - compressed.parameters() == saved
    assert (compressed.linear.layers, compressed.softmax_layers) == (9, 3)
    operators = mixed_operators(compressed, Layout(), Formats(), [Part(1, 1, 9, "decode")])
    gate = next(each for each in operators if each.name == "linear_output_gate")
    assert (gate.problem["N"], gate.problem["K"], gate.count) == (64, 16, 9)


def test_windows_of_unknown_size_are_refused():
    with pytest.raises(UsageError, match="no sliding_window: add it"):
        windowed_layers(model_type="novel", layer_types=LAYERS * ["sliding_attention"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("mamba_step", 2), ("kv_sharing_layers", [1]), ("local_window_size", 8), ("num_loops", 2)],
)
def test_unknown_family_with_layers_of_an_unknown_kind_is_refused(field, value):
    with pytest.raises(UsageError, match=f"layers with {field} .novel"):
        read_config({**SIZES, "model_type": "novel", field: value}, "it")
    assert read_config({**SIZES, "model_type": "novel", field: None}, "it")


@pytest.mark.parametrize("family", ["inkling_text", "minimax", "zaya"])
def test_families_whose_class_has_other_layers_are_refused_by_kind(family):
    with pytest.raises(UsageError, match=r"layers of (kind 'hybrid|linear attention)"):
        read_config({**SIZES, "model_type": family}, "it")


def test_chunked_layers_count_as_windows():
    fields = {"model_type": "llama4_text", "attention_chunk_size": WINDOW}
    chunked = read_config({**SIZES, **fields}, "it")
    assert (chunked.sliding_window, chunked.windowed_layers) == (WINDOW, LAYERS * 3 // 4)
    rotary = read_config({**SIZES, **fields, "no_rope_layers": 2 * [1] + 10 * [0]}, "it")
    assert rotary.windowed_layers == 2


def test_linear_layers_of_a_file_without_layer_types_follow_the_class():
    linear = {f"linear_num_{part}_heads": 4 for part in ("key", "value")}
    linear |= {f"linear_{part}_head_dim": 16 for part in ("key", "value")}
    fields = {"model_type": "qwen3_5_text", "linear_conv_kernel_dim": 4, **linear}
    assert read_config({**SIZES, **fields}, "it").linear.layers == LAYERS * 3 // 4
    every_third = read_config({**SIZES, **fields, "full_attention_interval": 3}, "it")
    assert every_third.linear.layers == LAYERS * 2 // 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # Layers 0 and 1, then every fourth from the third layer on: 2, 6, 10.
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 2 + 3),
        ({"index_topk_pattern": "FSSF" * 3}, 6),
        ({"indexer_types": ["full"] + 11 * ["shared"]}, 1),
        ({}, LAYERS),
    ],
)
def test_layers_that_select_keys(fields, expected):
    latent = {
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
    index = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
    model = read_config({**SIZES, **latent, **index, **fields, "model_type": "glm_moe_dsa"}, "it")
    assert model.indexed_layers == expected


def test_cross_attention_layers_cache_no_text():
    fields = {**SIZES, "model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 11]}
    crossing = read_config(fields, "it")
    every = replace(crossing, cross_attention_layers=0)

    share = request_bytes(crossing, Layout(), Formats(), 100) / request_bytes(
        every, Layout(), Formats(), 100
    )
    operators = mixed_operators(crossing, Layout(), Formats(), [Part(1, 1, 99, "decode")])
    attention = next(each for each in operators if each.kernel == "attention_decode")

    assert share == pytest.approx((LAYERS - 3) / LAYERS)
    assert attention.count == LAYERS - 3
    assert crossing.parameters() == every.parameters()
    with pytest.raises(ProblemError, match="cross attention"):
        replace(crossing, cross_attention_layers=LAYERS + 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dim": 64, "n_layers": 2, "n_heads": 4}, "publisher's own fields"),
        ({**SIZES, "model_type": "plamo2", "mamba_num_heads": 4}, r"Mamba layers \(plamo2\)"),
        ({**SIZES, "moe_num_experts": [8, 4]}, "it: layers of different sizes"),
        ({**SIZES, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is not known"),
    ],
)
def test_refusals_say_what_is_not_planned(config, reason):
    with pytest.raises(UsageError, match=reason):
        read_config(config, "it")


def test_sizes_by_other_names_of_remote_families():
    chat = {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "num_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 96,
        "padded_vocab_size": 100,
    }
    model = read_config(chat, "it")
    assert (model.layers, model.kv_heads, model.intermediate) == (3, 2, 96)
    assert (model.head_dim, model.vocab) == (16, 100)


def test_widths_of_latent_values_left_out_by_minicpm3():
    latent = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    model = read_config({**SIZES, **latent, "model_type": "minicpm3"}, "it")
    assert model.mla.v_head == 64 // 4


def shared_models():
    data = os.environ.get("FORETUNE_SHARED_DATA")
    folder = Path(data or "absent").parent / "cases" / "files" / "models"
    return {path.parent.name: path for path in sorted(folder.glob("*/config.json"))}


SHARED_MODELS = shared_models()
WINDOWED = {
    "command-a": 48,
    "gemma-2-27b": 23,
    "llama4-scout-int4-ct": 36,
    "olmo3-no-layer-types": 24,
    "phi-3.5-moe": 32,
    "trinity-large": 45,
}
"""Shared model -> its layers with a window; all others have none."""
LINEAR = {
    "granite-4-h-small": 36,
    "kimi-linear-48b": 20,
    "nemotron-nano-9b-v2": 27,
    "qwen3-next-80b": 36,
}
"""Shared model -> its layers with a state."""
REFUSED = {
    "arctic": "experts beside a dense MLP",
    "deepseek-v3.2-exp-own-format": "publisher's own fields",
    "ernie-4.5-vl-28b": "layers of different sizes",
    "plamo-2-8b": "Mamba layers",
}


@pytest.mark.skipif(not SHARED_MODELS, reason="FORETUNE_SHARED_DATA has no cases beside it")
@pytest.mark.parametrize("name", SHARED_MODELS)
def test_shared_models_are_read_or_refused_by_what_is_not_planned(name):
    config = read_json(SHARED_MODELS[name])
    if name in REFUSED:
        with pytest.raises(UsageError, match=f"{name}: .*{REFUSED[name]}"):
            read_config(config, name)
        return
    model = read_config(config, name)
    assert model.windowed_layers == WINDOWED.get(name, 0)
    assert (model.linear.layers if model.linear else 0) == LINEAR.get(name, 0)
    latent = config.get("kv_lora_rank") is not None
    assert (model.mla is not None) == latent


def test_windows_of_all_families_of_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    wrong, compared = {}, 0
    for family, config_class in transformers.CONFIG_MAPPING.items():
        try:
            config = config_class(num_hidden_layers=LAYERS)
            kinds = list(config.layer_types)
        except Exception:  # a class without text layers, or that needs more
            continue
        fields = {**config.to_dict(), "model_type": family}
        fields.pop("layer_types", None)
        try:
            model = read_config({**fields, "architectures": ["AForCausalLM"]}, family)
        except ForetuneError:
            continue
        compared += 1
        expected = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        if fields.get("use_sliding_window") is not False and model.windowed_layers != expected:
            wrong[family] = (model.windowed_layers, expected)
    assert not wrong
    assert compared >= 40
