"""Screening of measured tables: which rows are dropped, and which times are capped.

Three kinds of rows are dropped and counted: times below the hardware's limit; times that contradict
their curve by falling as the load grows; and formats whose times are copies of another's. A narrow
format that is far slower than the same operator in 16 bits was measured with an untuned kernel: its
time is capped, and also counted.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

TOO_FAST = "faster than the hardware allows"
NON_MONOTONIC = "inconsistent with times at other loads"
DUPLICATED = "copied from another format"
CAPPED = ", and capped"
SLOW_FORMAT = f"slower than in 16 bits{CAPPED}"
MAX_TIME_RATIO = 2.0
"""Maximum ratio of a time to that at a larger load.

Kernel switches and tile quantization explain smaller ratios. Chosen on tables of an H100, an A100
and an L40S, most of which lose less than 0.6 % of their rows. Screening does not change predictor
errors; at 1.5, errors grow, as valid rows are dropped.
"""
MAX_FORMAT_RATIO = 2.0
"""Maximum ratio of a time to that in 16 bits; beyond it, the time in 16 bits is used."""
QUANTIZE_MS = 0.015
"""Additional time to convert the inputs, most of the time of the smallest operators."""
WIDE_FORMAT = "bf16"
MIN_EQUAL_SHARE = 0.5
"""Share of equal times in two formats above which one is a copy."""
MIN_SHARED_ROWS = 20
"""Operators in both formats that are needed to compare them."""
EQUAL_TOLERANCE = 1e-9


class RejectedRows(NamedTuple):
    """Number of rows dropped from a table, or capped, by reason."""

    kernel: str
    system: str
    engine: str
    reason: str
    rows: int


def describe_rejected(rejected: Sequence[RejectedRows]) -> str:
    """Return the dropped and the capped rows by reason in one line; empty if none."""
    counts: dict[str, dict[str, int]] = {}
    for entry in rejected:
        rows_by_kernel = counts.setdefault(entry.reason, {})
        rows_by_kernel[entry.kernel] = rows_by_kernel.get(entry.kernel, 0) + entry.rows

    dropped: list[str] = []
    capped: list[str] = []
    for reason, rows_by_kernel in counts.items():
        total = sum(rows_by_kernel.values())
        kernels = ", ".join(f"{kernel} {rows:,}" for kernel, rows in rows_by_kernel.items())
        part = f"{total:,} {reason.removesuffix(CAPPED)} ({kernels})"
        if reason.endswith(CAPPED):
            capped.append(f"capped: {part}")
        else:
            dropped.append(part)

    if not dropped:
        return "; ".join(capped)
    return "; ".join([f"left out of measured tables: {'; '.join(dropped)}", *capped])


def non_monotonic_rows(rows: pd.DataFrame, load: str, others: Sequence[str]) -> np.ndarray:
    """Return the rows that contradict their curve.

    Rows are dropped until no time exceeds a time at a larger load `MAX_TIME_RATIO` times; the row
    with most conflicts goes first. ``load`` is the column along which times should grow; rows of a
    curve agree in the ``others``.
    """
    times = rows["time_ms"].to_numpy(dtype=float)
    curves = rows.groupby(list(others), sort=False, dropna=False).ngroup().to_numpy()

    # 1. Find the curves with a conflict: a time far above the shortest one at a larger load.
    largest_load_first = np.lexsort((-rows[load].to_numpy(dtype=float), curves))
    sorted_curves = curves[largest_load_first]
    sorted_times = pd.Series(times[largest_load_first])
    shortest_so_far = sorted_times.groupby(sorted_curves).cummin()
    min_at_larger_load = shortest_so_far.groupby(sorted_curves).shift(1)
    conflicting = (sorted_times > MAX_TIME_RATIO * min_at_larger_load).to_numpy()

    # 2. In each, drop the row with most conflicts, until there are none.
    rejected = np.zeros(len(rows), dtype=bool)
    for curve in np.unique(sorted_curves[conflicting]):
        smallest_load_first = largest_load_first[sorted_curves == curve][::-1]
        curve_times = times[smallest_load_first]
        conflicts = np.triu(curve_times[:, None] > MAX_TIME_RATIO * curve_times[None, :], 1)
        while conflicts.any():
            worst = int(np.argmax(conflicts.sum(axis=0) + conflicts.sum(axis=1)))
            rejected[smallest_load_first[worst]] = True
            conflicts[worst, :] = False
            conflicts[:, worst] = False
    return rejected


def duplicated_formats(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> list[str]:
    """Return formats whose rows are copies of another format's.

    If two formats are equal, the one with fewer rows is returned. ``columns`` identify an operator
    apart from its format.
    """
    if formats.nunique() < 2:
        return []
    most_rows_first = formats.value_counts().index
    times_of_format = {
        name: rows[formats == name].set_index(list(columns))["time_ms"] for name in most_rows_first
    }

    copies: list[str] = []
    for original, other in combinations(most_rows_first, 2):
        # Operators that were measured in both formats.
        pair = [times_of_format[original], times_of_format[other]]
        both = pd.concat(pair, axis=1, join="inner").to_numpy(dtype=float)
        if len(both) < MIN_SHARED_ROWS or other in copies:
            continue
        equal = np.abs(both[:, 0] / both[:, 1] - 1.0) < EQUAL_TOLERANCE
        if equal.mean() >= MIN_EQUAL_SHARE:
            copies.append(str(other))
    return copies


def capped_times(
    rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]
) -> np.ndarray:
    """Return times, slow formats' capped as in `WIDE_FORMAT`; ``columns`` identify an operator."""
    ms = rows["time_ms"].to_numpy(dtype=float)
    only_wide = rows["time_ms"].where(formats == WIDE_FORMAT)
    operators = only_wide.groupby([rows[column] for column in columns], dropna=False)
    wide_ms = operators.transform("min").to_numpy()
    return np.where(ms > MAX_FORMAT_RATIO * wide_ms + QUANTIZE_MS, wide_ms, ms)
