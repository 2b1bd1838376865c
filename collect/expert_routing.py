"""Tokens per expert under the routings that measured tables name.

``balanced`` gives every expert the same number of tokens. ``power_law_A`` draws each expert's share
from a power law with exponent A, between 1 token and 0.8 of all tokens.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_SHARE = 0.8  # largest share of all tokens that one expert gets under a power law


def routing_exponent(distribution: str) -> float:
    """Return the exponent in ``power_law_1.2``; 0 for ``balanced`` and unknown names."""
    if not distribution.startswith("power_law"):
        return 0.0
    text = distribution.rpartition("_")[2]
    value = float(text) if text.replace(".", "", 1).isdigit() else 1.2
    return value + 1e-3 if value == 1.0 else value  # the integral of 1/x is a logarithm


def mean_counts(tokens: Any, top_k: Any, experts: int, exponent: float) -> npt.NDArray[np.float64]:
    """Return the mean tokens per expert under a power law, most popular expert first.

    ``tokens`` (routed) and ``top_k`` (experts per token) are numbers, or columns (n, 1) for a table
    (n, experts). With ``exponent`` 0 the experts are balanced.
    """
    share = np.ones(experts)
    if exponent:
        power = 1.0 - exponent
        max_count = np.maximum(MAX_SHARE * np.asarray(tokens, dtype=float), 1.0 + 1e-6)
        middle = (np.arange(experts) + 0.5) / experts
        share = (1.0 + middle * (np.float_power(max_count, power) - 1.0)) ** (1.0 / power)
    share = share / share.sum(axis=-1, keepdims=True) * (tokens * top_k)
    return np.minimum(np.sort(share, axis=-1)[..., ::-1], tokens)
