"""Can the file of tuned configurations of a serving engine be foretold, for a GPU nobody tuned?

    python benchmarks/tuned_files.py FOLDER

FOLDER has ``tuned_fused_moe.csv`` and ``tuned_fp8_block_gemm.csv``: what exhaustive tunings chose,
by GPU, layer and rows M, as SGLang ships it. They have no times, so what is counted is how often a
proposal names the very tile (rows and columns), or the whole configuration, that was tuned. Each
GPU is left out in turn, with all of its files. Proposals are

- the engine's configuration without a file;
- the same layer's file of the nearest GPU of its architecture, by the product's rule;
- that of the nearest GPU of other architectures of its vendor, and of other vendors;
- the most voted tile and configuration of all other GPUs' files (`foretune.tune.triton.published`).

Files that equal those of another GPU entirely are copies, not tunings: they propose nothing. Beside
the proposals stands how often two tunings agree that should be equal: of the same layer on the same
GPU, with two versions of Triton.

"Nearest" by the number of cores, instead of the bandwidth, was chosen on the products of experts.
"""

import argparse
import csv
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import markdown
from popular import FAMILIES, PRODUCT, device_of

from foretune.tune.doors.tuned_files import distance
from foretune.tune.triton.published import Tunings, knob_meaning

TABLES = {"fused_moe": "tuned_fused_moe.csv", "block_gemm": "tuned_fp8_block_gemm.csv"}
SAME = "of its architecture"
SAME_VENDOR = "of its vendor"
OTHER_VENDOR = "of another vendor"
KINS = (SAME, SAME_VENDOR, OTHER_VENDOR)
"""Kinds of nearest GPUs, the nearest first."""
TWICE = ("the same GPU", "its file, another Triton")
TILE = 2
"""Number of knobs, of the first of `PRODUCT`, that are the tile."""

Config = tuple[int, ...]


@dataclass(frozen=True)
class TunedFile:
    """One file: the configuration that was tuned for each M.

    Attributes:
        device: the GPU's name.
        layer: what the file's name says but for the GPU: sizes and types.
        triton: version with which it was tuned; empty if unknown.
        dtype: type of the weights.
        columns, experts: sizes of the layer.
        chosen: configuration by M; -1 stands for a knob that the file lacks.
    """

    device: str
    layer: tuple[str, ...]
    triton: str
    dtype: str
    columns: float
    experts: float
    chosen: dict[int, Config]


def read_files(path: Path) -> list[TunedFile]:
    """Return the files of a table."""
    rows_of_file = defaultdict(list)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            layer = tuple(row.get(key, "") for key in ("E", "N", "K", "dtype", "block", "down"))
            rows_of_file[row["device"], row["triton"], layer].append(row)
    return [
        TunedFile(
            device=device,
            layer=layer,
            triton=version,
            dtype=rows[0]["dtype"],
            columns=float(rows[0]["N"]),
            experts=float(rows[0].get("E") or 1),
            chosen={int(row["M"]): _config(row) for row in rows},
        )
        for (device, version, layer), rows in rows_of_file.items()
    ]


def _config(row: dict[str, str]) -> Config:
    return tuple(int(float(row[f"config.{knob}"] or -1)) for knob in PRODUCT)


def nearest(files: Sequence[TunedFile], target: TunedFile, kin: str) -> TunedFile | None:
    """Return the same layer's file of the nearest GPU of a ``kin``, among ``files``."""
    own = device_of(target.device)
    near = [
        file
        for file in files
        if file.layer == target.layer
        and kin_of(device_of(file.device).architecture, own.architecture) == kin
    ]
    return min(near, key=lambda file: distance(device_of(file.device), own), default=None)


def kin_of(one: str, other: str) -> str:
    """Return how two architectures are related: sm_90, gfx942."""
    if one == other:
        return SAME
    return SAME_VENDOR if one[:2] == other[:2] else OTHER_VENDOR


class Votes:
    """What files vote for: the winner of the most voted tile."""

    def __init__(self, files: Sequence[TunedFile]) -> None:
        rows = [(file, m, config) for file in files for m, config in file.chosen.items()]
        sizes = np.array([[m, file.columns, file.experts] for file, m, _ in rows])
        configs, winners = np.unique([c for _, _, c in rows], axis=0, return_inverse=True)
        self.configs = configs
        self._tunings = Tunings(
            devices=np.array([file.device for file, _, _ in rows]),
            architectures=np.array([device_of(file.device).architecture for file, _, _ in rows]),
            dtypes=np.array([file.dtype for file, _, _ in rows]),
            sizes=np.rint(4 * np.log2(np.maximum(sizes, 1.0))),
            winners=winners.ravel(),
            configs=configs,
            knobs=np.array([knob_meaning(knob) for knob in PRODUCT]),
            tile=np.arange(TILE),
        )
        self._agreement = self._tunings.agreement(configs.astype(float))
        self._tiles = np.unique(configs[:, :TILE], axis=0, return_inverse=True)[1].ravel()

    def choose(self, target: TunedFile, m: int) -> Config:
        """Return the first configuration of the order by votes."""
        sizes = [m, target.columns, target.experts]
        weights = self._tunings.weights(device_of(target.device), target.dtype, sizes)
        shares = self._tunings.count(weights, self._agreement, self._tiles)
        return tuple(self.configs[int(np.argmax(shares))].tolist())


def agreement(pairs: Iterable[tuple[Config, Config]]) -> tuple[float, float]:
    """Return the shares of pairs whose tile, and whose whole configuration, are the same.

    A knob that a file lacks is left out.
    """
    tiles = []
    wholes = []
    for one, other in pairs:
        equal = [a == b or min(a, b) < 0 for a, b in zip(one, other, strict=True)]
        tiles.append(all(equal[:TILE]))
        wholes.append(all(equal))
    return float(np.mean(tiles)), float(np.mean(wholes))


def judge(family: str, files: Sequence[TunedFile]) -> list[list[str]]:
    """Return a row per proposal: mean and worst over GPUs, each of which was left out."""
    default = FAMILIES[family].default
    found: dict[tuple[str, str], dict[str, list[tuple[Config, Config]]]] = defaultdict(dict)
    for device in sorted({file.device for file in files}):
        # A copy of this GPU's file under another name is left out with it.
        own = {
            (file.layer, frozenset(file.chosen.items())) for file in files if file.device == device
        }
        others = [file for file in files if (file.layer, frozenset(file.chosen.items())) not in own]
        votes = Votes(others)

        # On each layer, the nearest GPU is of one kind: the first that has any.
        for target in [file for file in files if file.device == device]:
            by_kin = {
                kin: nearest(others, target, kin) for kin in (SAME, SAME_VENDOR, OTHER_VENDOR)
            }
            kin = next((kin for kin, file in by_kin.items() if file is not None), None)
            if kin is None:
                continue
            copied = by_kin[kin]
            assert copied is not None
            shared = [m for m in target.chosen if m in copied.chosen]
            for title, proposed in (
                ("its file", [copied.chosen[m] for m in shared]),
                ("votes of all files", [votes.choose(target, m) for m in shared]),
                ("without a file", [default for _ in shared]),
            ):
                tuned = [target.chosen[m] for m in shared]
                pairs = list(zip(tuned, proposed, strict=True))
                found[kin, title].setdefault(device, []).extend(pairs)

    # The same work, tuned twice.
    for one, other in itertools.combinations(files, 2):
        if (one.device, one.layer) == (other.device, other.layer) and one.chosen != other.chosen:
            pairs = [(one.chosen[m], other.chosen[m]) for m in one.chosen if m in other.chosen]
            found["the same GPU", "its file with another Triton"].setdefault(one.device, []).extend(
                pairs
            )

    rows = []
    for (kin, title), by_device in sorted(found.items()):
        by_device = {device: pairs for device, pairs in by_device.items() if pairs}
        shares = np.array([agreement(pairs) for pairs in by_device.values()])
        number = sum(map(len, by_device.values()))
        mean = shares.mean(axis=0)
        worst = shares.min(axis=0)
        cells = [f"{share:.2f}" for pair in zip(mean, worst, strict=True) for share in pair]
        rows.append([family, kin, title, str(len(by_device)), str(number), *cells])
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    rows = []
    for family, name in TABLES.items():
        rows += judge(family, read_files(options.folder / name))
    columns = [
        "kernel",
        "nearest tuned GPU",
        "proposal",
        "GPUs",
        "tunings",
        "tile",
        "worst",
        "whole",
        "worst",
    ]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
