"""Models in folders and files: `describe_model` of a path."""

import json
from dataclasses import replace

import pytest
from model_configs import CONFIG

from foretune.errors import UsageError
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.model_catalog import describe_model


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_describe_model_of_a_folder(folder):
    described = describe_model(str(folder))
    assert described == ModelDescription(
        str(folder),
        layers=4,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=32,
        vocab=1000,
        intermediate=256,
        experts=8,
        experts_per_token=2,
        moe_intermediate=96,
        tied_embeddings=True,
    )
    assert describe_model(str(folder / "config.json")) == described


def test_describe_model_file_of_a_quantizer_says_the_formats(folder):
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["model.layers.*.self_attn*"],
    }
    file = folder / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": quantization}))

    described = describe_model(str(folder))
    assert described.weight_format == "bf16"
    assert described.moe_format == "nvfp4"
    assert described.kv_format == "fp8"


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
def test_describe_model_missing_field_is_named(tmp_path, missing):
    config = {k: v for k, v in CONFIG.items() if k not in (missing, "model_type")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=missing) as error:
        describe_model(str(tmp_path))
    assert "\n" not in str(error.value)


def test_describe_model_in_the_current_folder_is_named_as_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    described = describe_model(str(folder))
    assert describe_model("config.json") == described
    assert describe_model(".") == described


def test_describe_model_of_another_file_is_named_as_the_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    described = describe_model(".")
    (folder / "mine.json").write_text(json.dumps(CONFIG))
    assert describe_model("mine.json") == replace(described, name="mine")


def test_describe_model_of_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        describe_model(str(tmp_path / "absent" / "config.json"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [("[1", "config.json is not JSON"), ("[1]", "it is not a JSON object")],
)
def test_describe_model_damaged_file_is_refused(tmp_path, content, reason):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=reason):
        describe_model(str(tmp_path))


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
def test_describe_model_other_folder_is_refused_with_what_it_is(tmp_path, file, content, words):
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


def test_describe_model_damaged_file_of_another_name_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("[1")
    with pytest.raises(UsageError, match=r"bad\.json is not JSON"):
        describe_model("bad.json")
