"""Names of copies: quantized, published again, or spelled by others."""

import pytest

from foretune.errors import UsageError
from foretune.plan.describe.model_catalog import describe_model


def test_describe_model_another_spelling_of_a_checkpoint_is_no_guess():
    published = describe_model("meta-llama/Llama-3.1-405B-Instruct-FP8")
    spelled = describe_model("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8")
    assert not spelled.format_guessed
    assert (spelled.weight_format, spelled.moe_format, spelled.kv_format) == (
        published.weight_format,
        published.moe_format,
        published.kv_format,
    )


def test_describe_model_another_publisher_s_copy_is_a_guess():
    assert describe_model("acme/Meta-Llama-3.1-405B-Instruct-FP8").format_guessed


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("acme/Qwen3-8B-int4-sym-inc", "int4_wo"),
        ("acme/Qwen3-8B-NVFP4-v2", "nvfp4"),
        ("acme/Qwen3-8B-abliterated-v2", "bf16"),
        ("google/gemma-3-27b-it-qat-q4_0-unquantized", "bf16"),
        ("acme/Qwen3-8B-w4a16-g32", "int4_wo_g32"),
        ("amd/Qwen3-8B-w-mxfp4-a-mxfp4-kv-fp8", "w4a4_mxfp4"),
        ("Qwen/Qwen3-8B/", "bf16"),
    ],
)
def test_describe_model_of_a_copy_has_its_format(name, weights):
    assert describe_model(name).weight_format == weights


def test_unknown_name_of_a_model_for_images_is_not_corrected_to_another():
    pytest.importorskip("aiconfigurator_core")
    with pytest.raises(UsageError) as refusal:
        describe_model("OpenGVLab/InternVL3-8B")
    assert "did you mean" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acme/Qwen3-8B-Q4_K_M", "checkpoints in GGUF"),
        ("qwen3:8b-q8_0", "checkpoints in GGUF"),
        ("acme/Qwen3-8B-IQ3_XXS", "checkpoints in GGUF"),
        ("mistralai/Devstral-Small-2507_gguf", "checkpoints in GGUF"),
        ("acme/Qwen3-8B-NVFP4-FP8", "checkpoints in fp8 and nvfp4"),
        ("acme/Qwen3-Embedding-8B", "embeddings instead of text"),
        ("acme/Qwen3-Reranker-4B", "scores instead of text"),
        ("tencent/Hy4-preview", "with several residual streams"),
        ("inclusionAI/Ling-2.6-flash", "layers of linear attention"),
    ],
)
def test_describe_model_refuses_a_name_for_what_is_not_planned(name, words):
    with pytest.raises(UsageError, match="cannot be planned yet") as refusal:
        describe_model(name)
    assert words in str(refusal.value)
