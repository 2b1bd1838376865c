"""Checks runs before training: leaves out rows that no device allows.

No table is rejected: a few impossible rows are dropped; many are kept, with a warning.
"""

import warnings

import numpy as np
import pandas as pd

from foretune.errors import DataWarning
from foretune.family import Family
from foretune.features.roofline import row_roofline_ms
from foretune.models.idle_power import drop_idle_power
from foretune.models.row_lists import format_rows
from foretune.models.targets import measured_rows

TOO_FAST = 30.0
"""Minimum factor below the roofline that is impossible: caches give at most ten."""
MAX_DROPPED_SHARE = 0.05
"""Maximum share of impossible rows that are dropped; if there are more, a warning asks."""
TOO_SLOW = 500.0
"""If half of all runs are this factor above the roofline, the unit is off by 1000."""
LONG_MS = 1.0
"""Minimum roofline time of checked runs; shorter ones are mostly overhead."""
MIN_LONG_ROWS = 5
"""Minimum long runs for the unit to be asked for."""
ASK = "are these milliseconds, and is the device correct?"
FIT_CALL = 4
"""Stack level of the call of `Predictor.fit`, seen from the functions that warn."""


def drop_implausible(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Drop the few rows that are faster than their device allows, and the power of idle boards.

    Warns (`DataWarning`) about them, by row index. Rows are kept if many are too fast, or most of
    the long ones are far above the roofline; then the warning asks for their unit.
    """
    possible = _drop_impossible_times(family, runs)
    return drop_idle_power(family, possible, stacklevel=FIT_CALL)


def _drop_impossible_times(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Drop times below the roofline, if few; ask about the unit otherwise."""
    timed = measured_rows("time_ms", runs, renumber=False)
    if timed.empty:
        return runs
    time_ms = timed["time_ms"].to_numpy(float)
    roofline_ms = row_roofline_ms(family, timed)
    ratio = time_ms / np.where(np.isfinite(roofline_ms), roofline_ms, np.nan)

    too_fast = timed.index[ratio < 1.0 / TOO_FAST]
    are_many = len(too_fast) >= MAX_DROPPED_SHARE * len(ratio)
    if len(too_fast):
        warnings.warn(
            f"{format_rows(too_fast)} of {len(ratio):,} runs: over {TOO_FAST:.0f} times faster "
            f"than their device allows ({runs['time_ms'][too_fast[0]]:g} ms is the first): "
            + (ASK if are_many else "left out"),
            DataWarning,
            stacklevel=FIT_CALL,
        )
    long_ratio = ratio[roofline_ms > LONG_MS]
    if len(long_ratio) >= MIN_LONG_ROWS and np.median(long_ratio) > TOO_SLOW:
        warnings.warn(
            f"half of the long runs are over {TOO_SLOW:g} times slower than the roofline: {ASK}",
            DataWarning,
            stacklevel=FIT_CALL,
        )
    return runs if are_many else runs.drop(index=too_fast)
