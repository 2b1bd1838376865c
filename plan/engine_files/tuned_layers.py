"""Votes of engines' tuned files on the configuration of an untuned layer.

A tuned file has the winning configuration, but not its margin. So a layer gets the configuration
that the most similar layers agree on: same kind, format and architecture, similar sizes and number
of tokens.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from foretune.device import find_device_or_none
from foretune.errors import StoreError, UsageError
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.vllm import OPTIONAL, REQUIRED, TunedLayer, read_layer
from foretune.space import Configuration

PARAMETERS = (*REQUIRED, "num_stages")
"""Parameters that are voted on."""
MAX_NEIGHBORS = 15
"""Number of winners that vote."""
DISTANCE_WEIGHTS = np.array([1.0, 1.0, 0.5, 0.5])
"""Distance between layers that differ by a factor of two in tokens, experts, N and K."""
OTHER_DEVICE_DISTANCE = 1.0
"""Distance added for another device of the same architecture."""
DISTANCE_OFFSET = 0.5
"""A vote's weight is ``1 / (distance + DISTANCE_OFFSET)²``."""
MANIFEST_NAME = "foretune.json"
"""Name of the card next to guessed files, which have no vote."""
ARCHITECTURES = {
    "NVIDIA H100": "sm_90", "NVIDIA H20": "sm_90", "NVIDIA H20-3e": "sm_90",
    "NVIDIA H800": "sm_90", "AMD Instinct MI308X": "gfx942", "AMD Instinct MI325 OAM": "gfx942",
    "AMD Instinct MI350 OAM": "gfx950", "AMD Instinct MI355 OAM": "gfx950",
}  # fmt: skip
"""Architectures of GPUs in file names that the tables lack, or have in several forms."""
Group = tuple[bool, str, tuple[int, int] | None, str]
"""Whether experts, quantization, its blocks, the architecture."""
_TunedEntry = tuple[Layer, npt.NDArray[np.float64], Configuration]


@dataclass(frozen=True)
class Guess:
    """The configuration that similar layers agree on.

    It is for one number of tokens. ``agreement`` is the weighted share of the voters' parameters
    that equal it, ``nearest`` the most similar layer.
    """

    config: Configuration
    agreement: float
    nearest: Layer


@dataclass(frozen=True)
class _Table:
    """All winners of one group: layer, sizes and configuration of each."""

    layers: list[Layer]
    sizes: npt.NDArray[np.float64]
    configs: list[Configuration]

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        rows = [[c.get(name, 0) for name in PARAMETERS] for c in self.configs]
        return np.array(rows, dtype=float)


class TunedLayerIndex:
    """Tuned layers that vote.

    If several files are for one layer, the first counts. ``skipped`` counts unreadable files.
    """

    def __init__(self, tuned: Iterable[TunedLayer], skipped: int = 0) -> None:
        self.skipped = skipped
        self.layers: dict[Layer, TunedLayer] = {}
        for each in tuned:
            self.layers.setdefault(each.layer, each)
        entries: dict[Group, list[_TunedEntry]] = defaultdict(list)
        for layer, each in self.layers.items():
            for tokens, config in each.configs.items():
                if runnable := _runnable(layer, config):
                    entries[_group(layer)].append((layer, _sizes(layer, tokens), runnable))
        self._tables = {group: _table(rows) for group, rows in entries.items()}

    @classmethod
    def read(cls, folders: Iterable[Path]) -> Self:
        """Read all tuned files in folders and their subfolders.

        For each layer, the first folder's file counts, and in it the one for the newest Triton
        (``triton_3_5_1``). Files guessed by Foretune are skipped. Raises UsageError if there are no
        files.
        """
        folders, tuned, skipped = list(folders), [], 0
        for path in (path for folder in folders for path in _paths(folder)):
            try:
                read = read_layer(Layer.from_file(path), path)
            except (UsageError, StoreError):
                skipped += 1
            else:
                tuned.append(read)
        if not any(each.configs for each in tuned):
            names = ", ".join(map(str, folders)) or "no folder"
            raise UsageError(
                f"no tuned file in {names}: set --tuned to an installed engine or its wheel"
            )
        return cls((each for each in tuned if each.configs), skipped)

    def guess(self, layer: Layer, tokens: int, without: Iterable[Layer] = ()) -> Guess | None:
        """Return the configuration that similar layers agree on; None if no layer is similar.

        Layers in ``without`` have no vote.
        """
        table = self._tables.get(_group(layer))
        if table is None:
            return None
        distance = np.linalg.norm((table.sizes - _sizes(layer, tokens)) * DISTANCE_WEIGHTS, axis=1)
        distance += [
            OTHER_DEVICE_DISTANCE * (other.device != layer.device) for other in table.layers
        ]
        if excluded_layers := set(without):
            distance[[other in excluded_layers for other in table.layers]] = np.inf
        nearest = np.argsort(distance, kind="stable")[:MAX_NEIGHBORS]
        nearest = nearest[np.isfinite(distance[nearest])]
        if not len(nearest):
            return None
        votes = (distance[nearest] + DISTANCE_OFFSET) ** -2.0
        values = table.values[nearest]
        agreement = (values[:, None] == values[None]).mean(axis=2) @ votes / votes.sum()
        best = int(np.argmax(agreement))
        config = table.configs[nearest[best]]
        return Guess(config, float(agreement[best]), table.layers[nearest[0]])


def architecture_of(device: str) -> str | None:
    """Return the architecture of a GPU by its driver's name; None if unknown."""
    if device in ARCHITECTURES:
        return ARCHITECTURES[device]
    known = find_device_or_none(device)
    return known.architecture if known else None


def _paths(folder: Path) -> list[Path]:
    """Return the tuned files in a folder, newest Triton first, without guessed ones."""
    guessed_folders = {card.parent for card in folder.rglob(MANIFEST_NAME)}
    paths = [
        p
        for p in folder.rglob("*device_name=*.json")
        if not guessed_folders.intersection(p.parents)
    ]
    return sorted(sorted(paths), key=_triton_of, reverse=True)


def _triton_of(path: Path) -> tuple[int, ...]:
    found = re.fullmatch(r"triton_(\d+(?:_\d+)*)", path.parent.name)
    return tuple(map(int, found[1].split("_"))) if found else ()


def _runnable(layer: Layer, config: Configuration) -> Configuration | None:
    """Return the kernel parameters of a configuration; None if it cannot run.

    A step along K must lie in one quantization block, which has one scale. vLLM shortens longer
    steps; SGLang does not, and computes a wrong result.
    """
    values = {name: config[name] for name in (*REQUIRED, *OPTIONAL) if name in config}
    if layer.block_shape:
        depth = min(int(values["BLOCK_SIZE_K"]), layer.block_shape[1])
        if layer.block_shape[1] % depth:
            return None
        values["BLOCK_SIZE_K"] = depth
    return Configuration(values)


def _group(layer: Layer) -> Group:
    architecture = architecture_of(layer.device) or layer.device
    return bool(layer.experts), layer.dtype, layer.block_shape, architecture


def _sizes(layer: Layer, tokens: int) -> npt.NDArray[np.float64]:
    sizes = (tokens, layer.experts, layer.size, layer.depth)
    return np.log2(np.maximum(sizes, 1).astype(float))


def _table(rows: list[_TunedEntry]) -> _Table:
    layers, sizes, configs = zip(*rows, strict=True)
    return _Table(list(layers), np.array(sizes), list(configs))
