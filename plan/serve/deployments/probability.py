"""Probability of meeting a latency limit, or of beating another deployment.

The fastest deployment predicted to meet a limit likely has a prediction that is too good. A limit
is therefore a chance constraint, computed from the prediction interval. Two layouts of one model
share most of their error: comparing them as if independent would make every comparison a draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.serving import tokens_per_s

if TYPE_CHECKING:
    from foretune.plan.serve.deployments.correction import LatencyPredictor

LIMITS_MS = (20.0, 40.0, 80.0)
"""TPOT limits used by `calibration_choices`."""
MAX_VIOLATION_RATE = 0.05
"""Maximum share of choices that miss their limit."""
DEGREES_OF_FREEDOM = 3.0
"""Degrees of freedom of the errors' Student's t; most errors are small, some are very large.

Half of them are within 0.31 of half a 90 % interval. This distribution gives 0.33, a normal one
0.41.
"""
T_QUANTILE_95 = 2.353363
"""Half a 90 % interval, in scales of that distribution."""
DEFAULT_MIN_PROBABILITY = 0.5
"""Default minimum probability: the point forecast meets the limit."""
PROBABILITY_LEVELS = tuple(np.round(np.arange(0.5, 0.96, 0.05), 2).tolist())
"""Levels that `required_probability` tries."""


def probability_within(latencies: pd.DataFrame, target: str, limit_ms: float) -> np.ndarray:
    """Return the probability that deployments meet a limit when measured.

    ``latencies`` has ``target`` and ``<target>_high``, as from `LatencyPredictor.predict`.
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
    """Return the position of the fastest deployment that is likely enough to meet its limits.

    If none is, return the most likely one. ``probability`` is that of meeting all limits.
    """
    sufficient = probability >= min_probability
    if not sufficient.any():
        return int(np.argmax(probability))
    return int(np.argmax(np.where(sufficient, tokens_per_s, -np.inf)))


@dataclass(frozen=True)
class CalibrationChoice:
    """Candidates under one limit, with their measured outcome."""

    tokens_per_s: np.ndarray
    probability: np.ndarray
    within_limit: np.ndarray


def calibration_choices(
    rows: pd.DataFrame, measured: pd.DataFrame, predicted: pd.DataFrame
) -> list[CalibrationChoice]:
    """Return choices among measured one-pool deployments of one model, system and workload.

    ``predicted`` has held-out ``tpot_ms``, ``ttft_ms`` and ``tpot_ms_high``.
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
    """Return the smallest level at which few enough choices miss their limit."""
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
    """Return the probability that an error, in scales of its distribution, is below values."""
    from scipy.special import stdtr

    return stdtr(DEGREES_OF_FREEDOM, values)


Metric = Literal["tokens_per_s", "tpot_ms", "ttft_ms"]
MIN_VARIANCE = 1e-12


def probability_better(
    correction: "LatencyPredictor", rows: pd.DataFrame, index: int, metric: Metric = "tokens_per_s"
) -> np.ndarray:
    """Return the probability that one deployment beats each other when measured (rows).

    It is 0.5 for the deployment itself. Cost is quadratic in the rows: pass a few hundred at most.
    ``rows`` come from `analytic_times`; ``index`` is the position of the one deployment.
    """
    value, covariance = log_metric(correction, rows, metric)
    return pairwise_better(value, covariance)[index]


def pairwise_better(value: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the probability that each value (rows) exceeds each other (columns)."""
    marginal = np.diag(covariance)
    variance = np.maximum(marginal[:, None] + marginal[None, :] - 2.0 * covariance, MIN_VARIANCE)
    return probability_below((value[:, None] - value[None, :]) / np.sqrt(variance))


def log_metric(
    correction: "LatencyPredictor", rows: pd.DataFrame, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of a metric, more being better, and the covariance of its errors.

    The throughput's error combines those of TTFT and TPOT, weighted by their shares of a request
    and taken as independent.
    """
    mean, _ = correction.predict_mean(rows)
    tokens = np.maximum(rows["osl"].to_numpy(dtype=float) - 1.0, 0.0)
    components = {
        "ttft_ms": mean["ttft_ms"].to_numpy(),
        "tpot_ms": mean["tpot_ms"].to_numpy() * tokens,
    }
    request_ms = components["ttft_ms"] + components["tpot_ms"]
    if metric == "tokens_per_s":
        per_gpu = rows["concurrency"] * rows["osl"] / rows["gpus"]
        value = np.log(per_gpu.to_numpy(dtype=float) / request_ms)
        weights = {target: part / request_ms for target, part in components.items()}
    else:
        value = -np.log(mean[metric].to_numpy())
        weights = {target: np.full(len(rows), float(target == metric)) for target in components}
    errors = correction.covariances(rows)
    return value, sum(
        (errors[target] * np.outer(weights[target], weights[target]) for target in components),
        np.zeros((len(rows), len(rows))),
    )
