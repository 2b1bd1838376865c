"""Drift: whether fresh measurements still look as a predictor's hold-outs did.

A machine's speed changes with drivers, firmware, cooling and neighbours; problems change with what
is deployed. Three checks tell, each against what chance allows (5 %):

- coverage: 90 % of fresh measurements should lie in their intervals. Runs of one problem err alike,
  so rows count as fewer than they are (design effect; Kish, Survey Sampling, 1965);
- bias: the median of log(measured / predicted) should be zero within its interval, or else within
  what errors of the hold-outs' size leave in a median over so few problems;
- repeats: configurations that training measured too should take as long as they did.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binom, norm

from foretune.collect.timing import median_interval
from foretune.datasets import newest_runs
from foretune.datasets.schema import validate
from foretune.models.interval import CONFIDENCE
from foretune.models.predictor import Predictor
from foretune.models.repeats import NO_MATCH, matching_rows
from foretune.models.targets import Target, present_targets, usable_rows
from foretune.models.validation.data_checks import drop_implausible
from foretune.models.validation.splits import task_numbers

SIGNIFICANCE = 0.05
"""How often each check may be wrong about fresh runs that are as the predictor expects."""
MIN_BIAS = 0.02
"""A smaller shift is not worth training again, however sure."""
MIN_REPEATS = 6
"""Fewer have no 95 % interval of their median."""
_MEDIAN_SD = np.sqrt(np.pi / 2)
"""A median's standard deviation over a mean's, of normal errors."""


@dataclass(frozen=True)
class Drift:
    """What fresh measurements say of one target. Shares and changes are fractions.

    Attributes:
        target: which.
        rows, problems: how many fresh ones there were.
        coverage: share of measurements in their 90 % interval.
        coverage_least: the least share that chance allows.
        median_error: median of how far predictions are off, whichever way.
        expected_error: what the hold-outs' spread (or these rows' intervals, if they are wider)
            leads to expect for it.
        bias: by how much measurements are above predictions (median).
        bias_limit: what hold-outs allow for so many problems; never less than `MIN_BIAS`.
        repeats: how many fresh rows training has the configuration of.
        change: by how much these take longer (or more power) than they did, median.
        change_low, change_high: its 95 % interval.
        reasons: why the predictor has drifted; none if it has not.
    """

    target: Target
    rows: int
    problems: int
    coverage: float
    coverage_least: float
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
    """Return for every target that ``fresh`` can tell of how it compares with the hold-outs.

    Args:
        predictor: fitted.
        fresh: a run table measured after training. The more problems, the smaller a drift shows.
            Best are configurations drawn at random or measured before: those chosen for being
            predicted fast are slower than that on average, drift or not.

    Raises:
        RunTableError: a row is impossible.
        PredictorError: the runs are of another kernel, or fewer than five succeeded.
    """
    fresh = validate(fresh)
    predictor.require_same_kernel(fresh)
    fresh = newest_runs(drop_implausible(predictor.features_.family, fresh)).reset_index(drop=True)
    present = present_targets(fresh)
    known = [t for t in predictor.targets_ if t in present] or list(predictor.targets_)
    return {t: _drift(predictor, usable_rows(t, fresh), t) for t in known}


def _drift(predictor: Predictor, rows: pd.DataFrame, target: Target) -> Drift:
    predicted = predictor.predict(rows)
    truth = rows[target].to_numpy(float)
    log_errors = np.log(truth / predicted[target].to_numpy())
    inside = (truth >= predicted[f"{target}_low"]) & (truth <= predicted[f"{target}_high"])
    groups = task_numbers(rows)
    problems = len(np.unique(groups))
    coverage = float(inside.mean())
    min_coverage = _min_coverage(inside.to_numpy(float), groups)
    holdout_spread = max(
        predictor.log_spread(target, d) for d in rows["device"].astype(str).unique()
    )
    spread = max(holdout_spread, _interval_spread(predicted, target))
    limit = _bias_limit(problems, spread)
    bias = float(np.median(log_errors))
    log_changes = _log_changes(predictor.measured_runs(), rows, target)
    low, high = (
        median_interval(log_changes) if len(log_changes) >= MIN_REPEATS else (-np.inf, np.inf)
    )
    change = float(np.median(log_changes)) if len(log_changes) else np.nan
    reasons = []
    if coverage < min_coverage:
        reasons.append(
            f"{_percent(coverage)} of {len(rows)} measurements lie in their 90 % interval, "
            f"chance allows {_percent(min_coverage)}"
        )
    lowest, highest = median_interval(log_errors)
    if (lowest > 0 or highest < 0) and abs(bias) > limit:
        reasons.append(
            f"measurements are {_describe_shift(bias)} predictions, hold-outs allow "
            f"{_percent(float(np.expm1(limit)))}"
        )
    if (low > 0 or high < 0) and abs(change) > np.log1p(MIN_BIAS):
        reasons.append(
            f"{len(log_changes)} runs that training had too are {_describe_shift(change)} what they were"
        )
    return Drift(
        target=target,
        rows=len(rows),
        problems=problems,
        coverage=coverage,
        coverage_least=min_coverage,
        median_error=float(np.median(np.abs(np.expm1(-log_errors)))),
        expected_error=float(np.expm1(spread * norm.ppf(0.75))),
        bias=float(np.expm1(bias)),
        bias_limit=float(np.expm1(limit)),
        repeats=len(log_changes),
        change=float(np.expm1(change)),
        change_low=float(np.expm1(low)),
        change_high=float(np.expm1(high)),
        reasons=tuple(reasons),
    )


def _min_coverage(inside: np.ndarray, groups: np.ndarray) -> float:
    """Return the least share inside that chance allows intervals that hold for 90 %."""
    n = max(1, round(len(inside) / _design_effect(inside, groups)))
    return float(binom.ppf(SIGNIFICANCE, n, CONFIDENCE)) / n


def _design_effect(values: np.ndarray, groups: np.ndarray) -> float:
    """Return how many rows count as one, from how alike those of a group are.

    1 + (m − 1) ρ with ρ the intraclass correlation by analysis of variance. With one group nothing
    tells how alike groups are, so all its rows count as one.
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


def _interval_spread(predicted: pd.DataFrame, target: Target) -> float:
    """Return the standard deviation of log errors that the rows' own intervals stand for.

    Fresh rows may be harder than the hold-outs, or outside the training range.
    """
    widths = np.log(predicted[f"{target}_high"] / predicted[f"{target}_low"]) / 2.0
    return float(widths.median() / norm.ppf((1 + CONFIDENCE) / 2))


def _bias_limit(problems: int, spread: float) -> float:
    """Return how large a median of log errors may be, however sure it is.

    What errors of the hold-outs' size leave in a median over ``problems``, should all rows of a
    problem share their error, but never less than `MIN_BIAS`.
    """
    shared = norm.ppf(1 - SIGNIFICANCE / 2) * _MEDIAN_SD * spread / np.sqrt(problems)
    return float(max(shared, np.log1p(MIN_BIAS)))


def _log_changes(known: pd.DataFrame, rows: pd.DataFrame, target: Target) -> np.ndarray:
    """Return log(fresh / known) of the rows that are among ``known`` too."""
    if target not in known:
        return np.empty(0)
    known = newest_runs(known)
    known = known[(known["status"] == "ok") & known[target].notna()]
    match = matching_rows(known, rows)
    repeated = match != NO_MATCH
    before = known[target].to_numpy(float)[match[repeated]]
    ratio: np.ndarray = np.log(rows[target].to_numpy(float)[repeated] / before)
    return ratio


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _describe_shift(log_ratio: float) -> str:
    side = "above" if log_ratio > 0 else "below"
    return f"{_percent(abs(float(np.expm1(log_ratio))))} {side}"
