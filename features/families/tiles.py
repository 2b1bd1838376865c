"""Tiles and waves: how evenly output tiles fill a device's multiprocessors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Quantity, nan_to

DEFAULT_CORES = 128.0
"""Multiprocessors assumed if the device does not report them; only ratios matter then."""


def cores_of(device: Mapping[str, Any]) -> Quantity:
    """Return the number of multiprocessors (or CPU cores) of each row's device."""
    return nan_to(device.get("cores", DEFAULT_CORES), DEFAULT_CORES)


TILES = ((64, 64), (64, 256), (128, 128), (128, 256), (256, 128), (16, 64))
"""Output tiles of common libraries; the one that ran is unknown, so each gives features."""


def wave_features(name: str, tiles: Quantity, device: Mapping[str, Any]) -> dict[str, Quantity]:
    """Return log2 of the waves of ``tiles``, and how full they are.

    A wave is one tile per multiprocessor. ``waves_…`` is log2 of the whole waves; ``fill_…`` is the
    filled share of their slots (0 … 1).
    """
    waves = tiles / cores_of(device)
    whole = np.ceil(waves)
    return {f"waves_{name}": np.log2(whole), f"fill_{name}": waves / whole}


def padding(size: Quantity, tile: Quantity) -> Quantity:
    """Return the unpadded share of a tiled dimension; 1 if ``tile`` divides it."""
    return size / (np.ceil(size / tile) * tile)


def product_features(
    m: Quantity, n: Quantity, batch: Quantity, device: Mapping[str, Any]
) -> dict[str, Quantity]:
    """Return waves and padding per tile shape, for ``batch`` matrices of ``m`` × ``n``."""
    features: dict[str, Quantity] = {}
    for tile_m, tile_n in TILES:
        tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n)
        name = f"{tile_m}x{tile_n}"
        features |= wave_features(name, tiles, device)
        features[f"padding_{name}"] = padding(m, tile_m) * padding(n, tile_n)
    return features
