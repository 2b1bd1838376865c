"""Plausibility: times that no hardware can have are wrong units, not fast kernels."""

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.family import Family
from foretune.features import row_roofline_ms

TOO_FAST = 100.0
"""Nothing runs so many times faster than its roofline: caches give ten at most."""
TOO_SLOW = 500.0
"""Half of all runs being so many times slower than the roofline means a unit 1000 times off."""
LONG_MS = 1.0
"""Only work that should take so long tells: short kernels are all overhead."""


def check_times(family: Family | None, runs: pd.DataFrame) -> None:
    """Do nothing if the times of ``runs`` can be milliseconds.

    Raises:
        PredictorError: some are far below the roofline, or most of the long ones far above.
    """
    if "time_ms" not in runs:
        return
    runs = runs[(runs["status"] == "ok") & runs["time_ms"].notna()]
    if runs.empty:
        return
    ratio = runs["time_ms"].to_numpy(float) / row_roofline_ms(family, runs)
    fast = np.flatnonzero(ratio < 1.0 / TOO_FAST)
    if len(fast):
        raise PredictorError(
            f"{len(fast)} of {len(ratio)} runs are over {TOO_FAST:.0f} times faster than their "
            f"device allows (row {runs.index[fast[0]]}: {runs['time_ms'].iloc[fast[0]]:g} ms): "
            "are these milliseconds, and is this the device?"
        )
    long = ratio[ratio * LONG_MS < runs["time_ms"].to_numpy(float)]
    if len(long) >= 5 and np.median(long) > TOO_SLOW:
        raise PredictorError(
            f"half of the long runs are over {TOO_SLOW:.0f} times slower than their roofline: "
            "are these milliseconds, and is this the device?"
        )
