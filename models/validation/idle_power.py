"""Finds power that was sampled while the board was idle, though the kernel kept it busy.

Power near the lowest of the device is explained by little work. It is not if the kernel reached a
good share of the roofline: then it was sampled after the kernel had ended.
"""

import numpy as np
import pandas as pd

from foretune.family import Family
from foretune.features import row_cost, row_roofline_ms
from foretune.models.targets import POWER_LIMIT

IDLE_SHARE = 0.06
"""Maximum power at idle, as a share of the way from the device's lowest power to its limit."""
MAX_LOWEST_SHARE = 0.4
"""If the lowest power is a larger share of the limit, no row may be of an idle board."""
BUSY_SHARE = 0.2
"""Minimum share of the roofline's rate that no idle board reaches."""
SHORT_MS = 0.03
"""Shorter launches leave the board idle in between, as long as it takes to start the next."""
OVERHEAD_MS, EFFICIENCY = 0.05, 0.5
"""Assumed of rows without a time: the launch, and the share of the roofline's rate."""


def is_idle_power(family: Family | None, metered: pd.DataFrame) -> np.ndarray:
    """Return which rows have an idle board's ``power_w`` though they are busy.

    Without a limit of power, the highest power of the device stands for it. Without a ``family``,
    nothing is known of the work, so no row is.
    """
    if family is None or metered.empty:
        return np.zeros(len(metered), dtype=bool)
    power_w, device = metered["power_w"].astype(float), metered["device"].astype(str)
    lowest = power_w.groupby(device).transform("min")
    limit = power_w.groupby(device).transform("max")
    if (column := f"device.{POWER_LIMIT}") in metered:
        limit = metered[column].fillna(limit)
    idle = (power_w <= lowest + IDLE_SHARE * (limit - lowest)) & (lowest < MAX_LOWEST_SHARE * limit)
    short = metered["time_ms"].astype(float) < SHORT_MS
    return np.asarray(idle & ~short & (_busy_share(family, metered) > BUSY_SHARE))


def _busy_share(family: Family, rows: pd.DataFrame) -> np.ndarray:
    """Return the share of the roofline's rate that rows reach, NaN if unknown.

    Without peak rates, the highest rates of the device stand for them.
    """
    roofline_ms, time_ms = row_roofline_ms(family, rows), rows["time_ms"].to_numpy(float)
    assumed_ms = OVERHEAD_MS + roofline_ms / EFFICIENCY
    share = roofline_ms / np.where(np.isnan(time_ms), assumed_ms, time_ms)
    cost = row_cost(family, rows)
    rates = pd.DataFrame({"flops": cost.flops / time_ms, "bytes": cost.bytes_moved / time_ms})
    highest = rates.groupby(rows["device"].astype(str).to_numpy()).transform("max")
    return np.where(np.isnan(share), (rates / highest).max(axis=1), share)
