"""Which files an engine looks for, and what is written where it lacks them."""

import json
import math

import pytest

from foretune.errors import UsageError
from foretune.plan import Formats, Layout, describe_model
from foretune.plan.engine_files import BLOCK, TOKENS, engine_files, layers_of, write_files
from foretune.space import Configuration
from foretune.tune.exporting.layer import Layer
from foretune.tune.exporting.vllm import REQUIRED, TunedLayer, read_layer, read_vllm
from foretune.tune.exporting.winners import Winners

H200 = "NVIDIA H200"
CONFIG = Configuration(dict(zip(REQUIRED, (16, 64, 128, 1, 4, 3), strict=True)))
BIG = "deepseek-ai/DeepSeek-V3"


def product(n, k):
    return Layer(0, n, H200, "fp8_w8a8", BLOCK, k)


@pytest.fixture(scope="module")
def deepseek():
    return layers_of(describe_model(BIG), Layout(8, moe_tp=8), Formats("fp8_block"), H200)


def test_the_files_of_deepseek_v3(deepseek):
    """vLLM 0.33 and SGLang 0.5 bring files of exactly these names for eight H200s."""
    sizes = [(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048), (4608, 7168), (7168, 2304),
             (512, 7168), (7168, 256)]  # fmt: skip
    experts = Layer(256, 256, H200, "fp8_w8a8", BLOCK)
    assert set(deepseek) == {experts, *(product(n, k) for n, k in sizes)}
    assert deepseek[experts] == ("experts",)


def test_experts_are_spread():
    model = describe_model(BIG)
    layers = layers_of(model, Layout(8, moe_ep=8), Formats("bf16"), H200)
    assert list(layers) == [Layer(32, 2048, H200)]  # products in 16 bit have no tuned files
    assert layers_of(model, Layout(8, moe_tp=8), Formats("nvfp4"), H200) == {}


def test_an_impossible_layout_is_refused():
    with pytest.raises(UsageError, match="cannot be served"):
        layers_of(describe_model(BIG), Layout(7, moe_tp=7), Formats("bf16"), H200)


def test_what_is_there_is_left_alone_and_the_rest_guessed(tmp_path, deepseek):
    known = product(2112, 7168)
    (tmp_path / known.named("vllm")).write_text(json.dumps({"16": dict(CONFIG)}))
    files = engine_files(deepseek, Winners.read([tmp_path]), "vllm")
    status = {file.layer: file.status for file in files}
    assert status.pop(known) == "there"
    assert status.pop(Layer(256, 256, H200, "fp8_w8a8", BLOCK)) == "nothing similar"
    assert set(status.values()) == {"guessed"}
    for file in files:
        assert set(file.guesses) == (set(TOKENS) if file.status == "guessed" else set())
        assert math.isnan(file.agreement) == (file.status != "guessed")


@pytest.fixture
def guessed():
    experts, small = Layer(8, 512, H200), product(512, 1024)
    winners = Winners([TunedLayer(layer, {16: CONFIG}) for layer in (experts, small)])
    layers = {Layer(8, 640, H200): ("experts",), product(512, 2048): ("qkv", "mlp_up")}
    return lambda engine: engine_files(layers, winners, engine)


def test_vllm_reads_what_is_written(tmp_path, guessed):
    paths = write_files(tmp_path, guessed("vllm"), "vllm")
    experts, small = paths
    assert experts.parent == tmp_path
    assert read_vllm(experts).configs == dict.fromkeys(TOKENS, CONFIG)
    assert small.parent == tmp_path / "products"
    assert read_layer(Layer.of_file(small), small).layer == product(512, 2048)
    card = json.loads((tmp_path / "foretune.json").read_text())
    assert card["measured"] is False
    assert card["files"][f"products/{small.name}"]["parts"] == ["qkv", "mlp_up"]


def test_sglang_keeps_experts_by_version_of_triton(tmp_path, guessed):
    with pytest.raises(UsageError, match="give --triton"):
        write_files(tmp_path, guessed("sglang"), "sglang")
    experts, _ = write_files(tmp_path, guessed("sglang"), "sglang", "3.5.1")
    assert experts.parent == tmp_path / "configs" / "triton_3_5_1"
