"""Published winners vote for the candidates of a kernel that was never measured.

Serving engines publish the winners of their tunings, without times. Every published winner votes
for the candidates that resemble it. Its weight falls with the distance of its problem. The shipped
arrays load in milliseconds and need only NumPy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.space import Configuration
from foretune.support.files import read_arrays, translate_read_errors

POPULAR = Path(__file__).parent / "shipped" / "popular.npz"
SIZE_DISTANCE = np.array([1.0, 0.5, 0.5])
"""Distance per octave of M, N and experts; a vote's weight is e to minus the distance."""
OTHER_DEVICE = 1.0
"""Distance added for another device."""
OTHER_ARCHITECTURE = 2.0
"""Distance added for another architecture."""
OTHER_VENDOR = 2.0
"""Distance added for another vendor."""
OTHER_DTYPE = 2.0
"""Distance added for another type of weights."""
KNOB_DISTANCE = 3.0
"""Distance per octave between a winner's and a candidate's value of a knob."""
MAX_OCTAVES = 3.0
"""Maximum octaves between two values that count."""
SIZE_UNITS_PER_OCTAVE = 4.0
"""Sizes are stored as whole quarters of log2."""
MISSING = -1.0
"""Stands for a knob that a configuration does not have."""
_DECORATION = re.compile(r"^(BLOCK|BLK|TILE|B(?=[MNK]$))_?|_?SIZE")


def knob_meaning(name: str) -> str:
    """Return the meaning of a parameter: ``M`` for ``BLOCK_SIZE_M``, ``BLOCK_M`` and ``BM``."""
    return _DECORATION.sub("", name.upper()).strip("_")


@dataclass(frozen=True)
class Tunings:
    """Published winners of one family of kernels.

    Per row: ``devices``, ``architectures``, ``dtypes`` (of the weights), ``sizes`` (log2 of M, N
    and experts in quarters; 0 if absent) and ``winners`` (the row of ``configs`` that the tuning
    chose). ``configs`` are distinct, with a column per knob and -1 for missing values. ``knobs`` is
    the meaning of each column (`knob_meaning`), ``tile`` marks those of the tile.
    """

    devices: np.ndarray
    architectures: np.ndarray
    dtypes: np.ndarray
    sizes: np.ndarray
    winners: np.ndarray
    configs: np.ndarray
    knobs: np.ndarray
    tile: np.ndarray

    def log_shares(
        self, device: Device, dtype: str, sizes: Sequence[float], configs: Sequence[Configuration]
    ) -> np.ndarray | None:
        """Return the log of each candidate's share of the votes; None if it has no known tile.

        ``dtype`` is the type of the weights, as in ``dtypes``; ``sizes`` are M, N and experts.
        """
        values = self.values(configs)
        tiles = values[:, self.tile]
        if (tiles < 0).any():
            return None
        weights = self.weights(device, dtype, sizes)
        agreement = self.agreement(values)
        tile_numbers = np.unique(tiles, axis=0, return_inverse=True)[1]
        return self.count(weights, agreement, tile_numbers.ravel())

    def values(self, configs: Sequence[Configuration]) -> np.ndarray:
        """Return a row per candidate with its values of the knobs; `MISSING` if it has none."""
        rows = []
        for config in configs:
            # Of two names with one meaning the last one counts: in this order, a kernel's own
            # NUM_STAGES, not Triton's num_stages.
            by_meaning = {knob_meaning(name): config[name] for name in sorted(config, reverse=True)}
            values = [by_meaning.get(knob) for knob in self.knobs.tolist()]
            rows.append([float(v) if type(v) is int else MISSING for v in values])
        return np.array(rows)

    def weights(self, device: Device, dtype: str, sizes: Sequence[float]) -> np.ndarray:
        """Return the weight of each row's vote on a problem; sizes are M, N and experts."""
        octaves = np.log2(np.maximum(sizes, 1.0)) - self.sizes / SIZE_UNITS_PER_OCTAVE
        # The first two letters of an architecture tell the vendor: sm_90, gfx942.
        vendors = self.architectures.astype("U2")
        vendor = device.architecture[:2]
        distance = (
            np.abs(octaves) @ SIZE_DISTANCE
            + OTHER_DEVICE * (self.devices != device.name)
            + OTHER_ARCHITECTURE * (self.architectures != device.architecture)
            + OTHER_VENDOR * (vendors != vendor)
            + OTHER_DTYPE * (self.dtypes != dtype)
        )
        return np.asarray(np.exp(-distance))

    def agreement(self, values: np.ndarray) -> np.ndarray:
        """Return how much each distinct winner resembles each candidate, from 0 to 1."""
        winners = self.configs[:, None]
        candidates = values[None]
        octaves = np.abs(_log2(winners) - _log2(candidates)).clip(max=MAX_OCTAVES)
        octaves[(winners < 0) | (candidates < 0)] = 0.0  # a knob that one does not have
        return np.asarray(np.exp(-KNOB_DISTANCE * octaves.sum(axis=-1)))

    def count(self, weights: np.ndarray, agreement: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Return the log of each candidate's votes over all votes.

        The best candidate of each of the ``tiles`` gets the votes of the whole tile, so that the
        first measurements differ in what matters most.
        """
        votes_of_winners = np.bincount(self.winners, weights, len(self.configs))
        votes = votes_of_winners @ agreement
        shares = np.maximum(votes / votes.sum(), np.finfo(float).tiny)

        # The first candidate of each tile, in the order of the shares, is the tile's best.
        ranked = np.argsort(-shares, kind="stable")
        _, first_of_tile = np.unique(tiles[ranked], return_index=True)
        best_of_tile = ranked[first_of_tile]
        shares[best_of_tile] = np.bincount(tiles, shares)
        return np.asarray(np.log(shares))


@cache
def shipped_tunings() -> Mapping[str, Tunings]:
    """Return the shipped winners by family; raises PredictorError if the file is damaged."""
    with translate_read_errors(POPULAR, PredictorError, "is damaged ({}): install Foretune again"):
        families: dict[str, dict[str, Any]] = {}
        for name, array in read_arrays(POPULAR).items():
            family, _, field = name.partition(".")
            families.setdefault(family, {})[field] = array
        return {family: Tunings(**arrays) for family, arrays in families.items()}


def _log2(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.log2(np.maximum(values, 1.0)))
