"""How probable it is that one deployment beats another, most of their error being the same.

Where a prediction for one layout is 20 % too high, so is that for its neighbour: comparing their
intervals, as if the errors had nothing to do with each other, would call everything a draw.
"""

from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.correction import TARGETS, LatencyPredictor
from foretune.plan.serve.deployments.probability import probability_below

Metric = Literal["tokens_per_s", "tpot_ms", "ttft_ms"]
MIN_VARIANCE = 1e-12


def probability_better(
    correction: LatencyPredictor,
    rows: pd.DataFrame,
    index: int,
    metric: Metric = "tokens_per_s",
) -> np.ndarray:
    """Return how probable it is that one deployment beats each of the others when measured.

    Args:
        correction: trained on measured deployments.
        rows: what `physics.physics` says of them; some hundreds at most, as
            the errors of all pairs are looked at.
        index: the position of the one.
        metric: more generated tokens per second and GPU, or fewer milliseconds.

    Returns:
        Probabilities (rows); of the one itself, a half.
    """
    value, covariance = log_metric(correction, rows, metric)
    better: np.ndarray = pairwise_better(value, covariance)[index]
    return better


def pairwise_better(value: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return how probable it is that each of some (rows) is larger than each (columns).

    Args:
        value: their expectations.
        covariance: how their errors go together.
    """
    marginal = np.diag(covariance)
    variance = np.maximum(marginal[:, None] + marginal[None, :] - 2.0 * covariance, MIN_VARIANCE)
    return probability_below((value[:, None] - value[None, :]) / np.sqrt(variance))


def log_metric(
    correction: LatencyPredictor, rows: pd.DataFrame, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithm of a metric, more being better, and the covariance of its errors.

    A request takes its time to the first token and that of all others, so that the throughput's
    error is theirs, weighted by their shares of the request; both errors count as independent.
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
        weights = {target: np.full(len(rows), float(target == metric)) for target in TARGETS}
    errors = correction.covariances(rows)
    return value, sum(
        (errors[target] * np.outer(weights[target], weights[target]) for target in TARGETS),
        np.zeros((len(rows), len(rows))),
    )
