"""Names rows in messages."""

import numpy as np
import pandas as pd

MAX_LISTED_ROWS = 5
"""Rows named in a message."""


def format_rows(rows: "pd.Index | np.ndarray") -> str:
    """Return the first few of ``rows`` and the number of others, as text."""
    noun = "rows" if len(rows) > 1 else "row"
    listed = ", ".join(map(str, rows[:MAX_LISTED_ROWS]))
    n_more = len(rows) - MAX_LISTED_ROWS
    more = f" and {n_more:,} more" if n_more > 0 else ""
    return f"{noun} {listed}{more}"
