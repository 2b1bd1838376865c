"""Distinct problems: what a table's rows are drawn from, however many rows there are.

Rows of one problem, and of problems that hardly differ, err together: a thousand of them say no
more about a new problem than a few do. So what is learned of new problems counts problems.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array

SAME = 1.05
"""Sizes within this factor are near-duplicates."""
FEW = 50
"""With fewer distinct problems, a law is trusted more than what is learned."""
MANY_LIKE, NEARLY_ALL = 4, 10
"""So many problems to each that is distinct: many are near-duplicates; nearly all are."""


def distinct_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, the same for problems that are the same or nearly so."""
    arrays = [as_array(rows[column]) for column in columns_of(rows, "problem")]
    number, every = _together(map(_codes, arrays), len(rows)), exact_problems(rows)
    if int(every.max(initial=0)) < MANY_LIKE * int(number.max(initial=0) + 1):
        return number
    # A bound between ranges of sizes splits what lies on it: here that would be most of the rows.
    _, first = np.unique(every, return_index=True)
    kinds = _together((_codes(v) for v in arrays if not _has_octaves(v)), len(rows))
    sizes = [np.log(v[first]) for v in arrays if _has_octaves(v)]
    like = _led(np.column_stack([*sizes, kinds[first] * 10.0 * np.log(SAME)]))
    return np.asarray(pd.factorize(like[every])[0])


def exact_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, the same for problems that are the same."""
    arrays = (as_array(rows[column]) for column in columns_of(rows, "problem"))
    return _together((pd.factorize(values)[0] for values in arrays), len(rows))


def are_few(problems: np.ndarray, exact: np.ndarray | None = None) -> bool:
    """Return whether there are several distinct problems, and few, or nearly all are duplicates.

    Args:
        problems: of `distinct_problems`.
        exact: of `exact_problems`.
    """
    count = int(problems.max(initial=-1)) + 1
    every = 0 if exact is None else int(exact.max(initial=-1)) + 1
    return count >= 2 and (count < FEW or every >= NEARLY_ALL * count)


def _together(columns: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Return an integer per row, the same for rows that agree in all columns of integers."""
    number = np.zeros(rows, dtype=np.int64)
    for codes in columns:
        number = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)[0]
    return number


def _codes(values: np.ndarray) -> np.ndarray:
    return pd.factorize(values)[0] if values.dtype.kind == "U" else _near(values)


def _has_octaves(values: np.ndarray) -> bool:
    return values.dtype.kind != "U" and bool((values > 0).all())


def _led(points: np.ndarray) -> np.ndarray:
    """Return per point the number of the first one that is within `SAME` of it in all columns."""
    number = np.full(len(points), -1)
    left, leaders = np.lexsort(points.T[::-1]), 0
    while len(left):
        near = (np.abs(points[left] - points[left[0]]) <= np.log(SAME) + 1e-12).all(axis=1)
        number[left[near]] = leaders
        left, leaders = left[~near], leaders + 1
    return number


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
