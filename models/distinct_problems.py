"""Which problems of a table are equal, or nearly equal."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array

SAME_SIZE_FACTOR = 1.05  # sizes within this factor are near-duplicates
MIN_PROBLEMS = 50  # below this number of distinct problems, laws are preferred to learned models
MANY_DUPLICATES, MOSTLY_DUPLICATES = 4, 10
"""Problems per distinct problem: many near-duplicates, and almost only near-duplicates."""


def distinct_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, equal for equal or nearly equal problems."""
    arrays = [as_array(rows[column]) for column in columns_of(rows, "problem")]
    number, exact = _combine_codes(map(_codes, arrays), len(rows)), exact_problems(rows)
    if int(exact.max(initial=0)) < MANY_DUPLICATES * int(number.max(initial=0) + 1):
        return number
    # Bins would split sizes at their bounds; here that would be most rows, so cluster instead.
    _, first = np.unique(exact, return_index=True)
    kinds = _combine_codes((_codes(v) for v in arrays if not _has_octaves(v)), len(rows))
    sizes = [np.log(v[first]) for v in arrays if _has_octaves(v)]
    points = np.column_stack([*sizes, kinds[first] * 10.0 * np.log(SAME_SIZE_FACTOR)])
    return np.asarray(pd.factorize(_leader_clusters(points)[exact])[0])


def exact_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, equal for equal problems."""
    arrays = (as_array(rows[column]) for column in columns_of(rows, "problem"))
    return _combine_codes((pd.factorize(values)[0] for values in arrays), len(rows))


def has_few_problems(problems: np.ndarray, exact: np.ndarray | None = None) -> bool:
    """Return whether there are several distinct problems, but few, or nearly all are duplicates.

    ``problems`` are from `distinct_problems`, ``exact`` from `exact_problems`.
    """
    count = int(problems.max(initial=-1)) + 1
    exact_count = 0 if exact is None else int(exact.max(initial=-1)) + 1
    return count >= 2 and (count < MIN_PROBLEMS or exact_count >= MOSTLY_DUPLICATES * count)


def _combine_codes(columns: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Return an integer per row, equal for rows with equal codes in all columns."""
    number = np.zeros(rows, dtype=np.int64)
    for codes in columns:
        number = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)[0]
    return number


def _codes(values: np.ndarray) -> np.ndarray:
    return pd.factorize(values)[0] if values.dtype.kind == "U" else _size_codes(values)


def _has_octaves(values: np.ndarray) -> bool:
    return values.dtype.kind != "U" and bool((values > 0).all())


def _leader_clusters(points: np.ndarray) -> np.ndarray:
    """Return the cluster of each point: of the first one within `SAME_SIZE_FACTOR` in all columns.

    Points are taken in order of the first column, so that only the next few can be near.
    """
    order, reach = np.lexsort(points.T[::-1]), np.log(SAME_SIZE_FACTOR) + 1e-12
    points, found, leaders = points[order], np.full(len(points), -1), 0
    ends = np.searchsorted(points[:, 0], points[:, 0] + reach + 1e-9, side="right")
    for i, end in enumerate(ends.tolist()):
        if found[i] < 0:
            free = i + np.flatnonzero(found[i:end] < 0)
            found[free[(np.abs(points[free] - points[i]) <= reach).all(axis=1)]] = leaders
            leaders += 1
    number = np.empty_like(found)
    number[order] = found
    return number


def _size_codes(values: np.ndarray) -> np.ndarray:
    """Return an integer per value: its bin, which spans a factor of `SAME_SIZE_FACTOR`.

    Zero and negative values are equal only if identical; NaN is -1.
    """
    distinct = np.unique(values[~np.isnan(values)])
    codes = np.zeros(len(distinct), dtype=np.int64)
    start, code = np.nan, -1
    for i, value in enumerate(distinct.tolist()):
        if not 0.0 < start <= value <= SAME_SIZE_FACTOR * start:
            start, code = value, code + 1
        codes[i] = code
    index = np.searchsorted(distinct, values)
    known = index < len(distinct)
    return np.where(known, codes[np.minimum(index, len(distinct) - 1)] if len(distinct) else 0, -1)
