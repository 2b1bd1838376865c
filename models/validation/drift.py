"""Drift: whether fresh measurements agree with a predictor's held-out errors.

There are three checks, each at significance 5 %:

- coverage: 90 % of fresh measurements should be in their intervals. Runs of one problem have
  correlated errors, so they count as fewer (design effect; Kish, Survey Sampling, 1965);
- bias: the median of log(measured / predicted) should be zero within its interval, or within the
  limit that the hold-outs' errors imply for this number of problems;
- repeats: runs that were also in training should take as long as before.
"""

from dataclasses import dataclass, replace
from typing import Self

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
from foretune.models.target_names import Target
from foretune.models.targets import measured_rows, present_targets, usable_rows
from foretune.values import percent

SIGNIFICANCE = 0.05
"""Probability that a check fails without drift."""
MIN_BIAS = 0.02
"""A smaller shift is not worth retraining, even if significant."""
MIN_REPEATS = 6
"""Fewer have no 95 % interval of their median."""
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
    valid = validate(fresh).reset_index(drop=True)
    predictor.require_same_kernel(valid)
    plausible = drop_implausible(predictor.declared_family, valid)
    newest = newest_runs(plausible).reset_index(drop=True)
    present = present_targets(newest)
    targets = [target for target in predictor.targets_ if target in present]
    if not targets:
        targets = list(predictor.targets_)
    return {target: _drift(predictor, usable_rows(target, newest), target) for target in targets}


def _drift(predictor: Predictor, rows: pd.DataFrame, target: Target) -> Drift:
    """Check the measurements of one target."""
    predicted = predictor.predict(rows)
    truth = rows[target].to_numpy(float)
    log_errors = np.log(truth / predicted[target].to_numpy())
    problems = task_numbers(rows)
    n_problems = len(np.unique(problems))

    # 1. Coverage.
    low = predicted[f"{target}_low"].to_numpy()
    high = predicted[f"{target}_high"].to_numpy()
    is_inside = (truth >= low) & (truth <= high)
    coverage = float(is_inside.mean())
    min_coverage = _min_coverage(is_inside.astype(float), problems)

    # 2. Bias. All rows of a problem may share an error with the hold-outs' spread.
    log_width = float(np.median(np.log(high / low)))
    spread = _expected_spread(predictor, rows, target, log_width)
    shared_error = norm.ppf(1 - SIGNIFICANCE / 2) * _MEDIAN_SD * spread / np.sqrt(n_problems)
    limit = float(max(shared_error, np.log1p(MIN_BIAS)))
    bias = _Shift.of_median(log_errors)

    # 3. Repeats.
    log_changes = _log_changes(predictor.measured_runs(), rows, target)
    change = _Shift(np.nan, -np.inf, np.inf)
    if len(log_changes) >= MIN_REPEATS:
        change = _Shift.of_median(log_changes)
    elif len(log_changes):
        change = replace(change, median=float(np.median(log_changes)))

    reasons = []
    if coverage < min_coverage:
        reasons.append(
            f"{percent(coverage)} of {len(rows)} measurements are in their 90 % interval, "
            f"at least {percent(min_coverage)} are expected"
        )
    if bias.exceeds(limit):
        reasons.append(
            f"measurements are {bias} predictions, the hold-outs' limit is "
            f"{percent(float(np.expm1(limit)))}"
        )
    if change.exceeds(np.log1p(MIN_BIAS)):
        reasons.append(
            f"{len(log_changes)} runs that are also in training are {change} their earlier value"
        )
    return Drift(
        target=target,
        rows=len(rows),
        problems=n_problems,
        coverage=coverage,
        min_coverage=min_coverage,
        median_error=float(np.median(np.abs(np.expm1(-log_errors)))),
        expected_error=float(np.expm1(spread * norm.ppf(0.75))),
        bias=float(np.expm1(bias.median)),
        bias_limit=float(np.expm1(limit)),
        repeats=len(log_changes),
        change=float(np.expm1(change.median)),
        change_low=float(np.expm1(change.low)),
        change_high=float(np.expm1(change.high)),
        reasons=tuple(reasons),
    )


@dataclass(frozen=True)
class _Shift:
    """The median of log ratios, with its 95 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of_median(cls, log_ratios: np.ndarray) -> Self:
        low, high = median_interval(log_ratios)
        return cls(float(np.median(log_ratios)), low, high)

    def exceeds(self, limit: float) -> bool:
        """Return whether it is significant, and larger than ``limit``."""
        is_significant = self.low > 0 or self.high < 0
        return bool(is_significant and abs(self.median) > limit)

    def __str__(self) -> str:
        side = "above" if self.median > 0 else "below"
        return f"{percent(abs(float(np.expm1(self.median))))} {side}"


def _expected_spread(
    predictor: Predictor, rows: pd.DataFrame, target: Target, log_width: float
) -> float:
    """Return the standard deviation to expect of log errors.

    ``log_width`` is that of the rows' intervals. They may be wider than the hold-outs': the rows
    may be harder, or outside the training range.
    """
    devices = rows["device"].astype(str).unique()
    of_intervals = log_width / 2.0 / norm.ppf((1 + CONFIDENCE) / 2)
    of_holdouts = [predictor.log_spread(target, device) for device in devices]
    spread = max(of_intervals, *of_holdouts)
    is_calibrated = any((target, d) in predictor.calibration_.corrections for d in devices)
    if not is_calibrated:
        spread /= predictor.targets_[target].interval.caution
    return float(spread)


def _min_coverage(is_inside: np.ndarray, problems: np.ndarray) -> float:
    """Return the least coverage that is not significantly below the level of the intervals."""
    n_independent = max(1, round(len(is_inside) / _design_effect(is_inside, problems)))
    return float(binom.ppf(SIGNIFICANCE, n_independent, CONFIDENCE)) / n_independent


def _design_effect(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the number of rows that count as one, from the correlation within groups.

    1 + (m − 1) ρ, with ρ the intraclass correlation by analysis of variance. A single group counts
    as one row, because its correlation cannot be estimated.
    """
    names, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    n_rows = len(values)
    n_groups = len(names)
    if n_groups == 1:
        return float(n_rows)
    if n_rows == n_groups:
        return 1.0

    # Mean squares between and within groups.
    means = np.bincount(codes, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum() / (n_groups - 1))
    within = float(((values - means[codes]) ** 2).sum() / (n_rows - n_groups))

    # Of groups of different sizes, this one counts.
    size = (n_rows - (sizes**2).sum() / n_rows) / (n_groups - 1)
    total = between + (size - 1) * within
    correlation = 0.0
    if total > 0:
        correlation = float(np.clip((between - within) / total, 0.0, 1.0))
    return 1.0 + (n_rows / n_groups - 1.0) * correlation


def _log_changes(known: pd.DataFrame, rows: pd.DataFrame, target: Target) -> np.ndarray:
    """Return log(fresh / known) of the rows that are also in ``known``."""
    measured = measured_rows(target, newest_runs(known))
    match = matching_rows(measured, rows)
    is_repeated = match != NO_MATCH
    before = measured[target].to_numpy(float)[match[is_repeated]]
    return np.log(rows[target].to_numpy(float)[is_repeated] / before)
