"""Tokens per expert of a mixture when popularity follows Zipf's law; the same in every run."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


@lru_cache(maxsize=4096)
def expert_counts(tokens: int, experts: int, top_k: int, skew: float) -> npt.NDArray[np.int64]:
    """Return the tokens of each expert, most popular first; every token has ``top_k`` experts.

    The n-th expert is chosen ``n ** -skew`` times as often as the first (Zipf's law; 0: balanced).
    It gets each token at most once.
    """
    popularity = np.arange(1, experts + 1, dtype=float) ** -skew
    counts = np.zeros(experts, dtype=np.int64)
    left, open_ = tokens * top_k, np.ones(experts, dtype=bool)
    while True:
        share = np.where(open_, popularity * left / popularity[open_].sum(), 0.0)
        full = open_ & (share >= tokens)
        if not full.any():
            break
        counts[full] = tokens
        left -= tokens * int(full.sum())
        open_ &= ~full
        if not open_.any():
            break
    counts += np.floor(share * open_).astype(np.int64)
    # the tokens that rounding down lost go to the experts that lost most
    missing = tokens * top_k - int(counts.sum())
    order = np.argsort(-np.where(open_, share % 1, -1.0), kind="stable")
    counts[order[:missing]] += 1
    counts.flags.writeable = False  # the cached array is shared
    return counts


def per_routing(
    what: Callable[[npt.NDArray[np.int64], float], float],
    tokens: Any,
    experts: Any,
    top_k: Any,
    skew: Any,
    tile: Any = 1.0,
) -> npt.NDArray[np.float64]:
    """Return ``what(counts, tile)`` for one routing, or for columns of many."""
    arrays = (np.asarray(v, dtype=float) for v in (tokens, experts, top_k, skew, tile))
    columns = np.broadcast_arrays(*arrays)
    number = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:  # compute each distinct row once
        codes, distinct = pd.factorize(column.ravel())
        number = pd.factorize(number * len(distinct) + codes)[0]
    first = np.unique(number, return_index=True)[1]
    found = [
        what(expert_counts(int(t), int(e), int(k), float(s)), float(size))
        for t, e, k, s, size in zip(*(column.ravel()[first] for column in columns), strict=True)
    ]
    return np.array(found)[number].reshape(columns[0].shape)
