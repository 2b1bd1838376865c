"""Metrics of predictions against measurements, and the error of a perfect prediction (noise)."""

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import comb
from scipy.stats import ConstantInputWarning, spearmanr

MIN_SAMPLES = 4
"""Minimum repeats of a run to estimate its noise."""
MIN_ROWS = 5
"""Minimum runs with repeats to estimate the noise floor."""
Metric = Callable[[np.ndarray, np.ndarray], float]
"""Maps truth and prediction of one group to a number."""
METRICS = (
    "r2",
    "r2_log",
    "mape",
    "median_ape",
    "p95_ape",
    "spearman",
    "top1_regret",
    "top5_regret",
    "coverage90",
    "width90",
)


def score(
    truth: np.ndarray,
    prediction: np.ndarray,
    groups: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, float]:
    """Return every metric; percentages as fractions, NaN where undefined.

    Values are positive. ``groups`` has one integer per row; ranks and regrets are within groups,
    then averaged. The top-k regret compares the best of the k rows predicted best with the true
    best; ties count as random draws. ``interval`` has the ends of the 90 % interval, low and high.
    Without it, ``coverage90`` and ``width90`` (median half-width on the log scale, as a fraction)
    are undefined.
    """
    error = np.abs(prediction - truth) / truth
    coverage = width = np.nan
    if interval is not None:
        low, high = interval
        coverage = float(((low <= truth) & (truth <= high)).mean())
        width = float(np.expm1(np.median(np.log(high / low)) / 2.0))
    return {
        "r2": _r2(truth, prediction),
        "r2_log": _r2(np.log(truth), np.log(prediction)),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p95_ape": float(np.quantile(error, 0.95)),
        "spearman": _by_group(truth, prediction, groups, _spearman),
        "top1_regret": _by_group(truth, prediction, groups, _regret_of_top(1)),
        "top5_regret": _by_group(truth, prediction, groups, _regret_of_top(5)),
        "coverage90": coverage,
        "width90": width,
        "rows": float(len(truth)),
        "groups": float(len(np.unique(groups))),
    }


def _r2(truth: np.ndarray, prediction: np.ndarray) -> float:
    if truth.min() == truth.max():
        return np.nan
    total = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((truth - prediction) ** 2).sum()) / total


def _by_group(
    truth: np.ndarray, prediction: np.ndarray, groups: np.ndarray, metric: Metric
) -> float:
    """Return the mean of a metric over the groups with several rows; NaN if there are none."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    values = []
    for rows in np.split(order, starts):
        if len(rows) > 1:
            value = metric(truth[rows], prediction[rows])
            if np.isfinite(value):
                values.append(value)
    return float(np.mean(values)) if values else np.nan


def _spearman(truth: np.ndarray, prediction: np.ndarray) -> float:
    with warnings.catch_warnings(action="ignore", category=ConstantInputWarning):
        return float(spearmanr(truth, prediction).statistic)


def _regret_of_top(k: int) -> Metric:
    def regret(truth: np.ndarray, prediction: np.ndarray) -> float:
        if np.isnan(prediction).any():
            return np.nan

        # The k rows predicted best: some for certain, the others drawn among equal predictions.
        last_of_top = np.partition(prediction, min(k, len(prediction)) - 1)[:k].max()
        certain = truth[prediction < last_of_top]
        ties = np.sort(truth[prediction == last_of_top])
        n_drawn = k - len(certain)

        # The chance that each of the ties is the best that is drawn.
        if n_drawn < len(ties):
            n_worse = len(ties) - 1 - np.arange(len(ties))
            chance = comb(n_worse, n_drawn - 1) / comb(len(ties), n_drawn)
        else:
            chance = np.eye(1, len(ties))[0]  # all are drawn
        best = np.minimum(ties, certain.min(initial=np.inf))
        return float(chance @ best / truth.min() - 1.0)

    return regret


def noise_floor(runs: pd.DataFrame) -> float:
    """Return the error that a perfect prediction of ``time_ms`` would show.

    It is estimated from repeats: the medians of a run's even and odd samples differ only by noise.
    The median of all samples has half the variance of either, so its error is half of their
    difference. Returns the mean over runs as a fraction; NaN without repeats. Noise between
    sessions (clocks, temperature, other versions) is not included, so this is a lower bound.
    """
    if "time_ms_samples" not in runs:
        return float("nan")
    floors = []
    for samples in runs.loc[runs["status"] == "ok", "time_ms_samples"]:
        if samples is None or np.ndim(samples) == 0 or len(samples) < MIN_SAMPLES:
            continue
        even = np.median(samples[0::2])
        odd = np.median(samples[1::2])
        floors.append(abs(even - odd) / (even + odd))
    return float(np.mean(floors)) if len(floors) >= MIN_ROWS else float("nan")
