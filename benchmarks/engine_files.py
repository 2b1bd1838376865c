"""How often guesses of `foretune engine-config` are what engines' own tuners chose.

    python benchmarks/engine_files.py VLLM_FOLDER SGLANG_FOLDER

The folders are those of the engines' packages, installed or unpacked wheels. Each tuned layer is
guessed from all others but those whose files are copies of its own. Shares are of six parameters:
three tile sizes, the group, warps and stages. What votes and how much was chosen on vLLM's layers;
the lines of layers that only SGLang tuned are the ones to believe. Beside them: the commonest
configuration of the same format and number of tokens, and vLLM's default on NVIDIA's GPUs. Then the
same without any file of the same GPU; and layers that both engines tuned with different results. No
file says how much slower another configuration is.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import local_device
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import PARAMETERS, TunedLayerIndex
from foretune.space import Configuration

Guess = Callable[[Layer, int], Configuration | None]
KINDS = (("experts", True), ("linear layers", False))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("vllm", type=Path)
    parser.add_argument("sglang", type=Path)
    options = parser.parse_args(argv)
    vllm, sglang = TunedLayerIndex.read([options.vllm]), TunedLayerIndex.read([options.sglang])
    both = TunedLayerIndex([*vllm.layers.values(), *sglang.layers.values()])
    alone = [layer for layer in sglang.layers if layer not in vllm.layers]
    guess, common = voted(both), commonest(both)
    all_files, siblings, tunings = [], [], []
    for kind, experts in KINDS:
        for name, layers in (("vLLM", [*vllm.layers]), ("SGLang alone", alone)):
            mine = [layer for layer in layers if bool(layer.experts) == experts]
            shares = [share(both, mine, way) for way in (guess, common, default)]
            all_files.append([f"{kind}, {name}", str(len(mine)), *shares])
            other = elsewhere(both, mine)
            with_siblings = [layer for layer in mine if other(layer, 1)]
            shares = [share(both, with_siblings, way) for way in (guess, other)]
            siblings.append([f"{kind}, {name}", str(len(with_siblings)), *shares])
        tunings.append([kind, *twice(vllm, sglang, guess, experts)])
    print(heading("Files of serving engines", local_device("cpu")))
    columns = ("layers", "number", "guess", "commonest", "vLLM's default")
    print(markdown(columns, all_files))
    print(f"{vllm.skipped} and {sglang.skipped} files in other formats were left out.\n")
    print(markdown(("layers", "number", "guess", "without the GPU's own files"), siblings))
    columns = ("tuned twice", "number", "each other", "guess and vLLM", "guess and SGLang")
    print(markdown(columns, tunings))


def voted(winners: TunedLayerIndex) -> Guess:
    """Return the guess from all layers but copies of the one that is asked for."""
    copies = copies_of(winners)

    def guess(layer: Layer, tokens: int) -> Configuration | None:
        found = winners.guess(layer, tokens, without=copies[layer])
        return found and found.config

    return guess


def elsewhere(winners: TunedLayerIndex, layers: list[Layer]) -> Guess:
    """Return the guess from files of other GPUs."""
    by_device = {
        device: TunedLayerIndex(t for layer, t in winners.layers.items() if layer.device != device)
        for device in {layer.device for layer in layers}
    }
    copies = copies_of(winners)

    def guess(layer: Layer, tokens: int) -> Configuration | None:
        found = by_device[layer.device].guess(layer, tokens, without=copies[layer])
        return found and found.config

    return guess


def copies_of(winners: TunedLayerIndex) -> dict[Layer, set[Layer]]:
    """Return the layers whose files say the same as each layer's, itself among them."""
    same = defaultdict(set)
    said = {layer: frozenset(tuned.configs.items()) for layer, tuned in winners.layers.items()}
    for layer, content in said.items():
        same[content].add(layer)
    return {layer: same[content] for layer, content in said.items()}


def share(winners: TunedLayerIndex, layers: Iterable[Layer], guess: Guess) -> str:
    same = []
    for layer in layers:
        for tokens, config in winners.layers[layer].configs.items():
            if found := guess(layer, tokens):
                same.append(agreement(found, config))
    return f"{np.mean(same):.3f}" if same else "–"


def agreement(one: Configuration, other: Configuration) -> float:
    return float(np.mean([one.get(name) == other.get(name) for name in PARAMETERS]))


def commonest(winners: TunedLayerIndex) -> Guess:
    """Return what wins most often in other layers of the same kind, format and tokens."""
    votes: dict[tuple[object, ...], Counter[Configuration]] = defaultdict(Counter)
    copies = copies_of(winners)

    def key(layer: Layer, tokens: int) -> tuple[object, ...]:
        return bool(layer.experts), layer.dtype, layer.block_shape, tokens

    def plain(config: Configuration) -> Configuration:
        return Configuration({name: config[name] for name in PARAMETERS if name in config})

    for layer, tuned in winners.layers.items():
        for tokens, config in tuned.configs.items():
            votes[key(layer, tokens)][plain(config)] += 1

    def guess(layer: Layer, tokens: int) -> Configuration | None:
        others = votes[key(layer, tokens)].copy()
        for copy in copies[layer]:
            if key(copy, tokens) == key(layer, tokens):
                others[plain(winners.layers[copy].configs[tokens])] -= 1
        found = (+others).most_common(1)
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
    return Configuration(dict(zip(PARAMETERS, values, strict=True)))


def twice(one: TunedLayerIndex, other: TunedLayerIndex, guess: Guess, experts: bool) -> list[str]:
    """Return how many layers both engines tuned differently, and who agrees how far with whom."""
    same, number = [], 0
    for layer, tuned in one.layers.items():
        if bool(layer.experts) != experts or layer not in other.layers:
            continue
        mine, theirs = tuned.configs, other.layers[layer].configs
        tokens = [m for m in mine if m in theirs]
        if all(mine[m] == theirs[m] for m in tokens):
            continue
        number += 1
        for m in tokens:
            if found := guess(layer, m):
                pairs = ((mine[m], theirs[m]), (found, mine[m]), (found, theirs[m]))
                same.append([agreement(*pair) for pair in pairs])
    return [str(number), *(f"{value:.3f}" for value in np.mean(same, axis=0))]


if __name__ == "__main__":
    main()
