"""Probability that one deployment beats another, given correlated errors.

Two layouts of one model share most of their error. Comparing their intervals as if they were
independent would make every comparison a draw.
"""

from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.correction import TARGETS, LatencyPredictor
from foretune.plan.serve.deployments.probability import probability_below

Metric = Literal["tokens_per_s", "tpot_ms", "ttft_ms"]
MIN_VARIANCE = 1e-12


def probability_better(
    correction: LatencyPredictor, rows: pd.DataFrame, index: int, metric: Metric = "tokens_per_s"
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
    correction: LatencyPredictor, rows: pd.DataFrame, metric: Metric
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
        weights = {target: np.full(len(rows), float(target == metric)) for target in TARGETS}
    errors = correction.covariances(rows)
    return value, sum(
        (errors[target] * np.outer(weights[target], weights[target]) for target in TARGETS),
        np.zeros((len(rows), len(rows))),
    )
