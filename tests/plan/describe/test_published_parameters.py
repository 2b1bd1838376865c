"""Parameters of known models are those that their publishers state."""

import pytest

from foretune.plan.describe import model_catalog
from foretune.plan.describe.model_catalog import describe_model

PUBLISHED = {
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
"""Name -> parameters in billions: of the model, and those that a token is multiplied with."""
SHIPPED = {
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
"""Models in the shipped table -> billions as on model cards, without encoders of images."""
MIXED_LAYERS = {
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
"""Models whose layers differ -> billions in their names or on model cards."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name):
    total, active = PUBLISHED[name]
    described = describe_model(name)
    assert described.parameters() / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:
        assert described.active_parameters() / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", SHIPPED)
def test_parameters_of_the_shipped_table(name):
    described = model_catalog._shipped()[name]
    assert described.parameters() / 1e9 == pytest.approx(SHIPPED[name], rel=0.01)


@pytest.mark.parametrize("name", MIXED_LAYERS)
def test_parameters_of_models_whose_layers_differ(name):
    pytest.importorskip("aiconfigurator_core")
    total, active = MIXED_LAYERS[name]
    described = describe_model(name)
    assert described.parameters() / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:
        assert described.active_parameters() / 1e9 == pytest.approx(active, rel=0.02)
