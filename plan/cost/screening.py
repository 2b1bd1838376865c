"""Screening measured operators before they are believed: what tables hold that cannot be true.

Three kinds of rows are left out, and counted: times below what the hardware allows; times that fall
much when the load grows, where one row contradicts the others of its curve; and formats whose times
are those of another one, copied.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

TOO_FAST = "faster than the hardware allows"
NON_MONOTONIC = "that contradict times at other loads"
DUPLICATED = "copied from another format"
MAX_TIME_RATIO = 2.0
"""How many times as long as at a larger load a time may be: kernels that change between sizes, and
tiles that are filled badly, explain less. Chosen on tables of an H100, an A100 and an L40S, where
most lose less than 0.6 % of their rows. Predictors err as much with screening as without; at 1.5
they err more, for what is dropped then is true."""
MIN_EQUAL_SHARE = 0.5
"""Share of the operators measured in two formats whose times are equal, from which on one format
is a copy."""
MIN_SHARED_ROWS = 20
EQUAL_TOLERANCE = 1e-9


class RejectedRows(NamedTuple):
    """Rows that were left out of a table.

    Attributes:
        kernel, system, engine: of the table.
        reason: why.
        rows: how many.
    """

    kernel: str
    system: str
    engine: str
    reason: str
    rows: int


def describe_rejected(rejected: Sequence[RejectedRows]) -> str:
    """Return what was left out in one line, by reason; empty if nothing was."""
    counts: dict[str, dict[str, int]] = {}
    for one in rejected:
        rows_by_kernel = counts.setdefault(one.reason, {})
        rows_by_kernel[one.kernel] = rows_by_kernel.get(one.kernel, 0) + one.rows
    return "; ".join(
        f"{sum(rows_by_kernel.values()):,} {reason} ({', '.join(f'{k} {n:,}' for k, n in rows_by_kernel.items())})"
        for reason, rows_by_kernel in counts.items()
    )


def non_monotonic_rows(rows: pd.DataFrame, load: str, others: Sequence[str]) -> np.ndarray:
    """Return which rows contradict their curve: removed until no time falls more than `FALL`.

    Of a curve, the row that contradicts most others is the first to go.

    Args:
        rows: with the column ``time_ms``.
        load: column of the sizes along which a time should grow.
        others: columns that rows of a curve share.
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
    """Return which of a curve's times, by growing load, must go."""
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
    """Return formats whose times are those of another: of each two, the one with fewer rows.

    Args:
        rows: with the column ``time_ms``.
        formats: of each row.
        columns: that say which operator a row is of, its formats apart.
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
