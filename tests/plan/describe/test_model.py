"""Descriptions of models: parameters, configurations, names."""

import json
from dataclasses import replace

import pytest

from foretune.errors import MissingExtra, ProblemError, UnknownName, UsageError
from foretune.plan import ModelDescription, describe_model
from foretune.plan.describe import model_catalog as model
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.model_catalog import known_models

PUBLISHED = {  # billions: total, and those a token is multiplied with
    "meta-llama/Meta-Llama-3.1-8B": (8.03, None),
    "meta-llama/Meta-Llama-3.1-70B": (70.55, None),
    "meta-llama/Meta-Llama-3.1-405B": (405.85, None),
    "Qwen/Qwen3-32B": (32.8, None),
    "Qwen/Qwen3-235B-A22B": (235, None),
    "Qwen/Qwen3.5-397B-A17B": (397, None),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, None),
    "deepseek-ai/DeepSeek-V3": (671, 36.6),
    "openai/gpt-oss-120b": (116.83, 5.13),
    "openai/gpt-oss-20b": (20.91, 3.61),
    "moonshotai/Kimi-K2-Instruct": (1026, None),
    "zai-org/GLM-5": (744, None),
    "MiniMaxAI/MiniMax-M2.5": (229, None),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400, None),
    "google/gemma-3-27b-it": (27.0, None),
}
TABLE = {  # billions, as on model cards; without encoders of images
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B": 1.54,
    "Qwen/Qwen2.5-3B": 3.09,
    "Qwen/Qwen2.5-14B": 14.77,
    "Qwen/Qwen2.5-32B": 32.76,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.7,
    "meta-llama/Meta-Llama-3-8B": 8.03,
    "meta-llama/Meta-Llama-3-70B": 70.55,
    "meta-llama/Llama-2-13b-hf": 13.02,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1,
    "01-ai/Yi-34B": 34.39,
    "deepseek-ai/deepseek-llm-67b-base": 67.4,
    "deepseek-ai/deepseek-coder-33b-base": 33.3,
    "ByteDance-Seed/Seed-Coder-8B-Base": 8.25,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36.15,
    "HuggingFaceTB/SmolLM3-3B": 3.08,
    "HuggingFaceTB/SmolLM2-1.7B": 1.71,
    "ibm-granite/granite-3.3-8b-instruct": 8.17,
    "ibm-granite/granite-3.3-2b-instruct": 2.53,
    "mistralai/Mistral-7B-v0.1": 7.24,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24,
    "mistralai/Mistral-Nemo-Instruct-2407": 12.25,
    "mistralai/Mistral-Small-Instruct-2409": 22.25,
    "mistralai/Mistral-Large-Instruct-2411": 122.6,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 23.6,
    "mistralai/Ministral-3-14B-Instruct-2512": 13.5,
    "google/gemma-2-2b": 2.61,
    "google/gemma-2-9b": 9.24,
    "google/gemma-2-27b": 27.2,
    "google/gemma-3-1b-it": 1.0,
    "google/gemma-3-4b-it": 3.88,
    "google/gemma-3-12b-it": 11.77,
    "microsoft/Phi-3.5-mini-instruct": 3.82,
    "microsoft/Phi-3-medium-128k-instruct": 13.96,
    "microsoft/Phi-4-mini-instruct": 3.84,
    "microsoft/Phi-3.5-MoE-instruct": 41.9,
    "zai-org/glm-4-9b-chat": 9.4,
    "zai-org/GLM-4-32B-0414": 32.57,
    "zai-org/GLM-4.5": 352.8,
    "zai-org/GLM-4.6": 352.8,
    "zai-org/GLM-4.7": 352.8,
    "zai-org/GLM-4.5-Air": 106.8,
    "zai-org/GLM-4.5V": 106.8,
    "zai-org/GLM-4.6V": 106.8,
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "deepseek-ai/DeepSeek-V2": 235.7,
    "moonshotai/Moonlight-16B-A3B": 15.96,
    "CohereLabs/c4ai-command-r-v01": 35.0,
    "CohereLabs/c4ai-command-r-08-2024": 32.3,
    "CohereLabs/c4ai-command-r-plus": 103.8,
    "CohereLabs/c4ai-command-a-03-2025": 111.0,
    "CohereLabs/aya-expanse-8b": 8.03,
    "databricks/dbrx-instruct": 131.6,
    "baidu/ERNIE-4.5-21B-A3B-PT": 21.8,
    "baidu/ERNIE-4.5-300B-A47B-PT": 300,
    "tencent/Hunyuan-A13B-Instruct": 80.4,
    "inclusionAI/Ling-flash-2.0": 103,
    "inclusionAI/Ling-mini-2.0": 16.3,
    "upstage/Solar-Open-100B": 102.7,
    "rednote-hilab/dots.llm1.inst": 142.8,
    "arcee-ai/Trinity-Large-Preview": 400,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32.0,
    "LGAI-EXAONE/EXAONE-3.5-32B-Instruct": 32.0,
    "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct": 7.82,
    "allenai/OLMo-2-1124-7B": 7.3,
    "allenai/OLMo-2-1124-13B": 13.7,
    "allenai/OLMo-2-0325-32B": 32.2,
    "allenai/Olmo-3-7B-Instruct": 7.3,
    "allenai/Olmo-3-32B-Think": 32.2,
    "internlm/internlm2_5-7b-chat": 7.74,
    "internlm/internlm2_5-20b-chat": 19.86,
    "tiiuae/Falcon3-7B-Base": 7.46,
    "tiiuae/Falcon3-10B-Base": 10.3,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
    "openbmb/MiniCPM3-4B": 4.07,
    "01-ai/Yi-6B": 6.06,
    "01-ai/Yi-1.5-9B": 8.83,
    "allenai/OLMo-7B-hf": 6.89,
    "allenai/OLMoE-1B-7B-0924": 6.92,
    "bigcode/starcoder": 15.5,
    "bigcode/starcoder2-3b": 3.03,
    "bigcode/starcoder2-7b": 7.17,
    "bigcode/starcoder2-15b": 15.96,
    "bigscience/bloom": 176.2,
    "CohereLabs/c4ai-command-r7b-12-2024": 8.03,
    "EleutherAI/gpt-j-6b": 6.05,
    "EleutherAI/gpt-neox-20b": 20.55,
    "EleutherAI/pythia-6.9b": 6.86,
    "EleutherAI/pythia-12b": 11.85,
    "google/gemma-2b": 2.51,
    "google/gemma-3-270m": 0.268,
    "google/gemma-7b": 8.54,
    "ibm-granite/granite-4.0-h-small": 32.2,
    "ibm-granite/granite-4.0-h-tiny": 6.94,
    "inclusionAI/Ling-1T": 1000,
    "internlm/internlm3-8b-instruct": 8.8,
    "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct": 2.41,
    "LGAI-EXAONE/EXAONE-4.0-1.2B": 1.28,
    "LGAI-EXAONE/K-EXAONE-236B-A23B": 236,
    "LiquidAI/LFM2-1.2B": 1.17,
    "LiquidAI/LFM2-8B-A1B": 8.34,
    "meta-llama/CodeLlama-34b-hf": 33.74,
    "microsoft/phi-1_5": 1.42,
    "microsoft/phi-2": 2.78,
    "microsoft/Phi-3-mini-4k-instruct": 3.82,
    "mistralai/Ministral-3-3B-Instruct-2512": 3.4,
    "mistralai/Ministral-8B-Instruct-2410": 8.02,
    "mistralai/Mistral-Large-3-675B-Instruct-2512": 673,
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": 49.1,
    "mosaicml/mpt-30b": 29.96,
    "nvidia/Nemotron-4-340B-Instruct": 341,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8.89,
    "openbmb/MiniCPM-2B-sft-bf16": 2.72,
    "Qwen/Qwen1.5-14B": 14.17,
    "Qwen/Qwen1.5-110B": 111.2,
    "Qwen/Qwen1.5-MoE-A2.7B": 14.3,
    "Qwen/Qwen2-57B-A14B": 57.4,
    "stabilityai/stablelm-2-12b": 12.1,
    "swiss-ai/Apertus-70B-2509": 70.6,
    "tencent/Hunyuan-7B-Instruct": 7.5,
    "tiiuae/falcon-7b": 6.92,
    "tiiuae/falcon-40b": 41.3,
    "upstage/SOLAR-10.7B-v1.0": 10.73,
    "zai-org/chatglm3-6b": 6.24,
    "zai-org/GLM-4-9B-0414": 9.4,
    "zai-org/GLM-4.7-Flash": 30,
}
MIXED = {  # what their names, or model cards, say
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.6, 3.2),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (120.6, 12.2),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (550, 55),
    "nvidia/Nemotron-H-56B-Base-8K": (56, None),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": (49.9, None),
    "google/gemma-4-26B-A4B": (25.2, 3.8),
    "nvidia/Gemma-4-31B-IT-NVFP4": (30.7, None),
    "moonshotai/Kimi-K3": (2800, None),
    "MiniMaxAI/MiniMax-M3": (428, None),
    "XiaomiMiMo/MiMo-V2-Flash": (309, 15),
    "deepseek-ai/DeepSeek-V4-Flash": (284, 13.2),
    "deepseek-ai/DeepSeek-V4-Pro": (1573, 49),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    total, active = PUBLISHED[name]
    described = describe_model(name)
    assert described.parameters() / 1e9 == pytest.approx(total, rel=0.01)
    if active:
        assert described.active_parameters() / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", TABLE)
def test_parameters_of_the_shipped_table_are_those_published(name):
    assert model._shipped()[name].parameters() / 1e9 == pytest.approx(TABLE[name], rel=0.01)


def test_shipped_states_have_the_kind_of_their_layers():
    kinds = {
        "ibm-granite/granite-4.0-h-small": "mamba2",
        "LiquidAI/LFM2-1.2B": "convolution",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kda",
        "Qwen/Qwen3-Next-80B-A3B-Instruct": "gdn",
    }
    assert {name: describe_model(name).linear.kind for name in kinds} == kinds


def test_shipped_relatives_have_the_architecture_of_their_model():
    relative = describe_model("Qwen/QwQ-32B")
    origin = describe_model("Qwen/Qwen2.5-32B")
    assert relative == replace(origin, name="Qwen/QwQ-32B", longest=0)
    assert describe_model("Qwen/Qwen2.5-VL-72B-Instruct").images
    assert describe_model("acme/QwQ-32B-AWQ").weight_format == "int4_wo"


@pytest.mark.parametrize("name", MIXED)
def test_parameters_of_models_whose_layers_differ(name):
    pytest.importorskip("aiconfigurator_core")
    total, active = MIXED[name]
    described = describe_model(name)
    assert described.parameters() / 1e9 == pytest.approx(total, rel=0.01)
    if active:
        assert described.active_parameters() / 1e9 == pytest.approx(active, rel=0.02)


def test_parameters_by_hand(small, sparse):
    # Per layer: 64·64 queries and output each, 2·64·32 keys and values, 3·64·128 MLP.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    assert small.parameters() == 2 * layer + 5 * 64 + 2 * 100 * 64 == 86_848
    assert small.active_parameters() == 86_848 - 100 * 64
    tied = replace(small, tied_embeddings=True)
    assert tied.parameters() == tied.active_parameters() == 86_848 - 100 * 64
    expert = 3 * 64 * 32
    # Four routed experts, a shared one and a router instead of the second MLP.
    assert sparse.parameters() == 86_848 - 3 * 64 * 128 + 5 * expert + 64 * 4
    assert sparse.active_parameters() == sparse.parameters() - 2 * expert - 100 * 64


def test_the_shipped_table_is_what_configurations_say():
    pytest.importorskip("aiconfigurator_core")
    shipped = model._shipped()
    both = sorted(set(shipped) & set(model._configs()))
    assert len(both) >= 20
    for name in both:
        read = model._read(model._configs()[name], name)
        if not read.encoder_weights:  # the package's copy may lack the encoder
            read = replace(read, encoder_weights=shipped[name].encoder_weights)
        assert shipped[name] == read, name


def test_every_configuration_of_the_package_is_read_or_refused_with_a_reason():
    pytest.importorskip("aiconfigurator_core")
    read, refused = [], []
    for name, path in model._configs().items():
        try:
            read.append(model._read(path, name).parameters())
        except UsageError as e:
            refused.append(str(e))
    assert len(read) >= 50
    assert min(read) > 5e8
    assert len(refused) <= 2
    assert all("cannot be planned yet" in r or "are missing in this" in r for r in refused)


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


def test_layers_with_a_window_have_heads_of_their_own():
    other = {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16}
    read = read_config(STEP | {"attention_other_setting": other}, "step")
    assert [(n, w, h.heads) for n, w, h in read.softmax_groups()] == [(1, 0, 4), (3, 8, 6)]
    assert (read.kv_heads, read.moe_layers, read.shared_width) == (2, 2, 48)
    drafting = {"layer_types": STEP["layer_types"] + 2 * ["sliding_attention"]}
    assert read_config(STEP | drafting | {"attention_other_setting": other}, "step") == read
    with pytest.raises(UsageError, match="attention_other_setting"):
        read_config(STEP, "step")


def test_layers_of_deci_are_as_wide_as_it_says():
    def layer(multiple, attention=True):
        return {
            "attention": {"no_op": not attention, "n_heads_in_group": 2 if attention else None},
            "ffn": {"no_op": False, "ffn_mult": multiple},
        }

    config = {
        "num_hidden_layers": 3,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "vocab_size": 10,
        "block_configs": [layer(5.25), layer(1.3125, attention=False), layer(5.25)],
    }
    read = read_config(config, "deci")
    assert read.mlp_widths == ((7168, 1), (28672, 2))
    assert (read.softmax_layers, read.mlp_layers, read.kv_heads) == (2, 3, 32)
    odd = layer(1.0) | {"attention": {"no_op": False, "n_heads_in_group": 4}}
    with pytest.raises(UsageError, match="layers with different heads"):
        read_config(config | {"block_configs": [layer(1.0), odd]}, "deci")


CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "tie_word_embeddings": True,
}


def test_a_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    described = describe_model(str(tmp_path))
    assert described == ModelDescription(
        str(tmp_path),
        4,
        64,
        4,
        2,
        32,
        1000,
        256,
        experts=8,
        experts_per_token=2,
        moe_intermediate=96,
        tied_embeddings=True,
    )
    assert describe_model(str(tmp_path / "config.json")) == described
    quantization = {
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["model.layers.*.self_attn*"],
        }
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    stored = describe_model(str(tmp_path))
    assert (stored.weight_format, stored.moe_format, stored.kv_format) == ("bf16", "nvfp4", "fp8")


@pytest.mark.parametrize(
    "missing",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "num_experts_per_tok",
    ],
)
def test_a_missing_field_is_named(tmp_path, missing):
    config = {k: v for k, v in CONFIG.items() if k not in (missing, "model_type")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=missing) as error:
        describe_model(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_path_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    described = describe_model(str(tmp_path))
    assert describe_model("config.json") == described, "its name is the folder's, for commands"
    assert describe_model(".") == described
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    assert describe_model("mine.json") == replace(described, name="mine")
    (tmp_path / "bad.json").write_text("[1")
    with pytest.raises(UsageError, match=r"bad.json is not JSON"):
        describe_model("bad.json")


def test_what_is_no_configuration(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        describe_model(str(tmp_path / "absent" / "config.json"))
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(UsageError, match="is not JSON"):
        describe_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="it is not a JSON object"):
        describe_model(str(tmp_path))
    with pytest.raises(UsageError, match="layers of kind 'X'"):
        read_config(CONFIG | {"mamba_num_heads": 4, "hybrid_override_pattern": "MX"}, "hybrid")
    with pytest.raises(UsageError, match=r"mamba_num_heads in .* is not complete"):
        read_config(CONFIG | {"mamba_num_heads": 4, "hybrid_override_pattern": "M*E"}, "hybrid")
    state = {
        "mamba_num_heads": 4,
        "hybrid_override_pattern": "M*E",
        "n_groups": "2",
        "ssm_state_size": 16,
        "mamba_head_dim": 8,
        "conv_kernel": 4,
    }
    with pytest.raises(UsageError, match=r"mamba_num_heads in .*key_heads is '2'"):
        read_config(CONFIG | state, "hybrid")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("README.md", "", "no config.json: download it"),
        ("adapter_config.json", "{}", "an adapter"),
        ("model_index.json", "{}", "diffusers"),
        ("model-Q4_K_M.gguf", "", "GGUF"),
        ("params.json", "{}", "publisher's own format"),
        ("snapshots/abc/config.json", "{}", "the folder below snapshots"),
        ("config.json", "version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("config.json", "Access to model acme/Novel is restricted.", "begins with 'Access to"),
        ("config.json", '{"peft_type": "LORA", "base_model_name_or_path": "acme/N"}', "acme/N"),
        ("config.json", '{"transformers_version": "5.0"}', "describes no model"),
    ],
)
def test_describe_model_says_what_a_folder_is(tmp_path, file, content, words):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        describe_model(str(tmp_path))


def test_describe_model_of_a_file_of_weights_asks_for_its_folder(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(UsageError, match="give its folder"):
        describe_model(str(weights))


def test_describe_model_of_an_engine_of_tensorrt_llm(tmp_path):
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    engine = {"pretrained_config": {**CONFIG, "quantization": quantization}, "build_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(engine))
    model = describe_model(str(tmp_path))
    assert (model.layers, model.weight_format, model.kv_format) == (4, "fp8", "fp8")


def test_describe_model_reads_utf_16(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-16")
    assert describe_model(str(tmp_path)).layers == 4


HYBRIDS = {
    "lfm3": {"layer_types": ["conv", "sliding_attention"], "conv_L_cache": 7},
    "jamba": {"attn_layer_period": 8, "mamba_d_state": 16},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 2560},
}


@pytest.mark.parametrize("family", HYBRIDS)
def test_layers_that_are_not_attention_are_refused_by_name(family):
    with pytest.raises(UsageError, match=r"layers|convolutions"):
        read_config(CONFIG | {"model_type": family} | HYBRIDS[family], family)


def test_a_family_s_class_supplies_what_its_file_leaves_out():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    }
    gemma = read_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": text,
        },
        "gemma-3-12b",
    )
    assert (gemma.vocab, gemma.head_dim, gemma.tied_embeddings) == (262_208, 256, True)
    assert (gemma.windowed_layers, gemma.sliding_window) == (40, 1024)
    own = read_config(
        {"model_type": "gemma3", "tie_word_embeddings": False, "text_config": text}, "own head"
    )
    assert not own.tied_embeddings  # the file's own value counts, also outside of its text part


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
def test_windows(fields, windowed, window):
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
def test_dense_layers(fields, dense):
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
def test_formats_of_checkpoints(stored, formats):
    described = read_config(CONFIG | {"quantization_config": stored}, "q")
    assert (described.weight_format, described.moe_format) == formats


def test_an_older_name_of_the_quantization():
    stored = {"compression_config": {"quant_method": "fp8"}}
    assert read_config(CONFIG | stored, "q").weight_format == "fp8"


def test_an_architecture_of_the_decoder_inside_another():
    inner = CONFIG | {"architectures": ["Qwen3MoeForCausalLM"]}
    outer = {"architectures": ["NovelModel"], "vision_config": {}}
    assert read_config({**outer, "llm_config": inner}, "it").images
    with pytest.raises(UsageError, match="NovelModel is not known to generate text"):
        read_config({**outer, "llm_config": CONFIG}, "it")


def test_names_of_variants():
    base = describe_model("meta-llama/Meta-Llama-3.1-8B")
    assert describe_model("META-llama/meta-llama-3.1-8b") == base
    assert describe_model("meta-llama/Llama-3.1-8B-Instruct") == replace(
        base, name="meta-llama/Llama-3.1-8B-Instruct"
    )
    stored = describe_model("nvidia/Llama-3.1-8B-Instruct-FP8")
    assert (stored.weight_format, stored.layers) == ("fp8", 32)
    assert describe_model("Qwen/Qwen3-32B-FP8").weight_format == "fp8_block"
    experts = describe_model("nvidia/DeepSeek-R1-NVFP4")
    assert (experts.weight_format, experts.moe_format) == ("bf16", "nvfp4")
    assert describe_model("zhipuai/GLM-5").mla == describe_model("zai-org/GLM-5").mla


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct"),
        ("mistralai/Mistral-Small-24B-2501", "mistralai/Mistral-Small-24B-Instruct-2501"),
    ],
)
def test_later_releases_have_the_architecture(name, of):
    first, later = describe_model(of), describe_model(name)
    longest = first.longest if name.endswith("2501") else 0  # later ones may read longer prompts
    assert later == replace(first, name=name, longest=longest)
    assert describe_model("moonshotai/Kimi-K2-Thinking").moe_format == "int4_wo_g32"


def test_a_name_without_a_format_is_not_that_of_a_quantized_copy():
    pytest.importorskip("aiconfigurator_core")
    quantized = describe_model("nvidia/Gemma-4-31B-IT-NVFP4")
    assert (quantized.weight_format, quantized.moe_format, quantized.kv_format) == (
        "bf16",
        "nvfp4",
        "fp8",
    )
    own = {"name": "google/gemma-4-31B-it", "moe_format": "bf16", "kv_format": "bf16"}
    assert describe_model("google/gemma-4-31B-it") == replace(quantized, **own)
    assert describe_model("deepseek-ai/DeepSeek-V3.1").moe_format == "fp8_block"


def test_another_publisher_stays():
    assert describe_model("unsloth/Llama-3.1-8B").name == "unsloth/Llama-3.1-8B"


def test_an_unknown_name_may_be_a_folder():
    pytest.importorskip("aiconfigurator_core")
    with pytest.raises(UnknownName, match=r"'zzz'.*; or give a folder with its config\.json"):
        describe_model("zzz")


def test_unknown_names(monkeypatch):
    with pytest.raises(UnknownName, match=r"did you mean 'Qwen/Qwen3-32B'"):
        describe_model("Qwen/Qwne3-32B")
    monkeypatch.setattr(model, "_package", lambda: None)
    monkeypatch.setattr(model, "_configs", dict)
    assert "Qwen/Qwen3-32B" in known_models()
    with pytest.raises(UnknownName, match="did you mean"):
        describe_model("Qwen/Qwne3-32B")
    with pytest.raises(MissingExtra, match=r"\.\[llm\]"):
        describe_model("acme/entirely-different")


@pytest.mark.parametrize(
    "change",
    [
        {"heads": 0},
        {"heads": 3},
        {"experts_per_token": 5},
        {"dense_layers": 3},
        {"windowed_layers": 3},
    ],
)
def test_sizes_that_contradict_each_other(sparse, change):
    with pytest.raises(ProblemError):
        replace(sparse, **change)
