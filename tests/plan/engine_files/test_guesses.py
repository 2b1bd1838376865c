"""Which files an engine looks for, and what is written where it lacks them."""

import json
import math

import pytest

from foretune.errors import OutputError, UsageError
from foretune.plan import Formats, Layout, describe_model
from foretune.plan.engine_files.folder import write_files
from foretune.plan.engine_files.guesses import (
    BLOCK_SHAPE,
    TOKEN_COUNTS,
    engine_files,
    tuned_file_layers,
)
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import PARAMETERS, TunedLayerIndex
from foretune.plan.engine_files.vllm import TunedLayer, read_layer, read_vllm
from foretune.space import Configuration

H200 = "NVIDIA H200"
CONFIG = Configuration(dict(zip(PARAMETERS, (16, 64, 128, 1, 4, 3), strict=True)))
BIG = "deepseek-ai/DeepSeek-V3"


def linear(n, k):
    return Layer(0, n, H200, "fp8_w8a8", BLOCK_SHAPE, k)


def layers(name, layout, formats, engine="vllm"):
    return tuned_file_layers(describe_model(name), layout, Formats(formats), H200, engine)


@pytest.fixture(scope="module")
def deepseek():
    return layers(BIG, Layout(8, moe_tp=8), "fp8_block")


def test_the_files_of_deepseek_v3(deepseek):
    """vLLM 0.33 brings files of exactly these names for eight H200s."""
    sizes = [(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048), (4608, 7168), (7168, 2304),
             (512, 7168), (7168, 256)]  # fmt: skip
    experts = Layer(256, 256, H200, "fp8_w8a8", BLOCK_SHAPE)
    assert set(deepseek) == {experts, *(linear(n, k) for n, k in sizes)}
    assert deepseek[experts] == ("experts",)


def test_experts_are_spread():
    assert list(layers(BIG, Layout(8, moe_ep=8), "bf16")) == [Layer(32, 2048, H200)]
    assert layers(BIG, Layout(8, moe_tp=8), "nvfp4") == {}
    assert layers("meta-llama/Llama-3.1-8B", Layout(1), "bf16") == {}


def test_sglang_may_add_the_shared_expert_and_counts_packed_bytes(deepseek):
    """SGLang 0.5 brings files for 257 experts, and Kimi-K2's at int4 for half of the width."""
    sglang = layers(BIG, Layout(8, moe_tp=8), "fp8_block", "sglang")
    assert set(sglang) - set(deepseek) == {Layer(257, 256, H200, "fp8_w8a8", BLOCK_SHAPE)}
    packed = layers("moonshotai/Kimi-K2-Instruct", Layout(8, moe_tp=8), "int4_wo", "sglang")
    assert Layer(384, 128, H200, "int4_w4a16") in packed


def test_an_impossible_layout_is_refused():
    with pytest.raises(UsageError, match="cannot be served on tp7 moe_tp7: "):
        layers(BIG, Layout(7, moe_tp=7), "bf16")


def test_what_is_there_is_left_alone_and_the_rest_guessed(tmp_path, deepseek):
    known = linear(2112, 7168)
    (tmp_path / known.file_name_for("vllm")).write_text(json.dumps({"16": dict(CONFIG)}))
    own = TunedLayerIndex.read([tmp_path])
    files = engine_files(deepseek, own, own)
    status = {file.layer: file.status for file in files}
    assert status.pop(known) == "there"
    assert status.pop(Layer(256, 256, H200, "fp8_w8a8", BLOCK_SHAPE)) == "nothing similar"
    assert set(status.values()) == {"guessed"}
    for file in files:
        assert set(file.guesses) == (set(TOKEN_COUNTS) if file.status == "guessed" else set())
        assert math.isnan(file.agreement) == (file.status != "guessed")


@pytest.fixture
def guessed():
    experts, small = Layer(8, 512, H200), linear(512, 1024)
    known = TunedLayerIndex([TunedLayer(layer, {16: CONFIG}) for layer in (experts, small)])
    wanted = {Layer(8, 640, H200): ("experts",), linear(512, 2048): ("qkv", "mlp_up")}
    return engine_files(wanted, TunedLayerIndex([]), known)


def test_vllm_reads_what_is_written(tmp_path, guessed):
    experts, small = write_files(tmp_path, guessed, "vllm")
    assert experts.parent == tmp_path
    assert read_vllm(experts).configs == dict.fromkeys(TOKEN_COUNTS, CONFIG)
    assert small.parent == tmp_path / "linear"
    assert read_layer(Layer.from_file(small), small).layer == linear(512, 2048)
    card = json.loads((tmp_path / "foretune.json").read_text())
    about = card["files"][f"linear/{small.name}"]
    assert (about["measured"], about["parts"]) == (False, ["qkv", "mlp_up"])


@pytest.mark.parametrize("triton", ["", "x/../../y", "3.5.1+git"])
def test_sglang_keeps_experts_by_version_of_triton(tmp_path, guessed, triton):
    with pytest.raises(UsageError, match="add --triton"):
        write_files(tmp_path, guessed, "sglang", triton)
    assert list(tmp_path.iterdir()) == []
    experts, _ = write_files(tmp_path, guessed, "sglang", "3.5.1")
    assert experts.parent == tmp_path / "configs" / "triton_3_5_1"


def test_what_was_measured_is_never_replaced(tmp_path, guessed):
    measured = tmp_path / Layer(8, 640, H200).file_name_for("vllm")
    measured.write_text("measured")
    with pytest.raises(OutputError, match="was not written by Foretune"):
        write_files(tmp_path, guessed, "vllm")
    assert [p.name for p in tmp_path.iterdir()] == [measured.name]
    assert measured.read_text() == "measured"


def test_guesses_are_replaced_and_the_card_knows_all(tmp_path, guessed):
    first = write_files(tmp_path, guessed[:1], "vllm")
    both = write_files(tmp_path, guessed, "vllm")
    write_files(tmp_path, guessed[1:], "vllm")
    assert first.keys() < both.keys()
    card = json.loads((tmp_path / "foretune.json").read_text())
    assert {tmp_path / name for name in card["files"]} == set(both)
    (tmp_path / "foretune.json").write_text("[]")
    with pytest.raises(OutputError, match="not a card of tuned files"):
        write_files(tmp_path, guessed, "vllm")
