"""How a router spreads tokens over experts, and what the busiest rank then has to do.

Measured tables route artificially: ``balanced`` gives every expert the same, ``power_law_A`` draws
each expert's share from a power law with exponent A between 1 and 0.8 of the tokens, and times the
rank with the heaviest load, for it is the one that all others wait for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

LARGEST_SHARE = 0.8
"""Of all tokens, that one expert can get under a power law."""


@dataclass(frozen=True)
class Load:
    """What the busiest rank does, per row.

    Attributes:
        pairs: token-expert pairs.
        active: experts that get any token.
        largest: tokens of its most wanted expert.
    """

    pairs: np.ndarray
    active: np.ndarray
    largest: np.ndarray


def busiest_rank(tokens: Any, top_k: Any, experts: Any, ranks: Any, distribution: Any) -> Load:
    """Return the load of the busiest of ``ranks``, for scalars or arrays of one length."""
    exponent = _exponent(distribution)
    columns = np.broadcast_arrays(
        *(np.asarray(v, dtype=float) for v in (tokens, top_k, experts, ranks, exponent))
    )
    shape = columns[0].shape
    rows = pd.DataFrame({i: column.ravel() for i, column in enumerate(columns)})
    number = rows.groupby(list(rows), sort=False, dropna=False).ngroup().to_numpy()
    distinct = rows.drop_duplicates().to_numpy()
    found = np.array([_load(*row) for row in distinct]).reshape(len(distinct), 3)[number]
    return Load(*(found[:, i].reshape(shape) for i in range(3)))


def _load(
    tokens: float, top_k: float, experts: float, ranks: float, exponent: float
) -> tuple[float, float, float]:
    """Return pairs, active experts and the largest expert's tokens of the busiest rank."""
    if not (np.isfinite([tokens, top_k, experts, ranks]).all() and ranks > 0):
        return np.nan, np.nan, np.nan
    n, local = max(int(experts), 1), max(int(experts / ranks), 1)
    pairs = tokens * top_k
    if exponent == 0.0:
        each = pairs / n
        mine = max(pairs / ranks, 1.0)
        return mine, min(float(local), mine), max(each, 1.0)
    most = max(LARGEST_SHARE * tokens, 1.0 + 1e-6)
    middle = (np.arange(n) + 0.5) / n
    power = 1.0 - exponent
    share = (1.0 + middle * (most**power - 1.0)) ** (1.0 / power)
    counts = np.minimum(np.sort(share / share.sum() * pairs)[::-1], tokens)
    others = float(counts[1:].mean()) if n > 1 else 0.0
    mine = max(float(counts[0]) + (local - 1) * others, 1.0)
    some = float((1.0 - np.exp(-counts)).mean()) * local  # a count is a mean: it may be none
    return mine, min(max(some, 1.0), mine), max(float(counts[0]), 1.0)


def _exponent(distribution: Any) -> np.ndarray:
    """Return the exponent at the end of ``power_law_1.2``; 0 for balanced and what is not known."""
    codes, names = pd.factorize(np.atleast_1d(np.asarray(distribution, dtype=str)))
    exponents = []
    for name in names:
        text = name.rpartition("_")[2] if name.startswith("power_law") else "0"
        value = float(text) if text.replace(".", "", 1).isdigit() else 1.2
        exponents.append(value + 1e-3 if value == 1.0 else value)
    return np.array(exponents)[codes].reshape(np.shape(distribution))
