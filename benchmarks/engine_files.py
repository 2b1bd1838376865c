"""How often guesses of `foretune engine-config` are what engines' own tuners chose.

    python benchmarks/engine_files.py VLLM_FOLDER SGLANG_FOLDER

The folders are those of the engines' packages, installed or unpacked wheels. Each tuned layer is
guessed from all others, once from all files of its engine's and the other's, once without any file
of the same GPU. Shares are of six parameters: three tile sizes, the group, warps and stages. What
votes and how much was chosen on vLLM's layers; the lines of layers that only SGLang tuned are the
ones to believe. Beside them: the commonest configuration of the same format and number of tokens,
vLLM's default, and how often both engines' files for the same layer agree, where they differ at
all. No file says how much slower another configuration is.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import local_device
from foretune.space import Configuration
from foretune.tune.exporting.layer import Layer
from foretune.tune.exporting.vllm import REQUIRED
from foretune.tune.exporting.winners import Winners

Guess = Callable[[Layer, int], Configuration | None]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("vllm", type=Path)
    parser.add_argument("sglang", type=Path)
    options = parser.parse_args(argv)
    both = Winners.read([options.vllm, options.sglang])
    vllm, sglang = Winners.read([options.vllm]), Winners.read([options.sglang])
    rows = []
    for kind, of_kind in (("experts", True), ("products", False)):
        for name, layers in (
            ("vLLM", [*vllm.layers]),
            ("SGLang alone", [layer for layer in sglang.layers if layer not in vllm.layers]),
        ):
            mine = [layer for layer in layers if bool(layer.experts) == of_kind]
            rows.append([f"{kind}, {name}", str(len(mine)), *shares(both, mine)])
        rows.append([f"{kind}, two tunings", *twins(vllm, sglang, of_kind)])
    print(heading("Files of serving engines", local_device("cpu")))
    columns = ("layers", "number", "guess", "another GPU's", "commonest", "vLLM's default")
    print(markdown(columns, rows))


def shares(winners: Winners, layers: list[Layer]) -> list[str]:
    """Return the share of parameters that each way to guess gets right, as text."""
    common = commonest(winners)
    by_device = {
        device: Winners(t for layer, t in winners.layers.items() if layer.device != device)
        for device in {layer.device for layer in layers}
    }

    def guessed(layer: Layer, tokens: int) -> Configuration | None:
        found = winners.guess(layer, tokens, without=layer)
        return found and found.config

    def elsewhere(layer: Layer, tokens: int) -> Configuration | None:
        found = by_device[layer.device].guess(layer, tokens)
        return found and found.config

    ways: list[Guess] = [guessed, elsewhere, common, default]
    return [share(winners, layers, way) for way in ways]


def share(winners: Winners, layers: Iterable[Layer], guess: Guess) -> str:
    same = []
    for layer in layers:
        for tokens, config in winners.layers[layer].configs.items():
            if found := guess(layer, tokens):
                same.append(agreement(found, config))
    return f"{np.mean(same):.3f}" if same else "–"


def agreement(one: Configuration, other: Configuration) -> float:
    return float(np.mean([one[name] == other[name] for name in REQUIRED]))


def commonest(winners: Winners) -> Guess:
    """Return the configuration that wins most often, by kind, format and number of tokens."""
    votes: dict[tuple[object, ...], Counter[Configuration]] = defaultdict(Counter)

    def key(layer: Layer, tokens: int) -> tuple[object, ...]:
        return bool(layer.experts), layer.dtype, layer.block_shape, tokens

    for layer, tuned in winners.layers.items():
        for tokens, config in tuned.configs.items():
            plain = Configuration({name: config[name] for name in REQUIRED})
            votes[key(layer, tokens)][plain] += 1

    def guess(layer: Layer, tokens: int) -> Configuration | None:
        found = votes[key(layer, tokens)].most_common(1)
        return found[0][0] if found else None

    return guess


def default(layer: Layer, tokens: int) -> Configuration | None:
    """Return what vLLM 0.33 takes without a file (``fused_moe``, ``fp8_utils``); NVIDIA's GPUs."""
    if not layer.device.startswith("NVIDIA"):
        return None
    few, narrow = tokens <= 64, layer.dtype == "fp8_w8a8"
    if layer.block_shape:
        n, k = layer.block_shape
        if not layer.experts:
            values = (64, n, k, 32, 4, 2)
        elif narrow:
            stages = 4 if tokens <= 4 else 3
            group = 1 if tokens <= 16 else 32
            values = (16 if few else 64, 64 if tokens <= 8 else n, k, group, 4, stages)
        else:
            return None
    else:
        steps = ((32, 16), (96, 32), (512, 64))
        rows = next((size for most, size in steps if tokens <= most), 128)
        depth = 128 if narrow or few else 64
        group = 16 if tokens // max(layer.experts, 1) > 128 else 1
        values = (
            rows, 64 if few else 128, depth, group,
            4 if tokens <= 128 else 8, 4 if tokens <= 32 else 3,
        )  # fmt: skip
    return Configuration(dict(zip(REQUIRED, values, strict=True)))


def twins(one: Winners, other: Winners, experts: bool) -> list[str]:
    """Return how many layers both engines tuned with different results, and how far they agree."""
    same, number = [], 0
    for layer in (layer for layer in one.layers if layer in other.layers):
        mine, theirs = one.layers[layer].configs, other.layers[layer].configs
        pairs = [agreement(mine[m], theirs[m]) for m in mine.keys() & theirs.keys()]
        if bool(layer.experts) == experts and pairs and min(pairs) < 1:
            same += pairs
            number += 1
    return [str(number), f"{np.mean(same):.3f}" if same else "–", "", "", ""]


if __name__ == "__main__":
    main()
