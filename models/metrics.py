"""Metrics: how far predictions are from measurements."""

import warnings

import numpy as np
from scipy.stats import ConstantInputWarning, spearmanr

METRICS = (
    "r2", "r2_log", "mape", "median_ape", "p95_ape", "spearman", "top1_regret", "coverage90",
)  # fmt: skip


def score(
    truth: np.ndarray,
    prediction: np.ndarray,
    groups: np.ndarray,
    half_widths: np.ndarray | None = None,
) -> dict[str, float]:
    """Return every metric; percentages as fractions, NaN where undefined.

    Args:
        truth: measured values, positive.
        prediction: predicted values, positive.
        groups: one integer per row; ranks and regrets are within groups, then averaged.
        half_widths: of the 90 % interval on the log scale; None leaves ``coverage90`` undefined.
    """
    error = np.abs(prediction - truth) / truth
    log_error = np.abs(np.log(prediction / truth))
    return {
        "r2": _r2(truth, prediction),
        "r2_log": _r2(np.log(truth), np.log(prediction)),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p95_ape": float(np.quantile(error, 0.95)),
        "spearman": _by_group(truth, prediction, groups, _spearman),
        "top1_regret": _by_group(truth, prediction, groups, _top1_regret),
        "coverage90": np.nan if half_widths is None else float((log_error <= half_widths).mean()),
        "rows": float(len(truth)),
        "groups": float(len(np.unique(groups))),
    }


def _r2(truth: np.ndarray, prediction: np.ndarray) -> float:
    if truth.min() == truth.max():
        return np.nan
    total = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((truth - prediction) ** 2).sum()) / total


def _by_group(truth: np.ndarray, prediction: np.ndarray, groups: np.ndarray, measure) -> float:  # type: ignore[no-untyped-def]
    values = [
        measure(truth[groups == g], prediction[groups == g])
        for g in np.unique(groups)
        if (groups == g).sum() > 1
    ]
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else np.nan


def _spearman(truth: np.ndarray, prediction: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        return float(spearmanr(truth, prediction).statistic)


def _top1_regret(truth: np.ndarray, prediction: np.ndarray) -> float:
    return float(truth[np.argmin(prediction)] / truth.min() - 1.0)
