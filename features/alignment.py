"""How often two divides a size."""

import numpy as np

MAX_ALIGNMENT = 8
"""log2 of the largest power of two that is looked for in a size."""


def alignment(sizes: np.ndarray) -> np.ndarray:
    """Return log2 of the largest power of two that divides each size; NaN for no whole sizes."""
    whole = (sizes > 0) & (sizes < 2.0**53) & (sizes == np.floor(sizes))
    numbers = np.where(whole, sizes, 1).astype(np.int64)
    power = np.log2((numbers & -numbers).astype(float))
    return np.where(whole, np.minimum(power, MAX_ALIGNMENT), np.nan)
