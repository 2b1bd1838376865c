"""Guesses are what similar layers agree on, and nobody else has a vote."""

import json
import math

import pytest

from foretune.errors import UsageError
from foretune.space import Configuration
from foretune.tune.exporting.layer import Layer
from foretune.tune.exporting.vllm import REQUIRED, TunedLayer
from foretune.tune.exporting.winners import Winners

TOKENS = (1, 16, 256)
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def config(*values):
    return Configuration(dict(zip(REQUIRED, values, strict=True)))


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
    return Winners(map(tuned, known))


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
    winners = Winners([TunedLayer(there, {16: other}), TunedLayer(here, {16: one})])
    assert winners.guess(Layer(8, 600, H200), 16).config == one
    assert winners.guess(Layer(8, 600, H100), 16).config == other


def test_held_out_layers_do_not_see_themselves(winners):
    assert winners.held_out(winners.layers) > 0.8
    alone = Winners([tuned(Layer(8, 512, H100))])
    assert math.isnan(alone.held_out(alone.layers))


def test_files_are_read_newest_first_and_others_left_out(tmp_path):
    name = "E=8,N=512,device_name=NVIDIA_B200.json"
    for version, rows in (("3_1_0", 16), ("3_10_0", 64), ("3_9_0", 32)):
        folder = tmp_path / "configs" / f"triton_{version}"
        folder.mkdir(parents=True)
        content = {"1": dict(config(rows, 64, 64, 1, 4, 4))}
        (folder / name).write_text(json.dumps(content))
    for odd, text in (("E=1,N=2,device_name=X.json", "{"), ("E=1,N=3,device_name=X.json", "{}"),
                      ("E=1,N=4,device_name=X_down.json", "{}")):  # fmt: skip
        (tmp_path / odd).write_text(text)
    winners = Winners.read([tmp_path])
    layer = Layer(8, 512, "NVIDIA B200")
    assert list(winners.layers) == [layer]
    assert winners.layers[layer].configs[1]["BLOCK_SIZE_M"] == 64
    assert winners.has(layer, "vllm")
    assert not winners.has(Layer(8, 513, "NVIDIA B200"), "vllm")


def test_the_other_engines_files_are_not_its_own(tmp_path):
    (tmp_path / "sglang").mkdir()
    layer = Layer(8, 512, "NVIDIA B200")
    path = tmp_path / "sglang" / layer.named("sglang")
    path.write_text(json.dumps({"1": dict(config(16, 64, 64, 1, 4, 4))}))
    winners = Winners.read([tmp_path])
    assert (winners.has(layer, "sglang"), winners.has(layer, "vllm")) == (True, False)


def test_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no tuned file"):
        Winners.read([tmp_path])
