"""Plausibility: times that no hardware can have are wrong units, not fast kernels."""

import warnings

import numpy as np
import pandas as pd

from foretune.errors import DataWarning, PredictorError
from foretune.family import Family
from foretune.features import row_roofline_ms

TOO_FAST = 30.0
"""Nothing runs so many times faster than its roofline: caches give ten at most."""
MAX_DROPPED_SHARE = 0.05
"""So small a share of impossible rows is left out; of more, the rest is not believed either."""
TOO_SLOW = 500.0
"""Half of all runs being so many times slower than the roofline means a unit 1000 times off."""
LONG_MS = 1.0
"""Only work that should take so long tells: short kernels are all overhead."""
MAX_LISTED_ROWS = 5
"""Rows that a message names."""


def drop_implausible(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` without the few that are faster than their device can be.

    Warns (`DataWarning`) of those. Rows go by their index.

    Raises:
        PredictorError: many are that fast, or most of the long ones far above the roofline.
    """
    if "time_ms" not in runs:
        return runs
    timed = runs[(runs["status"] == "ok") & runs["time_ms"].notna()]
    if timed.empty:
        return runs
    time_ms, roofline_ms = timed["time_ms"].to_numpy(float), row_roofline_ms(family, timed)
    ratio = time_ms / np.where(np.isfinite(roofline_ms), roofline_ms, np.nan)
    implausible = timed.index[ratio < 1.0 / TOO_FAST]
    if len(implausible):
        found = (
            f"{format_rows(implausible)} of {len(ratio):,} runs: over {TOO_FAST:.0f} times faster than their "
            f"device allows ({timed['time_ms'][implausible[0]]:g} ms is the first)"
        )
        if len(implausible) >= MAX_DROPPED_SHARE * len(ratio):
            raise PredictorError(f"{found}: are these milliseconds, and is this the device?")
        warnings.warn(f"{found}: left out", DataWarning, stacklevel=3)
    long_ratio = ratio[roofline_ms > LONG_MS]
    if len(long_ratio) >= 5 and np.median(long_ratio) > TOO_SLOW:
        raise PredictorError(
            f"half of the long runs are over {TOO_SLOW:.0f} times slower than their roofline: "
            "are these milliseconds, and is this the device?"
        )
    return runs.drop(index=implausible)


def format_rows(rows: "pd.Index | np.ndarray") -> str:
    """Return the first few of ``rows``, and how many more there are, as text."""
    first = ", ".join(map(str, rows[:MAX_LISTED_ROWS]))
    more = f" and {len(rows) - MAX_LISTED_ROWS:,} more" if len(rows) > MAX_LISTED_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {first}{more}"
