"""Guesses are what similar layers agree on, and nobody else has a vote."""

import json

import pytest

from foretune.errors import UsageError
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import (
    MANIFEST_NAME,
    PARAMETERS,
    TunedLayerIndex,
)
from foretune.plan.engine_files.vllm import TunedLayer
from foretune.space import Configuration

TOKENS = (1, 16, 256)
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def config(*values):
    return Configuration(dict(zip(PARAMETERS, values, strict=True)))


def law(layer, tokens):
    """Return a winner that depends on tokens, size and architecture."""
    stages = 2 if layer.device.startswith("NVIDIA A") else 4
    return config(16 if tokens < 64 else 128, 64 if layer.size < 1000 else 256, 64, 1, 4, stages)


def tuned(layer):
    return TunedLayer(layer, {tokens: law(layer, tokens) for tokens in TOKENS})


@pytest.fixture
def winners():
    known = [Layer(e, n, d) for e in (8, 64) for n in (512, 4096)
             for d in (H100, "NVIDIA A100-SXM4-80GB")]  # fmt: skip
    return TunedLayerIndex(map(tuned, known))


@pytest.mark.parametrize("size", [512, 3000])
@pytest.mark.parametrize("tokens", [1, 24, 256, 1000])
@pytest.mark.parametrize("device", [H100, H200])
def test_similar_layers_decide(winners, size, tokens, device):
    guess = winners.guess(Layer(16, size, device), tokens)
    assert guess.config == law(Layer(16, size, H100), tokens)
    assert 0.5 < guess.agreement <= 1
    assert guess.nearest.device == H100  # the same architecture


@pytest.mark.parametrize(
    "layer",
    [
        Layer(16, 512, "AMD Instinct MI300X"),
        Layer(16, 512, "a GPU of next year"),
        Layer(16, 512, H100, "fp8_w8a8"),
        Layer(16, 512, H100, block_shape=(128, 128)),
        Layer(0, 512, H100, depth=512),
    ],
    ids=["architecture", "unknown", "format", "blocks", "kind"],
)
def test_nobody_votes_for_what_is_of_another_kind(winners, layer):
    assert winners.guess(layer, 16) is None


def test_the_device_itself_counts_more():
    here, there = Layer(8, 512, H200), Layer(8, 512, H100)
    one, other = config(16, 64, 64, 1, 4, 4), config(64, 128, 128, 8, 8, 2)
    winners = TunedLayerIndex([TunedLayer(there, {16: other}), TunedLayer(here, {16: one})])
    assert winners.guess(Layer(8, 600, H200), 16).config == one
    assert winners.guess(Layer(8, 600, H100), 16).config == other


def test_some_may_have_no_vote(winners):
    layer = Layer(8, 512, H100)
    assert winners.guess(layer, 16).nearest == layer
    assert winners.guess(layer, 16, without=[layer]).nearest == Layer(8, 4096, H100)
    alone = TunedLayerIndex([tuned(layer)])
    assert alone.guess(layer, 16, without=[layer]) is None


def test_a_gpu_that_the_spec_table_lacks_has_its_architecture(winners):
    assert winners.guess(Layer(16, 512, "NVIDIA H800"), 1).config["num_stages"] == 4


def test_a_step_lies_in_one_block_of_the_quantization():
    """SGLang would multiply with the scale of the first block of two."""
    layer = Layer(8, 512, H100, "fp8_w8a8", (128, 128))
    long, odd = config(16, 64, 256, 1, 4, 4), config(64, 64, 96, 1, 4, 4)
    winners = TunedLayerIndex([TunedLayer(layer, {1: long, 16: odd})])
    assert winners.guess(layer, 16).config == config(16, 64, 128, 1, 4, 4)


def test_knobs_that_not_every_engine_knows_are_left_out():
    values = {**config(16, 64, 64, 1, 4, 4), "num_ctas": 1, "USE_TMA": 1, "SPLIT_K": 1}
    layer = Layer(8, 512, H100)
    winners = TunedLayerIndex([TunedLayer(layer, {1: Configuration(values)})])
    assert set(winners.guess(layer, 1).config) == {*PARAMETERS, "SPLIT_K"}


def save(folder, layer, *values, engine="vllm"):
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"1": dict(config(*values))})
    (folder / layer.file_name_for(engine)).write_text(content)


def test_the_first_folder_counts_and_there_the_newest_triton(tmp_path):
    layer = Layer(8, 512, "NVIDIA B200")
    for version, rows in (("3_1_0", 16), ("3_10_0", 64), ("3_9_0", 32)):
        save(tmp_path / "b" / "configs" / f"triton_{version}", layer, rows, 64, 64, 1, 4, 4)
    save(tmp_path / "a", layer, 128, 64, 64, 1, 4, 4)
    for folders, rows in ((["b", "a"], 64), (["a", "b"], 128)):
        winners = TunedLayerIndex.read([tmp_path / folder for folder in folders])
        assert list(winners.layers) == [layer]
        assert winners.layers[layer].configs[1]["BLOCK_SIZE_M"] == rows


BROKEN = ["{", "{}", "", "[" * 5000, '{"1": {"a": [1]}}', "[1]"] + [
    json.dumps({"1": {**config(16, 64, 64, 1, 4, 4), "BLOCK_SIZE_M": value}})
    for value in (-16, 0, 16.5, True, "64", "abc", 10**400, float("inf"), None, [16])
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_damaged_files_have_no_vote(tmp_path, text):
    good, bad = Layer(8, 512, "NVIDIA B200"), Layer(8, 1024, "NVIDIA B200")
    save(tmp_path, good, 16, 64, 64, 1, 4, 4)
    (tmp_path / bad.file_name_for("vllm")).write_text(text)
    (tmp_path / "E=1,N=4,device_name=X_down.json").write_text("{}")
    winners = TunedLayerIndex.read([tmp_path])
    assert list(winners.layers) == [good]
    assert winners.skipped == 1 + (text != "{}")


def test_guesses_have_no_vote(tmp_path):
    save(tmp_path / "tuned", Layer(8, 512, "NVIDIA B200"), 16, 64, 64, 1, 4, 4)
    save(tmp_path / "out" / "linear", Layer(8, 640, "NVIDIA B200"), 16, 64, 64, 1, 4, 4)
    (tmp_path / "out" / MANIFEST_NAME).write_text("{}")
    assert len(TunedLayerIndex.read([tmp_path]).layers) == 1


def test_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no tuned file"):
        TunedLayerIndex.read([tmp_path])
