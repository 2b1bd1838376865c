"""Finds power that was sampled on an idle board, and leaves it out.

A kernel that reaches a good share of the roofline is busy. Of a kernel whose work is unknown, the
launches that are long enough to be metered count as busy. That may be wrong for some, so its power
is not learned at all if a third of the rows is idle.
"""

import warnings

import numpy as np
import pandas as pd

from foretune.errors import DataWarning
from foretune.family import Family
from foretune.features.roofline import row_cost, row_roofline_ms
from foretune.models.row_lists import format_rows
from foretune.models.targets import POWER_LIMIT, measured_rows

MIN_ROWS = 20
"""Minimum other rows for power to be learned."""
IDLE_SHARE = 0.06
"""Maximum power at idle, as a share of the way from the device's lowest power to its limit."""
MAX_LOWEST_SHARE = 0.4
"""If the lowest power is a larger share of the limit, no row counts as idle."""
MIN_LOWEST_SHARE = 0.02
"""If the lowest power is a smaller share of the limit, it is no board's: none idles so low."""
BUSY_SHARE = 0.2
"""Minimum share of the roofline's rate that no idle board reaches."""
SHORT_MS = 0.03
"""During shorter launches, the board idles between launches, so its power is low."""
MAX_IDLE_SHARE = 1.0 / 3.0
"""With unknown work: the share of idle rows at which power is not learned."""
IDLE_OVERHEAD_MS = 0.05
EFFICIENCY = 0.5
"""Assumptions for rows without a time: launch overhead, and share of the roofline's rate."""


def drop_idle_power(family: Family | None, runs: pd.DataFrame, stacklevel: int) -> pd.DataFrame:
    """Empty the power of idle rows; of all rows if few others remain, or of unknown work many are.

    Warns (`DataWarning`) about them at ``stacklevel``.
    """
    metered = measured_rows("power_w", runs, renumber=False)
    idle = metered.index[is_idle_power(family, metered)]
    if not len(idle):
        return runs

    n_others = len(metered) - len(idle)
    idle_share = len(idle) / len(metered)
    too_few_others = n_others < MIN_ROWS
    too_many_idle = family is None and idle_share >= MAX_IDLE_SHARE
    is_refused = too_few_others or too_many_idle
    text = (
        f"power_w of {format_rows(idle)} ({len(idle):,} of {len(metered):,}) is that of an idle "
        f"board ({runs['power_w'][idle[0]]:g} W is the first) under load: was it sampled after the "
        "kernel? Left out"
    )
    if too_few_others:
        text += f", and power is not learned: {n_others} other rows are too few"
    elif too_many_idle:
        text += f", and power is not learned: {idle_share:.0%} of the rows are idle"
    warnings.warn(text, DataWarning, stacklevel=stacklevel)

    # Rows without a time that have lost their power say nothing more, unless they failed.
    is_emptied = runs.index.isin(idle) | is_refused
    columns = [column for column in ("power_w", "energy_mj") if column in runs]
    emptied = runs.assign(**{column: runs[column].mask(is_emptied) for column in columns})
    return emptied[~is_emptied | runs["time_ms"].notna() | (runs["status"] != "ok")]


def is_idle_power(family: Family | None, metered: pd.DataFrame) -> np.ndarray:
    """Return which rows have the ``power_w`` of an idle board although they are busy.

    A kernel with little work may draw nearly the lowest power of its device. If it reached a good
    share of the roofline, the power was sampled after the kernel had ended. If the power limit is
    unknown, the highest power of the device is used. Without a ``family``, every launch of at least
    30 µs counts as busy.
    """
    if metered.empty:
        return np.zeros(len(metered), dtype=bool)
    power_w = metered["power_w"].astype(float)
    power_of_device = power_w.groupby(metered["device"].astype(str))
    lowest = power_of_device.transform("min")
    limit = power_of_device.transform("max")
    limit_column = f"device.{POWER_LIMIT}"
    if limit_column in metered:
        limit = metered[limit_column].fillna(limit)

    is_low = power_w <= lowest + IDLE_SHARE * (limit - lowest)
    may_be_idle = (lowest < MAX_LOWEST_SHARE * limit) & (lowest > MIN_LOWEST_SHARE * limit)
    time_ms = metered["time_ms"].astype(float)
    if family is None:
        is_busy = time_ms >= SHORT_MS
    else:
        is_busy = (_busy_share(family, metered) > BUSY_SHARE) & ~(time_ms < SHORT_MS)
    return np.asarray(is_low & may_be_idle & is_busy)


def _busy_share(family: Family, rows: pd.DataFrame) -> np.ndarray:
    """Return the share of the roofline's rate that rows reach, NaN if unknown.

    Without peak rates, the highest rates on the device are used.
    """
    roofline_ms = row_roofline_ms(family, rows)
    time_ms = rows["time_ms"].to_numpy(float)
    assumed_ms = IDLE_OVERHEAD_MS + roofline_ms / EFFICIENCY
    share_of_roofline = roofline_ms / np.where(np.isnan(time_ms), assumed_ms, time_ms)

    cost = row_cost(family, rows)
    rates = pd.DataFrame({"flops": cost.flops / time_ms, "bytes": cost.bytes_moved / time_ms})
    highest = rates.groupby(rows["device"].astype(str).to_numpy()).transform("max")
    share_of_highest = (rates / highest).max(axis=1)
    return np.where(np.isnan(share_of_roofline), share_of_highest, share_of_roofline)
