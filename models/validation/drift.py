"""Drift: whether fresh measurements agree with a predictor's held-out errors.

There are three checks, each at significance 5 %:

- coverage: 90 % of fresh measurements should be in their intervals. Runs of one problem have
  correlated errors, so they count as fewer (design effect; Kish, Survey Sampling, 1965);
- bias: the median of log(measured / predicted) should be zero within its interval, or within the
  limit that the hold-outs' errors imply for this number of problems;
- repeats: runs that were also in training should take as long as before.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binom, norm

from foretune.collect.timing import median_interval
from foretune.datasets.runs import newest_runs
from foretune.datasets.schema import validate
from foretune.models.conformal import CONFIDENCE
from foretune.models.plausibility import drop_implausible
from foretune.models.predictor import Predictor
from foretune.models.repeats import NO_MATCH, matching_rows
from foretune.models.splits import task_numbers
from foretune.models.targets import Target, measured_rows, present_targets, usable_rows
from foretune.values import percent

SIGNIFICANCE = 0.05  # probability that a check fails without drift
MIN_BIAS = 0.02  # a smaller shift is not worth retraining, even if significant
MIN_REPEATS = 6  # fewer have no 95 % interval of their median
_MEDIAN_SD = np.sqrt(np.pi / 2)
"""Standard deviation of a median over that of a mean, for normal errors."""


@dataclass(frozen=True)
class Drift:
    """Comparison of fresh measurements with the hold-outs. Shares and changes are fractions.

    ``coverage`` is the share of measurements in their 90 % interval, ``min_coverage`` the least
    that is not significant. ``expected_error`` is the median error expected from the hold-outs'
    errors; it is larger where these rows' intervals are wider. ``bias`` is the median of measured
    over predicted, less 1; ``bias_limit`` is the limit from the hold-outs for this number of
    problems, at least `MIN_BIAS`. ``repeats`` rows repeat runs of training; ``change`` is their
    median change, with its 95 % interval. ``reasons`` say why the predictor has drifted, if it has.
    """

    target: Target
    rows: int
    problems: int
    coverage: float
    min_coverage: float
    median_error: float
    expected_error: float
    bias: float
    bias_limit: float
    repeats: int
    change: float
    change_low: float
    change_high: float
    reasons: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``ok`` or ``drifted``."""
        return "drifted" if self.reasons else "ok"


def check_drift(predictor: Predictor, fresh: pd.DataFrame) -> dict[Target, Drift]:
    """Return the comparison for every target that ``fresh`` has.

    ``fresh`` is a run table measured after training. More problems detect smaller drift. Use random
    configurations, or ones measured before: configurations chosen because they are predicted fast
    are slower than predicted, even without drift. Raises RunTableError if a row is impossible,
    PredictorError if the runs are of another kernel, or fewer than five succeeded.
    """
    fresh = validate(fresh).reset_index(drop=True)
    predictor.require_same_kernel(fresh)
    fresh = newest_runs(drop_implausible(predictor.declared_family, fresh)).reset_index(drop=True)
    present = present_targets(fresh)
    known = [t for t in predictor.targets_ if t in present] or list(predictor.targets_)
    return {t: _drift(predictor, usable_rows(t, fresh), t) for t in known}


def _drift(predictor: Predictor, rows: pd.DataFrame, target: Target) -> Drift:
    predicted, truth = predictor.predict(rows), rows[target].to_numpy(float)
    value, low, high = (predicted[f"{target}{end}"].to_numpy() for end in ("", "_low", "_high"))
    log_errors, groups = np.log(truth / value), task_numbers(rows)
    inside, problems = (truth >= low) & (truth <= high), len(np.unique(groups))
    coverage, min_coverage = float(inside.mean()), _min_coverage(inside.astype(float), groups)
    devices = rows["device"].astype(str).unique()
    # Fresh rows may be harder than the hold-outs, or outside the training range.
    width = float(np.median(np.log(high / low)) / 2.0 / norm.ppf((1 + CONFIDENCE) / 2))
    spread = max(width, *(predictor.log_spread(target, device) for device in devices))
    if not any((target, device) in predictor.calibration_.corrections for device in devices):
        spread /= predictor.targets_[target].interval.caution
    # All rows of a problem may share an error with the hold-outs' spread.
    shared = norm.ppf(1 - SIGNIFICANCE / 2) * _MEDIAN_SD * spread / np.sqrt(problems)
    limit, bias = float(max(shared, np.log1p(MIN_BIAS))), float(np.median(log_errors))
    log_changes = _log_changes(predictor.measured_runs(), rows, target)
    change, change_low, change_high = np.nan, -np.inf, np.inf
    if len(log_changes):
        change = float(np.median(log_changes))
    if len(log_changes) >= MIN_REPEATS:
        change_low, change_high = median_interval(log_changes)
    reasons = []
    if coverage < min_coverage:
        reasons.append(
            f"{percent(coverage)} of {len(rows)} measurements are in their 90 % interval, "
            f"at least {percent(min_coverage)} are expected"
        )
    lowest, highest = median_interval(log_errors)
    if (lowest > 0 or highest < 0) and abs(bias) > limit:
        reasons.append(
            f"measurements are {_describe_shift(bias)} predictions, the hold-outs' limit is "
            f"{percent(float(np.expm1(limit)))}"
        )
    if (change_low > 0 or change_high < 0) and abs(change) > np.log1p(MIN_BIAS):
        reasons.append(
            f"{len(log_changes)} runs that are also in training are {_describe_shift(change)} "
            "their earlier value"
        )
    return Drift(
        target,
        len(rows),
        problems,
        coverage,
        min_coverage,
        median_error=float(np.median(np.abs(np.expm1(-log_errors)))),
        expected_error=float(np.expm1(spread * norm.ppf(0.75))),
        bias=float(np.expm1(bias)),
        bias_limit=float(np.expm1(limit)),
        repeats=len(log_changes),
        change=float(np.expm1(change)),
        change_low=float(np.expm1(change_low)),
        change_high=float(np.expm1(change_high)),
        reasons=tuple(reasons),
    )


def _min_coverage(inside: np.ndarray, groups: np.ndarray) -> float:
    n = max(1, round(len(inside) / _design_effect(inside, groups)))
    return float(binom.ppf(SIGNIFICANCE, n, CONFIDENCE)) / n


def _design_effect(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the number of rows that count as one, from the correlation within groups.

    1 + (m − 1) ρ, with ρ the intraclass correlation by analysis of variance. A single group counts
    as one row, because its correlation cannot be estimated.
    """
    names, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    n, k = len(values), len(names)
    if k == 1:
        return float(n)
    if n == k:
        return 1.0
    means = np.bincount(codes, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum() / (k - 1))
    within = float(((values - means[codes]) ** 2).sum() / (n - k))
    size = (n - (sizes**2).sum() / n) / (k - 1)
    total = between + (size - 1) * within
    correlation = float(np.clip((between - within) / total, 0.0, 1.0)) if total > 0 else 0.0
    return 1.0 + (n / k - 1.0) * correlation


def _log_changes(known: pd.DataFrame, rows: pd.DataFrame, target: Target) -> np.ndarray:
    """Return log(fresh / known) of the rows that are also in ``known``."""
    known = measured_rows(target, newest_runs(known))
    match = matching_rows(known, rows)
    repeated = match != NO_MATCH
    before = known[target].to_numpy(float)[match[repeated]]
    return np.log(rows[target].to_numpy(float)[repeated] / before)


def _describe_shift(log_ratio: float) -> str:
    side = "above" if log_ratio > 0 else "below"
    return f"{percent(abs(float(np.expm1(log_ratio))))} {side}"
