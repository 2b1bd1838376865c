"""Chance constraints: how probable keeping to a limit is, and what to choose if it is not certain.

The deployment of most tokens per second that a prediction lets through is the one whose time was
most likely guessed too short. A limit is therefore a matter of probability, which follows from the
interval of a prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.serving import tokens_per_s

LIMITS_MS = (20.0, 40.0, 80.0)
"""Limits of the time per token at which `known_choices` are made."""
MAY_MISS = 0.05
"""Share of choices that may miss their limit."""
FREEDOM = 3.0
"""Degrees of freedom of Student's t, which errors follow: most are small, and some are very large.
Half of them lie within 0.31 of half a 90 % interval; 0.33 is what these degrees say, 0.41 what a
normal distribution would."""
HALF = 2.353363
"""Scales of that distribution in half a 90 % interval."""
SURE = 0.5
"""Least probability of keeping to a limit that is asked for where nobody says: the point forecast
keeps to it."""
LEVELS = tuple(np.round(np.arange(0.5, 0.96, 0.05), 2).tolist())
"""Least probabilities that `required_probability` tries."""


def probability_within(latencies: pd.DataFrame, target: str, limit_ms: float) -> np.ndarray:
    """Return how probable it is that deployments keep to a limit when measured.

    Args:
        latencies: ``target`` in milliseconds and ``<target>_high``, the upper end of its 90 %
            interval, as `ServingCorrection.predict` returns them.
        target: ``tpot_ms`` or ``ttft_ms``.
        limit_ms: the limit.
    """
    value = latencies[target].to_numpy(dtype=float)
    spread = np.log(latencies[f"{target}_high"].to_numpy(dtype=float) / value) / HALF
    if np.isinf(limit_ms):
        return np.ones(len(value))
    return probability_below(np.log(limit_ms / value) / np.maximum(spread, 1e-9))


def choose(tokens_per_s: np.ndarray, probability: np.ndarray, sure: float = SURE) -> int:
    """Return the position of the fastest deployment that keeps to its limits surely enough.

    Where none does, that of the surest.

    Args:
        tokens_per_s: predicted tokens per second and GPU.
        probability: of keeping to all limits.
        sure: the least probability that is enough.
    """
    enough = probability >= sure
    if not enough.any():
        return int(np.argmax(probability))
    return int(np.argmax(np.where(enough, tokens_per_s, -np.inf)))


@dataclass(frozen=True)
class KnownChoice:
    """Deployments to choose among under a limit, of which is known what would have come of it.

    Attributes:
        tokens_per_s: as predicted, per GPU.
        probability: of keeping to the limit.
        kept: whether they did.
    """

    tokens_per_s: np.ndarray
    probability: np.ndarray
    kept: np.ndarray


def known_choices(
    rows: pd.DataFrame, measured: pd.DataFrame, predicted: pd.DataFrame
) -> list[KnownChoice]:
    """Return choices among measured deployments of one model, system and workload.

    Args:
        rows: what `physics.physics` says of them; those of one pool are used.
        measured: their ``tpot_ms``.
        predicted: ``tpot_ms``, ``ttft_ms`` and ``tpot_ms_high``, by who did not see them.
    """
    choices = []
    seen = rows[(rows["apart"] == 0) & rows.index.isin(predicted.index)]
    for _, some in seen.groupby(["model", "system", "isl", "osl"]):
        here, tpot = predicted.loc[some.index], measured["tpot_ms"][some.index].to_numpy()
        speed = tokens_per_s(some["concurrency"].to_numpy(), some["osl"].to_numpy(), here)
        per_gpu = speed / some["gpus"].to_numpy()
        choices += [
            KnownChoice(per_gpu, probability_within(here, "tpot_ms", limit), tpot <= limit)
            for limit in LIMITS_MS
            if len(some) > 1 and (tpot <= limit).any()
        ]
    return choices


def required_probability(choices: Sequence[KnownChoice], allowed: float = MAY_MISS) -> float:
    """Return the least probability to ask for, so that few choices miss their limit.

    Args:
        choices: whose outcome is known.
        allowed: the share of them that may miss.
    """
    for level in LEVELS:
        kept = [bool(c.kept[choose(c.tokens_per_s, c.probability, level)]) for c in choices]
        if 1.0 - sum(kept) / max(len(kept), 1) <= allowed or not kept:
            return float(level)
    return float(LEVELS[-1])


def probability_below(values: np.ndarray) -> np.ndarray:
    """Return how probable it is that an error, in scales of its distribution, is below values."""
    from scipy.special import stdtr

    result: np.ndarray = stdtr(FREEDOM, values)
    return result
