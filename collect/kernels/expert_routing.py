"""How many tokens each expert of a mixture gets, the same in every run.

Two ways to say it: Zipf's law, which our own kernels' problems have, and the names that measured
tables use. There ``balanced`` gives every expert the same, and ``power_law_A`` draws each expert's
share from a power law with exponent A between 1 and 0.8 of the tokens.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

LARGEST_SHARE = 0.8
"""Of all tokens, that one expert can get under a power law."""


def routing_exponent(distribution: str) -> float:
    """Return the exponent at the end of ``power_law_1.2``; 0 for balanced and what is not known."""
    if not distribution.startswith("power_law"):
        return 0.0
    text = distribution.rpartition("_")[2]
    value = float(text) if text.replace(".", "", 1).isdigit() else 1.2
    return value + 1e-3 if value == 1.0 else value  # where the integral is a logarithm


def mean_counts(tokens: Any, top_k: Any, experts: int, exponent: float) -> npt.NDArray[np.float64]:
    """Return how many tokens experts get on average under a power law, most wanted first.

    Args:
        tokens: that are routed; a number, or a column (n, 1) of them for a table (n, experts).
        top_k: experts of each, likewise.
        experts: how many there are.
        exponent: of the power law; 0 gives all the same.
    """
    share = np.ones(experts)
    if exponent:
        power = 1.0 - exponent
        max_count = np.maximum(LARGEST_SHARE * np.asarray(tokens, dtype=float), 1.0 + 1e-6)
        middle = (np.arange(experts) + 0.5) / experts
        share = (1.0 + middle * (np.float_power(max_count, power) - 1.0)) ** (1.0 / power)
    share = share / share.sum(axis=-1, keepdims=True) * (tokens * top_k)
    return np.minimum(np.sort(share, axis=-1)[..., ::-1], tokens)


@lru_cache(maxsize=4096)
def expert_counts(tokens: int, experts: int, top_k: int, skew: float) -> npt.NDArray[np.int64]:
    """Return the tokens of each expert, most wanted first; every token has ``top_k`` experts.

    The n-th expert is wanted ``n ** -skew`` as much as the first (Zipf's law; 0: all alike), but
    gets each token at most once.
    """
    wanted = np.arange(1, experts + 1, dtype=float) ** -skew
    counts = np.zeros(experts, dtype=np.int64)
    left, open_ = tokens * top_k, np.ones(experts, dtype=bool)
    while True:
        share = np.where(open_, wanted * left / wanted[open_].sum(), 0.0)
        full = open_ & (share >= tokens)
        if not full.any():
            break
        counts[full] = tokens
        left -= tokens * int(full.sum())
        open_ &= ~full
        if not open_.any():
            break
    counts += np.floor(share * open_).astype(np.int64)
    # what rounding down left over goes to those it took the most from
    missing = tokens * top_k - int(counts.sum())
    order = np.argsort(-np.where(open_, share % 1, -1.0), kind="stable")
    counts[order[:missing]] += 1
    counts.flags.writeable = False  # everybody gets the same array
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
    for column in columns:  # few distinct rows, each worked out once
        codes, distinct = pd.factorize(column.ravel())
        number = pd.factorize(number * len(distinct) + codes)[0]
    first = np.unique(number, return_index=True)[1]
    found = [
        what(expert_counts(int(t), int(e), int(k), float(s)), float(size))
        for t, e, k, s, size in zip(*(column.ravel()[first] for column in columns), strict=True)
    ]
    return np.array(found)[number].reshape(columns[0].shape)
