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
"""Limits of the time per token at which `calibration_choices` are made."""
MAX_VIOLATION_RATE = 0.05
"""Share of choices that may miss their limit."""
DEGREES_OF_FREEDOM = 3.0
"""Degrees of freedom of Student's t, which errors follow: most are small, and some are very large.
Half of them lie within 0.31 of half a 90 % interval; 0.33 is what these degrees say, 0.41 what a
normal distribution would."""
T_QUANTILE_95 = 2.353363
"""Scales of that distribution in half a 90 % interval."""
DEFAULT_MIN_PROBABILITY = 0.5
"""Least probability of keeping to a limit that is asked for where nobody says: the point forecast
keeps to it."""
PROBABILITY_LEVELS = tuple(np.round(np.arange(0.5, 0.96, 0.05), 2).tolist())
"""Least probabilities that `required_probability` tries."""


def probability_within(latencies: pd.DataFrame, target: str, limit_ms: float) -> np.ndarray:
    """Return how probable it is that deployments keep to a limit when measured.

    Args:
        latencies: ``target`` in milliseconds and ``<target>_high``, the upper end of its 90 %
            interval, as `LatencyPredictor.predict` returns them.
        target: ``tpot_ms`` or ``ttft_ms``.
        limit_ms: the limit.
    """
    value = latencies[target].to_numpy(dtype=float)
    spread = np.log(latencies[f"{target}_high"].to_numpy(dtype=float) / value) / T_QUANTILE_95
    if np.isinf(limit_ms):
        return np.ones(len(value))
    return probability_below(np.log(limit_ms / value) / np.maximum(spread, 1e-9))


def choose(
    tokens_per_s: np.ndarray,
    probability: np.ndarray,
    min_probability: float = DEFAULT_MIN_PROBABILITY,
) -> int:
    """Return the position of the fastest deployment that keeps to its limits surely enough.

    Where none does, that of the surest.

    Args:
        tokens_per_s: predicted tokens per second and GPU.
        probability: of keeping to all limits.
        min_probability: the least probability that is enough.
    """
    sufficient = probability >= min_probability
    if not sufficient.any():
        return int(np.argmax(probability))
    return int(np.argmax(np.where(sufficient, tokens_per_s, -np.inf)))


@dataclass(frozen=True)
class CalibrationChoice:
    """Deployments to choose among under a limit, of which is known what would have come of it.

    Attributes:
        tokens_per_s: as predicted, per GPU.
        probability: of keeping to the limit.
        within_limit: whether they did.
    """

    tokens_per_s: np.ndarray
    probability: np.ndarray
    within_limit: np.ndarray


def calibration_choices(
    rows: pd.DataFrame, measured: pd.DataFrame, predicted: pd.DataFrame
) -> list[CalibrationChoice]:
    """Return choices among measured deployments of one model, system and workload.

    Args:
        rows: what `physics.physics` says of them; those of one pool are used.
        measured: their ``tpot_ms``.
        predicted: ``tpot_ms``, ``ttft_ms`` and ``tpot_ms_high``, by who did not see them.
    """
    choices = []
    one_pool = rows[(rows["apart"] == 0) & rows.index.isin(predicted.index)]
    for _, group in one_pool.groupby(["model", "system", "isl", "osl"]):
        predictions, tpot = predicted.loc[group.index], measured["tpot_ms"][group.index].to_numpy()
        speed = tokens_per_s(group["concurrency"].to_numpy(), group["osl"].to_numpy(), predictions)
        per_gpu = speed / group["gpus"].to_numpy()
        choices += [
            CalibrationChoice(
                per_gpu, probability_within(predictions, "tpot_ms", limit), tpot <= limit
            )
            for limit in LIMITS_MS
            if len(group) > 1 and (tpot <= limit).any()
        ]
    return choices


def required_probability(
    choices: Sequence[CalibrationChoice], max_violation_rate: float = MAX_VIOLATION_RATE
) -> float:
    """Return the least probability to ask for, so that few choices miss their limit.

    Args:
        choices: whose outcome is known.
        max_violation_rate: the share of them that may miss.
    """
    for level in PROBABILITY_LEVELS:
        within_limit = [
            bool(c.within_limit[choose(c.tokens_per_s, c.probability, level)]) for c in choices
        ]
        if (
            1.0 - sum(within_limit) / max(len(within_limit), 1) <= max_violation_rate
            or not within_limit
        ):
            return float(level)
    return float(PROBABILITY_LEVELS[-1])


def probability_below(values: np.ndarray) -> np.ndarray:
    """Return how probable it is that an error, in scales of its distribution, is below values."""
    from scipy.special import stdtr

    result: np.ndarray = stdtr(DEGREES_OF_FREEDOM, values)
    return result
