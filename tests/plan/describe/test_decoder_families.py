"""Every decoder family is read right, or refused by name."""

import pytest

from foretune.errors import ForetuneError, UsageError
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.layout import legal_layouts

PUBLISHED = {
    "gpt2": (
        {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None, "vocab_size": 50257},
        0.124,
    ),
    "opt": (
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "vocab_size": 50272,
        },
        1.32,
    ),
    "bloom": (
        {"n_embed": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
        7.07,
    ),
    "falcon": (
        {
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "vocab_size": 65024,
        },
        6.92,
    ),
    "mpt": (
        {"d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4, "vocab_size": 50432},
        6.65,
    ),
    "gptj": (
        {
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "vocab_size": 50400,
            "tie_word_embeddings": False,
        },
        6.05,
    ),
    "gpt_bigcode": (
        {
            "n_embd": 6144,
            "n_head": 48,
            "n_layer": 40,
            "n_inner": 24576,
            "multi_query": True,
            "vocab_size": 49152,
        },
        15.5,
    ),
    "dbrx": (
        {
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131.6,
    ),
    "bamba": (
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_indices": [9, 18, 27],
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        },
        9.78,
    ),
    "granitemoehybrid": (
        {
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "intermediate_size": 768,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "shared_intermediate_size": 1536,
            "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "vocab_size": 100352,
            "tie_word_embeddings": True,
        },
        32.2,
    ),
    "falcon_h1": (
        {
            "hidden_size": 3072,
            "num_hidden_layers": 44,
            "intermediate_size": 12288,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_d_ssm": 3072,
            "mamba_n_heads": 24,
            "mamba_d_head": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "vocab_size": 130048,
            "tie_word_embeddings": False,
        },
        7.59,
    ),
    "lfm2": (
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "block_ff_dim": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "vocab_size": 65536,
            "tie_embedding": True,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
        1.17,
    ),
    "lfm2_moe": (
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "num_dense_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "conv_L_cache": 3,
            "vocab_size": 65536,
            "tie_word_embeddings": True,
            "layer_types": [*["conv"] * 18, *["full_attention"] * 6],
        },
        8.34,
    ),
}
"""Family -> what a published model's file says, and its parameters in billions."""


@pytest.mark.parametrize("family", PUBLISHED)
def test_parameters_of_published_models(family):
    config, billions = PUBLISHED[family]
    model = read_config({"model_type": family, **config}, family)
    assert model.parameters() / 1e9 == pytest.approx(billions, rel=0.01)


def test_key_heads_of_older_families():
    falcon = {**PUBLISHED["falcon"][0], "num_attention_heads": 64, "model_type": "falcon"}
    assert read_config(falcon, "").kv_heads == 1
    newer = {**falcon, "new_decoder_architecture": True, "num_kv_heads": 8}
    assert read_config(newer, "").kv_heads == 8
    assert read_config({"model_type": "dbrx", **PUBLISHED["dbrx"][0]}, "").kv_heads == 8


def test_layers_of_hybrids():
    granite = read_config(
        {"model_type": "granitemoehybrid", **PUBLISHED["granitemoehybrid"][0]}, ""
    )
    assert (granite.softmax_layers, granite.linear.layers, granite.moe_layers) == (4, 36, 40)
    short = read_config({"model_type": "lfm2", **PUBLISHED["lfm2"][0]}, "")
    assert (short.softmax_layers, short.linear.layers, short.intermediate) == (6, 10, 8192)
    beside = read_config({"model_type": "falcon_h1", **PUBLISHED["falcon_h1"][0]}, "")
    assert (beside.softmax_layers, beside.linear.layers, beside.mlp_layers) == (44, 44, 44)
    assert (beside.layers, beside.attentions, beside.norms) == (44, 88, 89)


def test_an_odd_value_is_named():
    bamba = {"model_type": "bamba", **PUBLISHED["bamba"][0]}
    auto = read_config({**bamba, "mamba_d_head": "auto", "mamba_expand": 2}, "")
    assert auto == read_config(bamba, "")
    with pytest.raises(UsageError, match="mamba_d_state is None"):
        read_config({**bamba, "mamba_d_state": None}, "")
    with pytest.raises(UsageError, match="list of names"):
        read_config({**bamba, "architectures": "BambaForCausalLM"}, "")


def test_states_of_one_group_are_split_over_ranks():
    bamba = read_config({"model_type": "bamba", **PUBLISHED["bamba"][0]}, "")
    assert any(layout.tp == 8 for layout in legal_layouts(bamba, 8, Formats("bf16")))


def test_lengths_by_other_names():
    gpt2 = {"model_type": "gpt2", "n_positions": 1024, **PUBLISHED["gpt2"][0]}
    assert read_config(gpt2, "").longest == 1024


def test_quantizations_are_read_or_refused():
    bloom = {"model_type": "bloom", **PUBLISHED["bloom"][0]}
    fp8 = read_config({**bloom, "quantization_config": {"quant_method": "fbgemm_fp8"}}, "")
    assert fp8.weight_format == "fp8"
    weights = {"num_bits": 8, "type": "float", "strategy": "block"}
    for stored, kind in (
        ({"quant_method": "gptq", "bits": 3}, "int3_wo"),
        ({"quant_method": "awq"}, "int4_wo"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": weights, "input_activations": {"type": "float"}}
                },
            },
            "fp8_block",
        ),
    ):
        assert read_config({**bloom, "quantization_config": stored}, "").weight_format == kind
    cache_only = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    assert (read := read_config(bloom, "", cache_only)).weight_format == "bf16"
    assert read.kv_format == "fp8"
    for stored in (
        {"quant_method": "bitsandbytes"},
        {"quant_method": "higgs"},
        {"quant_method": "modelopt", "quant_algo": "W3A16"},
        {"quant_method": "gptq", "bits": 7},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 7}}},
        },
    ):
        with pytest.raises(UsageError, match=r"bitsandbytes|higgs|W3A16|gptq|compressed-tensors"):
            read_config({**bloom, "quantization_config": stored}, "")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba", "state_size": 16}, "Mamba layers"),
        ({"model_type": "longcat_flash", "num_layers": 28}, "experts that do nothing"),
        ({"model_type": "gemma3n_text", "hidden_size_per_layer_input": 256}, "every layer"),
        ({"model_type": "x", "per_layer_config": {"02": {"head_dim": 512}}}, "different heads"),
        (
            {
                "model_type": "granitemoehybrid",
                **PUBLISHED["granitemoehybrid"][0],
                "layer_types": 40 * ["mamba"],
            },
            "all lack attention",
        ),
        ({"model_type": "openelm", "num_attention_heads": [12, 16]}, "different sizes"),
        ({"model_type": "arctic", "parallel_attn_mlp_res": True}, "experts beside a dense MLP"),
        ({"model_type": "qwen", "intermediate_size": 22016}, "half as wide"),
        ({"model_type": "step3_text", "share_q_dim": 2048}, "factorized queries"),
        ({"thinker_config": {"text_config": {"hidden_size": 2048}}}, "also speak"),
    ],
)
def test_what_cannot_be_planned_is_named(config, reason):
    with pytest.raises(UsageError, match=reason):
        read_config(config, "it")


def test_defaults_of_all_families_of_transformers():
    """Those that are read have the parameters of the class, within 5 % of the text decoder."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    wrong, read = {}, 0
    for family, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        try:
            defaults = transformers.CONFIG_MAPPING[family]()
            cls = getattr(transformers, names if isinstance(names, str) else names[0])
            ours = read_config({**defaults.to_dict(), "architectures": [cls.__name__]}, family)
            read += 1
            with torch.device("meta"):
                real = cls(defaults)
        except ForetuneError:
            continue
        except Exception:  # the class does not work with its own defaults
            continue
        if not ours.images and "vision" not in str(defaults.to_dict().keys()):
            count = sum(p.numel() for p in real.parameters())
            if ours.parameters() != pytest.approx(count, rel=0.05):
                wrong[family] = ours.parameters() / count
    assert not wrong
    assert read >= 135


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "molmo"}, "half as wide"),
        ({"model_type": "cogvlm"}, "experts for images"),
        ({"model_type": "llada"}, "diffusion of text"),
        ({"model_type": "phi4mm", "vision_lora": {"r": 256}}, "adapters"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "embeddings of another width"),
        ({"model_type": "openelm", "num_query_heads": [4, 8]}, "different heads"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "drafts tokens for another model"),
    ],
)
def test_read_config_what_is_not_planned_is_named(fields, words):
    with pytest.raises(UsageError, match=words):
        read_config({**LLAMA, **fields}, "it")


def test_read_config_chatglm_reads_no_images():
    config = {
        **LLAMA,
        "model_type": "chatglm",
        "architectures": ["ChatGLMForConditionalGeneration"],
    }
    assert not read_config(config, "it").images
