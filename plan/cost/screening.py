"""Screens measured operators for impossible rows.

Three kinds of rows are dropped and counted: times below the hardware's limit; times that contradict
their curve by falling as the load grows; and formats whose times are copies of another's. A narrow
format that is far slower than the same operator in 16 bits was measured with an untuned kernel: its
time is capped, and counted too.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

TOO_FAST = "faster than the hardware allows"
NON_MONOTONIC = "inconsistent with times at other loads"
DUPLICATED = "copied from another format"
SLOW_FORMAT = "slower than in 16 bits, and capped"
MAX_TIME_RATIO = 2.0
"""Maximum ratio of a time to that at a larger load.

Kernel switches and tile quantization explain smaller ratios. Chosen on tables of an H100, an A100
and an L40S, most of which lose less than 0.6 % of their rows. Screening does not change predictor
errors; at 1.5, errors grow, as valid rows are dropped.
"""
MAX_FORMAT_RATIO = 2.0
"""Maximum ratio of a time to that in 16 bits; beyond it, the latter counts."""
QUANTIZE_MS = 0.015
"""Time that converting the inputs may take on top; most of the time of the smallest operators."""
WIDE_FORMAT = "bf16"
MIN_EQUAL_SHARE = 0.5
"""Share of equal times in two formats above which one is a copy."""
MIN_SHARED_ROWS = 20
EQUAL_TOLERANCE = 1e-9


class RejectedRows(NamedTuple):
    """Number of rows dropped from a table, by reason."""

    kernel: str
    system: str
    engine: str
    reason: str
    rows: int


def describe_rejected(rejected: Sequence[RejectedRows]) -> str:
    """Return the dropped rows by reason in one line; empty if none."""
    counts: dict[str, dict[str, int]] = {}
    for one in rejected:
        rows_by_kernel = counts.setdefault(one.reason, {})
        rows_by_kernel[one.kernel] = rows_by_kernel.get(one.kernel, 0) + one.rows
    parts = []
    for reason, rows_by_kernel in counts.items():
        kernels = ", ".join(f"{kernel} {rows:,}" for kernel, rows in rows_by_kernel.items())
        parts.append(f"{sum(rows_by_kernel.values()):,} {reason} ({kernels})")
    return "; ".join(parts)


def non_monotonic_rows(rows: pd.DataFrame, load: str, others: Sequence[str]) -> np.ndarray:
    """Return which rows contradict their curve.

    Rows are dropped until no time exceeds `MAX_TIME_RATIO` times one at a larger load; the row with
    most conflicts goes first. ``load`` is the column along which times should grow; rows of a curve
    agree in the ``others``.
    """
    rejected = np.zeros(len(rows), dtype=bool)
    curves = rows.groupby(list(others), sort=False, dropna=False).ngroup().to_numpy()
    order = np.lexsort((-rows[load].to_numpy(dtype=float), curves))  # the largest load first
    ms = pd.Series(rows["time_ms"].to_numpy(dtype=float)[order])
    sorted_curves = curves[order]
    min_at_larger_load = ms.groupby(sorted_curves).cummin().groupby(sorted_curves).shift(1)
    for curve in np.unique(sorted_curves[(ms > MAX_TIME_RATIO * min_at_larger_load).to_numpy()]):
        here = order[sorted_curves == curve][::-1]
        times = rows["time_ms"].to_numpy(dtype=float)[here]
        rejected[here[_contradicting(times)]] = True
    return rejected


def _contradicting(ms: np.ndarray) -> np.ndarray:
    """Return which times of a curve, ordered by load, are dropped."""
    conflicts = np.triu(ms[:, None] > MAX_TIME_RATIO * ms[None, :], 1)
    rejected = np.zeros(len(ms), dtype=bool)
    while conflicts.any():
        worst = int(np.argmax(conflicts.sum(axis=0) + conflicts.sum(axis=1)))
        rejected[worst] = True
        conflicts[worst, :] = conflicts[:, worst] = False
    return rejected


def duplicated_formats(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> list[str]:
    """Return formats whose rows are copies of another format's.

    If two formats are equal, the one with fewer rows is returned. ``columns`` identify an operator
    apart from its format.
    """
    found: list[str] = []
    names = formats.value_counts().index if formats.nunique() > 1 else ()
    times = {name: rows[formats == name].set_index(list(columns))["time_ms"] for name in names}
    for one, other in combinations(names, 2):
        both = pd.concat([times[one], times[other]], axis=1, join="inner").to_numpy(dtype=float)
        equal = np.abs(both[:, 0] / both[:, 1] - 1.0) < EQUAL_TOLERANCE
        if len(both) >= MIN_SHARED_ROWS and equal.mean() >= MIN_EQUAL_SHARE and other not in found:
            found.append(str(other))
    return found


def capped_times(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> np.ndarray:
    """Return the times of rows, those of slow formats replaced by the time in `WIDE_FORMAT`.

    ``columns`` identify an operator apart from its format.
    """
    ms = rows["time_ms"].to_numpy(dtype=float)
    wide = rows["time_ms"].where(formats == WIDE_FORMAT)
    wide_ms = wide.groupby([rows[c] for c in columns], dropna=False).transform("min").to_numpy()
    return np.where(ms > MAX_FORMAT_RATIO * wide_ms + QUANTIZE_MS, wide_ms, ms)
