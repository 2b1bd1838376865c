"""Winners: what engines' tuned files say of a layer that nobody has tuned.

A file tells which configuration won, not by how much. So a layer gets the configuration that the
most similar layers agree on: of the same kind, number format and architecture, near in size and in
the number of tokens.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from foretune.device import named_device
from foretune.errors import StoreError, UsageError
from foretune.space import Configuration
from foretune.tune.exporting.layer import Engine, Layer
from foretune.tune.exporting.vllm import REQUIRED, TunedLayer, read_layer

__all__ = ["Guess", "Winners"]

NEIGHBOURS = 15
"""Winners that vote."""
WEIGHTS = np.array([1.0, 1.0, 0.5, 0.5])
"""What a doubling of tokens, experts, N and K adds to the distance between two layers."""
OTHER_DEVICE = 1.0
"""What another device of the same architecture adds."""
NEAR = 0.5
"""A vote counts ``1 / (distance + NEAR)²``."""
OTHER: dict[Engine, Engine] = {"vllm": "sglang", "sglang": "vllm"}
"""Their packages are called as they are, and so are folders of these."""
Group = tuple[bool, str, tuple[int, int] | None, str]
"""Experts or not, quantization, its blocks, the architecture."""
_Winner = tuple[Layer, npt.NDArray[np.float64], Configuration]


@dataclass(frozen=True)
class Guess:
    """The configuration that similar layers agree on.

    Attributes:
        config: for one number of tokens.
        agreement: share of the parameters of the votes that it agrees with, by their weight.
        nearest: the most similar layer.
    """

    config: Configuration
    agreement: float
    nearest: Layer


@dataclass(frozen=True)
class _Table:
    """All winners of one group: the layer, size and configuration of each."""

    layers: list[Layer]
    sizes: npt.NDArray[np.float64]
    configs: list[Configuration]

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        return np.array([[c[name] for name in REQUIRED] for c in self.configs], dtype=float)


class Winners:
    """Tuned layers to learn from.

    Args:
        tuned: of several files for the same layer, the first counts.

    Attributes:
        layers: that are known.
        paths: of the files that were read.
    """

    def __init__(self, tuned: Iterable[TunedLayer], paths: Iterable[Path] = ()) -> None:
        self.paths = list(paths)
        self.layers: dict[Layer, TunedLayer] = {}
        for each in tuned:
            self.layers.setdefault(each.layer, each)
        entries: dict[Group, list[_Winner]] = defaultdict(list)
        for layer, each in self.layers.items():
            entries[_group(layer)] += [
                (layer, _sizes(layer, tokens), config) for tokens, config in each.configs.items()
            ]
        self._tables = {group: _table(rows) for group, rows in entries.items()}

    @classmethod
    def read(cls, folders: Iterable[Path]) -> Self:
        """Read all tuned files in folders, and the folders in these.

        Files for other kernels are left out. Of the same layer, the file for the newest Triton
        counts, where its folder says which (``triton_3_5_1``).

        Raises:
            UsageError: there is none.
        """
        folders = list(folders)
        paths = [p for f in folders for p in f.rglob("*device_name=*.json")]
        found = cls(_readable(sorted(paths, key=triton_of, reverse=True)), paths)
        if not found.layers:
            names = ", ".join(map(str, folders)) or "no folder"
            raise UsageError(
                f"no tuned file in {names}: give --tuned the folder of the installed engine"
            )
        return found

    def has(self, layer: Layer, engine: Engine) -> bool:
        """Return whether an engine has the file of ``layer``, and not the other engine alone."""
        name, other = layer.named(engine), OTHER[engine]
        return any(p.name == name and other not in p.parts for p in self.paths)

    def guess(self, layer: Layer, tokens: int, without: Layer | None = None) -> Guess | None:
        """Return the configuration that similar layers agree on; None if there is none similar.

        Args:
            layer: that nobody has tuned.
            tokens: of the call.
            without: a layer that has no vote.
        """
        table = self._tables.get(_group(layer))
        if table is None:
            return None
        distance = np.linalg.norm((table.sizes - _sizes(layer, tokens)) * WEIGHTS, axis=1)
        distance += [OTHER_DEVICE * (other.device != layer.device) for other in table.layers]
        if without is not None:
            distance[[other == without for other in table.layers]] = np.inf
        nearest = np.argsort(distance, kind="stable")[:NEIGHBOURS]
        nearest = nearest[np.isfinite(distance[nearest])]
        if not len(nearest):
            return None
        votes = (distance[nearest] + NEAR) ** -2.0
        values = table.values[nearest]
        agreement = (values[:, None] == values[None]).mean(axis=2) @ votes / votes.sum()
        best = int(np.argmax(agreement))
        config = table.configs[nearest[best]]
        return Guess(config, float(agreement[best]), table.layers[nearest[0]])

    def held_out(self, layers: Iterable[Layer]) -> float:
        """Return the share of parameters guessed as they were tuned, each layer without itself."""
        same = []
        for layer in layers:
            for tokens, config in self.layers[layer].configs.items():
                if guess := self.guess(layer, tokens, without=layer):
                    same.append(np.mean([guess.config[n] == config[n] for n in REQUIRED]))
        return float(np.mean(same)) if same else float("nan")


def triton_of(path: Path) -> tuple[int, ...]:
    """Return the version in the name of a file's folder, ``triton_3_5_1``; empty without one."""
    found = re.fullmatch(r"triton_(\d+(?:_\d+)*)", path.parent.name)
    return tuple(map(int, found[1].split("_"))) if found else ()


def _readable(paths: Iterable[Path]) -> Iterator[TunedLayer]:
    for path in paths:
        with suppress(UsageError, StoreError):
            tuned = read_layer(Layer.of_file(path), path)
            if tuned.configs:
                yield tuned


def _group(layer: Layer) -> Group:
    device = named_device(layer.device)
    architecture = device.architecture if device else layer.device
    return bool(layer.experts), layer.dtype, layer.block_shape, architecture


def _sizes(layer: Layer, tokens: int) -> npt.NDArray[np.float64]:
    sizes = (tokens, layer.experts, layer.size, layer.depth)
    return np.log2(np.maximum(sizes, 1).astype(float))


def _table(rows: list[_Winner]) -> _Table:
    layers, sizes, configs = zip(*rows, strict=True)
    return _Table(list(layers), np.array(sizes), list(configs))
