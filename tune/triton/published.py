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
OTHER_DEVICE, OTHER_ARCHITECTURE, OTHER_VENDOR, OTHER_DTYPE = 1.0, 2.0, 2.0, 2.0
"""Distance added for each difference."""
KNOB_DISTANCE, MAX_OCTAVES = 3.0, 3.0
"""Distance per octave between a winner's and a candidate's value, and its maximum in octaves."""
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
        numbers = np.unique(tiles, axis=0, return_inverse=True)[1]
        return self.count(weights, self.agreement(values), numbers.ravel())

    def values(self, configs: Sequence[Configuration]) -> np.ndarray:
        """Return the candidates' values of the knobs; -1 if missing."""
        # in this order, a kernel's own NUM_STAGES counts, not Triton's num_stages
        named = [{knob_meaning(n): c[n] for n in sorted(c, reverse=True)} for c in configs]
        knobs = self.knobs.tolist()
        return np.array(
            [[float(v) if type(v := c.get(knob)) is int else -1.0 for knob in knobs] for c in named]
        )

    def weights(self, device: Device, dtype: str, sizes: Sequence[float]) -> np.ndarray:
        """Return the weight of each row's vote on a problem; sizes are M, N and experts."""
        octaves = np.log2(np.maximum(sizes, 1.0)) - self.sizes / 4.0
        distance = (
            np.abs(octaves) @ SIZE_DISTANCE
            + OTHER_DEVICE * (self.devices != device.name)
            + OTHER_ARCHITECTURE * (self.architectures != device.architecture)
            + OTHER_VENDOR * (self.architectures.astype("U2") != device.architecture[:2])
            + OTHER_DTYPE * (self.dtypes != dtype)
        )
        return np.asarray(np.exp(-distance))

    def agreement(self, values: np.ndarray) -> np.ndarray:
        """Return how much each distinct winner resembles each candidate, from 0 to 1."""
        own, theirs = self.configs[:, None], values[None]
        octaves = np.abs(_log2(own) - _log2(theirs)).clip(max=MAX_OCTAVES)
        octaves[(own < 0) | (theirs < 0)] = 0.0
        return np.asarray(np.exp(-KNOB_DISTANCE * octaves.sum(axis=-1)))

    def count(self, weights: np.ndarray, agreement: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Return the log of each candidate's votes over all votes.

        The best candidate of each of the ``tiles`` gets the votes of the whole tile, so that the
        first measurements differ in what matters most.
        """
        votes = np.bincount(self.winners, weights, len(self.configs)) @ agreement
        votes = np.maximum(votes / votes.sum(), np.finfo(float).tiny)
        ranked = np.argsort(-votes, kind="stable")
        best = ranked[np.unique(tiles[ranked], return_index=True)[1]]
        votes[best] = np.bincount(tiles, votes)
        return np.asarray(np.log(votes))


@cache
def shipped_tunings() -> Mapping[str, Tunings]:
    """Return the shipped winners by family; raises PredictorError if the file is damaged."""
    with translate_read_errors(POPULAR, PredictorError, "is damaged ({}): install Foretune again"):
        found: dict[str, dict[str, Any]] = {}
        for name, array in read_arrays(POPULAR).items():
            family, _, field = name.partition(".")
            found.setdefault(family, {})[field] = array
        return {family: Tunings(**arrays) for family, arrays in found.items()}


def _log2(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.log2(np.maximum(values, 1.0)))
