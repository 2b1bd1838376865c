"""Names of checkpoints: the model, its sizes and its format; folders and addresses."""

import json

import pytest

from foretune.errors import UnknownName, UsageError
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.names import (
    format_in_name,
    parse_name,
    relatives,
    repository_of,
    similar_names,
)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("acme/Novel-8B", ""),
        ("acme/Novel-8B-FP8", "fp8"),
        ("acme/Novel-8B-FP8-dynamic", "fp8"),
        ("acme/Novel-8B-FP8-Block", "fp8_block"),
        ("Qwen/Novel-8B-FP8", "fp8_block"),
        ("Qwen/Novel-8B-FP8-Static-PerTensor", "fp8"),
        ("acme/Novel-8B-quantized.w4a16", "int4_wo"),
        ("acme/Novel-8B-quantized.w8a8", "int8"),
        ("acme/Novel-8B-quantized.w8a16", "int8_wo"),
        ("acme/Novel-8B-W4A16-G64", "int4_wo_g64"),
        ("acme/Novel-8B-W4A8", "w4a8_int8"),
        ("acme/Novel-8B-W4AFP8", "w4afp8"),
        ("acme/Novel-8B-AWQ", "int4_wo"),
        ("acme/Novel-8B-AWQ-4bit", "int4_wo"),
        ("acme/Novel-8B-AWQ-8bit", "int8_wo"),
        ("acme/Novel-8B-GPTQ-Int8", "int8_wo"),
        ("acme/Novel-8B-GPTQ-4bit-32g", "int4_wo_g32"),
        ("acme/Novel-8B-int4-AutoRound", "int4_wo"),
        ("acme/Novel-8B-NVFP4", "nvfp4"),
        ("acme/Novel-8B-NVFP4A16", "nvfp4_wo"),
        ("acme/Novel-8B-MXFP8", "mxfp8"),
        ("openly/Novel-8B-MXFP4", "mxfp4"),
        ("amd/Novel-8B-MXFP4", "w4a4_mxfp4"),
        ("amd/Novel-8B-w-mxfp4-a-fp8", "w4a8_mxfp4_fp8"),
        ("acme/Novel-8B-bnb-4bit", "nf4"),
        ("acme/Novel-8B-unsloth-bnb-4bit", "nf4"),
        ("mlx-community/Novel-8B-4bit", "int4_wo_g64b"),
        ("mlx-community/Novel-8B-6bit", "int6_wo_g64b"),
        ("acme/Novel_8B_FP8", "fp8"),
    ],
)
def test_format_in_name(name, weights):
    assert format_in_name(name) == weights
    assert parse_name(name).architecture == "novel-8b"


def test_parse_name_words_of_training_and_dates_are_not_the_architecture():
    parts = parse_name("acme/Novel-3.1-8x7B-A22B-Instruct-2507-FP8-KV")
    assert parts.architecture == "novel-3.1-8x7b-a22b"
    assert parts.sizes == {"8x7b", "a22b"}
    assert parts.releases == {"2507"}
    assert (parts.weights, parts.cache) == ("fp8", "fp8")


def test_parse_name_words_may_have_spaces_between_them():
    assert parse_name("Novel 3.1 8B") == parse_name("acme/Novel-3.1-8B")


def test_similar_names_never_change_the_size():
    known = ["acme/Novel-70B", "acme/Novel-405B", "acme/Novel-Mini-405B"]
    assert similar_names("acme/Novle-405B-Instruct", known) == ["acme/Novel-405B"]
    assert similar_names("acme/Novle-4B", known) == []
    assert similar_names("novel:405b", known) == ["acme/Novel-405B"]  # as in Ollama


def test_similar_names_never_change_the_release():
    assert similar_names("acme/Novel-4-8B", ["acme/Novel-3-8B", "acme/Novel-8B"]) == []


def test_relatives_have_other_sizes_or_releases_the_same_size_first():
    known = ["acme/Novel-3-405B", "acme/Novel-3.5-8B", "acme/Other-3-8B"]
    assert relatives("acme/Novel-4-8B-Instruct", known) == [
        "acme/Novel-3.5-8B",
        "acme/Novel-3-405B",
    ]


def test_describe_model_names_what_is_not_planned_of_a_known_family():
    with pytest.raises(UsageError, match="Mamba layers cannot be planned yet"):
        describe_model("ai21labs/AI21-Jamba-1.5-Mini")


def test_describe_model_unknown_size_suggests_none():
    pytest.importorskip("aiconfigurator_core")
    with pytest.raises(UnknownName) as refusal:
        describe_model("meta-llama/Llama-3.1-406B-Instruct")
    assert "did you mean" not in str(refusal.value)
    assert "in other sizes or releases" in str(refusal.value)
    assert "meta-llama/Meta-Llama-3.1-405B" in str(refusal.value)


def test_describe_model_format_in_a_name_is_a_guess():
    guessed = describe_model("acme/Qwen3-32B-quantized.w4a16")
    assert (guessed.weight_format, guessed.format_guessed) == ("int4_wo", True)
    assert describe_model("amd/Qwen3-32B-FP8-KV").kv_format == "fp8"
    assert not describe_model("acme/Qwen3-32B").format_guessed
    with pytest.raises(UsageError, match="checkpoints in GGUF cannot be planned"):
        describe_model("acme/Qwen3-32B-GGUF")
    with pytest.raises(UsageError, match="GGUF files cannot be planned"):
        describe_model("./novel-q4.gguf")


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/Qwen/Qwen3-32B",
        "https://huggingface.co/Qwen/Qwen3-32B/blob/main/config.json",
        "huggingface.co/Qwen/Qwen3-32B",
        "hf.co/Qwen/Qwen3-32B/tree/main",
        "hf://Qwen/Qwen3-32B",
        "https://modelscope.cn/models/Qwen/Qwen3-32B",
    ],
)
def test_describe_model_of_an_address_has_the_repository_s_name(address):
    assert repository_of(address) == "Qwen/Qwen3-32B"
    assert describe_model(address) == describe_model("Qwen/Qwen3-32B")


@pytest.mark.parametrize("address", ["https://example.org/a/b", "https://huggingface.co/Qwen"])
def test_repository_of_other_addresses_is_refused(address):
    with pytest.raises(UsageError, match="no address of a model on Hugging Face"):
        repository_of(address)


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 128,
}


@pytest.fixture
def cached_model(tmp_path, monkeypatch):
    """Return a model's folder in an own cache, with two revisions."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--acme--Novel-8B"
    for revision, layers in (("aaa", 2), ("bbb", 3)):
        snapshot = folder / "snapshots" / revision
        snapshot.mkdir(parents=True)
        config = {**SIZES, "num_hidden_layers": layers}
        (snapshot / "config.json").write_text(json.dumps(config))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("aaa")
    return folder


def test_describe_model_of_a_cache_folder_has_the_repository_s_name(cached_model):
    model = describe_model(str(cached_model))
    assert (model.name, model.layers) == ("acme/Novel-8B", 2)
    assert describe_model("acme/Novel-8B") == model  # found without the folder


def test_describe_model_of_a_cache_folder_without_a_file_is_refused(cached_model):
    for config in cached_model.glob("snapshots/*/config.json"):
        config.unlink()
    with pytest.raises(UsageError, match=r"no snapshot with a config\.json"):
        describe_model(str(cached_model))
