"""Models by their names: `plan/describe/model_catalog.py`."""

from dataclasses import replace

import pytest

from foretune.errors import MissingExtra, UnknownName, UsageError
from foretune.plan.describe import model_catalog
from foretune.plan.describe.model_catalog import describe_model, known_models


def test_shipped_table_kinds_of_states():
    kinds = {
        "ibm-granite/granite-4.0-h-small": "mamba2",
        "LiquidAI/LFM2-1.2B": "convolution",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kda",
        "Qwen/Qwen3-Next-80B-A3B-Instruct": "gdn",
    }
    assert {name: describe_model(name).linear.kind for name in kinds} == kinds


def test_describe_model_relative_has_the_architecture():
    relative = describe_model("Qwen/QwQ-32B")
    origin = describe_model("Qwen/Qwen2.5-32B")
    assert relative == replace(origin, name="Qwen/QwQ-32B", longest=0)
    assert describe_model("Qwen/Qwen2.5-VL-72B-Instruct").images
    assert describe_model("acme/QwQ-32B-AWQ").weight_format == "int4_wo"


def test_shipped_table_equals_what_configurations_say():
    pytest.importorskip("aiconfigurator_core")
    shipped = model_catalog._shipped()
    configs = model_catalog._configs()
    in_both = sorted(shipped.keys() & configs.keys())
    assert len(in_both) >= 20
    for name in in_both:
        read = model_catalog._read(configs[name], name)
        # The package's copy may lack the encoder.
        if not read.encoder_weights:
            read = replace(read, encoder_weights=shipped[name].encoder_weights)
        assert shipped[name] == read, name


def test_configs_of_the_package_are_read_or_refused_with_a_reason():
    pytest.importorskip("aiconfigurator_core")
    parameters = []
    reasons = []
    for name, path in model_catalog._configs().items():
        try:
            parameters.append(model_catalog._read(path, name).parameters())
        except UsageError as e:
            reasons.append(str(e))

    assert len(parameters) >= 50
    assert min(parameters) > 5e8
    assert len(reasons) <= 2
    for reason in reasons:
        assert "cannot be planned yet" in reason or "are missing in this" in reason


def test_describe_model_name_in_other_letters():
    base = describe_model("meta-llama/Meta-Llama-3.1-8B")
    assert describe_model("META-llama/meta-llama-3.1-8b") == base


def test_describe_model_variant_has_the_architecture_of_its_base():
    base = describe_model("meta-llama/Meta-Llama-3.1-8B")
    name = "meta-llama/Llama-3.1-8B-Instruct"
    assert describe_model(name) == replace(base, name=name)


def test_describe_model_other_publisher_of_the_same_model():
    assert describe_model("zhipuai/GLM-5").mla == describe_model("zai-org/GLM-5").mla
    assert describe_model("unsloth/Llama-3.1-8B").name == "unsloth/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("name", "weights", "experts"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "fp8"),
        ("Qwen/Qwen3-32B-FP8", "fp8_block", "fp8_block"),
        ("nvidia/DeepSeek-R1-NVFP4", "bf16", "nvfp4"),
    ],
)
def test_describe_model_format_in_the_name(name, weights, experts):
    described = describe_model(name)
    assert (described.weight_format, described.moe_format) == (weights, experts)


@pytest.mark.parametrize(
    ("name", "first_release"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct"),
        ("mistralai/Mistral-Small-24B-2501", "mistralai/Mistral-Small-24B-Instruct-2501"),
    ],
)
def test_describe_model_later_release_has_the_architecture(name, first_release):
    first = describe_model(first_release)
    # A later release may read longer prompts; 2501 is the same one.
    longest = first.longest if name.endswith("2501") else 0
    assert describe_model(name) == replace(first, name=name, longest=longest)


def test_describe_model_release_with_another_format():
    assert describe_model("moonshotai/Kimi-K2-Thinking").moe_format == "int4_wo_g32"


def test_describe_model_name_without_format_is_not_a_quantized_copy():
    pytest.importorskip("aiconfigurator_core")
    quantized = describe_model("nvidia/Gemma-4-31B-IT-NVFP4")
    assert quantized.weight_format == "bf16"
    assert quantized.moe_format == "nvfp4"
    assert quantized.kv_format == "fp8"

    original = describe_model("google/gemma-4-31B-it")
    assert original == replace(
        quantized, name="google/gemma-4-31B-it", moe_format="bf16", kv_format="bf16"
    )
    assert describe_model("deepseek-ai/DeepSeek-V3.1").moe_format == "fp8_block"


def test_describe_model_unknown_name_may_be_a_folder():
    pytest.importorskip("aiconfigurator_core")
    with pytest.raises(UnknownName, match=r"'zzz'.*; or give a folder with its config\.json"):
        describe_model("zzz")


def test_describe_model_misspelled_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match=r"did you mean 'Qwen/Qwen3-32B'"):
        describe_model("Qwen/Qwne3-32B")


@pytest.fixture
def without_package(monkeypatch):
    """The package of configurations is not installed."""
    monkeypatch.setattr(model_catalog, "_package", lambda: None)
    monkeypatch.setattr(model_catalog, "_configs", dict)


@pytest.mark.usefixtures("without_package")
def test_describe_model_without_package_suggests_shipped_names():
    assert "Qwen/Qwen3-32B" in known_models()
    with pytest.raises(UnknownName, match="did you mean"):
        describe_model("Qwen/Qwne3-32B")


@pytest.mark.usefixtures("without_package")
def test_describe_model_without_package_unknown_name_asks_for_it():
    with pytest.raises(MissingExtra, match=r"\.\[llm\]"):
        describe_model("acme/entirely-different")
