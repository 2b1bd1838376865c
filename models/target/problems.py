"""Distinct problems: what a table's rows are drawn from, however many rows there are.

Rows of one problem, and of problems that hardly differ, err together: a thousand of them say no
more about a new problem than a few do. So what is learned of new problems counts problems.
"""

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array

SAME = 1.05
"""Sizes within this factor are near-duplicates."""
FEW = 50
"""With fewer distinct problems, a law is trusted more than what is learned."""


def distinct_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, the same for problems that are the same or nearly so."""
    number = np.zeros(len(rows), dtype=np.int64)
    for column in columns_of(rows, "problem"):
        values = as_array(rows[column])
        codes = pd.factorize(values)[0] if values.dtype.kind == "U" else _near(values)
        number = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)[0]
    return number


def are_few(problems: np.ndarray) -> bool:
    """Return whether there are several distinct problems, and few."""
    return 2 <= int(problems.max(initial=-1)) + 1 < FEW


def _near(values: np.ndarray) -> np.ndarray:
    """Return an integer per value: those of one begin at its smallest and end at `SAME` times it.

    Zero and negative values are the same if they are equal; NaN is -1.
    """
    distinct = np.unique(values[~np.isnan(values)])
    codes = np.zeros(len(distinct), dtype=np.int64)
    start, code = np.nan, -1
    for i, value in enumerate(distinct.tolist()):
        if not 0.0 < start <= value <= SAME * start:
            start, code = value, code + 1
        codes[i] = code
    place = np.searchsorted(distinct, values)
    known = place < len(distinct)
    return np.where(known, codes[np.minimum(place, len(distinct) - 1)] if len(distinct) else 0, -1)
