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
FALLING = "that contradict times at other loads"
COPIED = "copied from another format"
FALL = 2.0
"""How many times as long as at a larger load a time may be: kernels that change between sizes, and
tiles that are filled badly, explain less. Chosen on tables of an H100, an A100 and an L40S, where
most lose less than 0.6 % of their rows. Predictors err as much with screening as without; at 1.5
they err more, for what is dropped then is true."""
COPIES = 0.5
"""Share of the operators measured in two formats whose times are equal, from which on one format
is a copy."""
FEWEST_SHARED = 20
EQUAL = 1e-9


class Screened(NamedTuple):
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


def in_words(screened: Sequence[Screened]) -> str:
    """Return what was left out in one line, by reason; empty if nothing was."""
    counts: dict[str, dict[str, int]] = {}
    for one in screened:
        of = counts.setdefault(one.reason, {})
        of[one.kernel] = of.get(one.kernel, 0) + one.rows
    return "; ".join(
        f"{sum(of.values()):,} {reason} ({', '.join(f'{k} {n:,}' for k, n in of.items())})"
        for reason, of in counts.items()
    )


def falling(rows: pd.DataFrame, load: str, others: Sequence[str]) -> np.ndarray:
    """Return which rows contradict their curve: removed until no time falls more than `FALL`.

    Of a curve, the row that contradicts most others is the first to go.

    Args:
        rows: with the column ``time_ms``.
        load: column of the sizes along which a time should grow.
        others: columns that rows of a curve share.
    """
    gone = np.zeros(len(rows), dtype=bool)
    curves = rows.groupby(list(others), sort=False, dropna=False).ngroup().to_numpy()
    order = np.lexsort((-rows[load].to_numpy(dtype=float), curves))  # the largest load first
    ms = pd.Series(rows["time_ms"].to_numpy(dtype=float)[order])
    of = curves[order]
    least_of_larger = ms.groupby(of).cummin().groupby(of).shift(1)
    for curve in np.unique(of[(ms > FALL * least_of_larger).to_numpy()]):
        here = order[of == curve][::-1]
        times = rows["time_ms"].to_numpy(dtype=float)[here]
        gone[here[_contradicting(times)]] = True
    return gone


def _contradicting(ms: np.ndarray) -> np.ndarray:
    """Return which of a curve's times, by growing load, must go."""
    against = np.triu(ms[:, None] > FALL * ms[None, :], 1)
    gone = np.zeros(len(ms), dtype=bool)
    while against.any():
        worst = int(np.argmax(against.sum(axis=0) + against.sum(axis=1)))
        gone[worst] = True
        against[worst, :] = against[:, worst] = False
    return gone


def copied(rows: pd.DataFrame, formats: "pd.Series[str]", columns: Sequence[str]) -> list[str]:
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
        equal = np.abs(both[:, 0] / both[:, 1] - 1.0) < EQUAL
        if len(both) >= FEWEST_SHARED and equal.mean() >= COPIES and other not in found:
            found.append(str(other))
    return found
