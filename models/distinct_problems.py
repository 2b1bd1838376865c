"""Which problems of a table are equal, or nearly equal."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array

SAME_SIZE_FACTOR = 1.05
"""Sizes within this factor are near-duplicates."""
MIN_PROBLEMS = 50
"""Below this number of distinct problems, laws are preferred to learned models."""
MANY_DUPLICATES = 4
"""Problems per distinct problem: many are near-duplicates."""
MOSTLY_DUPLICATES = 10
"""Problems per distinct problem: almost only near-duplicates."""
NO_CLUSTER = -1
"""The cluster of a point that is not in one yet."""
KIND_DISTANCE = 10.0
"""Distance of different texts (or signs), in factors of `SAME_SIZE_FACTOR`: never the same."""


def distinct_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, equal for equal or nearly equal problems."""
    columns = [as_array(rows[column]) for column in columns_of(rows, "problem")]
    binned = _combine_codes(map(_codes, columns), len(rows))
    exact = exact_problems(rows)
    n_binned = int(binned.max(initial=0)) + 1
    if int(exact.max(initial=0)) < MANY_DUPLICATES * n_binned:
        return binned

    # Bins would split sizes at their bounds; here that would be most rows, so cluster instead.
    _, first_row = np.unique(exact, return_index=True)
    log_sizes = [np.log(values[first_row]) for values in columns if _has_octaves(values)]
    other_codes = (_codes(values) for values in columns if not _has_octaves(values))
    kind = _combine_codes(other_codes, len(rows))[first_row]
    points = np.column_stack([*log_sizes, kind * KIND_DISTANCE * np.log(SAME_SIZE_FACTOR)])
    cluster_of_problem = _leader_clusters(points)
    return np.asarray(pd.factorize(cluster_of_problem[exact])[0])


def exact_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, equal for equal problems."""
    arrays = (as_array(rows[column]) for column in columns_of(rows, "problem"))
    return _combine_codes((pd.factorize(values)[0] for values in arrays), len(rows))


def has_few_problems(problems: np.ndarray, exact: np.ndarray | None = None) -> bool:
    """Return whether there are several distinct problems, but few, or nearly all are duplicates.

    ``problems`` are from `distinct_problems`, ``exact`` from `exact_problems`.
    """
    n_distinct = int(problems.max(initial=-1)) + 1
    if n_distinct < 2:
        return False
    n_exact = 0 if exact is None else int(exact.max(initial=-1)) + 1
    return n_distinct < MIN_PROBLEMS or n_exact >= MOSTLY_DUPLICATES * n_distinct


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
    order = np.lexsort(points.T[::-1])
    reach = np.log(SAME_SIZE_FACTOR) + 1e-12
    sorted_points = points[order]
    ends = np.searchsorted(sorted_points[:, 0], sorted_points[:, 0] + reach + 1e-9, side="right")

    cluster = np.full(len(points), NO_CLUSTER)
    n_clusters = 0
    for i, end in enumerate(ends.tolist()):
        if cluster[i] != NO_CLUSTER:
            continue
        free = i + np.flatnonzero(cluster[i:end] == NO_CLUSTER)
        is_near = (np.abs(sorted_points[free] - sorted_points[i]) <= reach).all(axis=1)
        cluster[free[is_near]] = n_clusters
        n_clusters += 1

    in_given_order = np.empty_like(cluster)
    in_given_order[order] = cluster
    return in_given_order


def _size_codes(values: np.ndarray) -> np.ndarray:
    """Return an integer per value: its bin, which spans a factor of `SAME_SIZE_FACTOR`.

    Zero and negative values are equal only if identical; NaN is -1.
    """
    distinct = np.unique(values[~np.isnan(values)])
    if not len(distinct):
        return np.full(len(values), -1)

    code_of_distinct = np.zeros(len(distinct), dtype=np.int64)
    bin_start = np.nan
    code = -1
    for i, value in enumerate(distinct.tolist()):
        if not 0.0 < bin_start <= value <= SAME_SIZE_FACTOR * bin_start:
            bin_start = value
            code += 1
        code_of_distinct[i] = code

    index = np.searchsorted(distinct, values)
    is_known = index < len(distinct)  # NaN is sorted behind all
    return np.where(is_known, code_of_distinct[np.minimum(index, len(distinct) - 1)], -1)
