"""Checks runs before training: warns about suspect rows and columns.

They are other units, unknown formats, sizes that are missing, columns that were computed from the
target, and near-duplicates. Nothing is left out.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import DataWarning
from foretune.family import Family
from foretune.features.arrays import Rows, as_array
from foretune.features.families.formats import FORMATS
from foretune.features.roofline import row_roofline_ms, with_rates
from foretune.kernel import Kernel
from foretune.models.distinct_problems import (
    MANY_DUPLICATES,
    MIN_PROBLEMS,
    MOSTLY_DUPLICATES,
    distinct_problems,
    exact_problems,
)
from foretune.models.row_lists import format_rows
from foretune.models.target_names import Target
from foretune.models.targets import measured_rows

MIN_ROWS = 20
"""Minimum rows to show a pattern."""
MAX_ROWS = 2000
"""Rows sampled from a table."""
NEIGHBORS = 9
"""Neighbors whose median estimates a row; it outvotes wrong ones."""
OTHER_UNIT_FACTORS = (300.0, 3000.0)
"""Factors between units that differ by 1000."""
GAP_FACTORS = (30.0, 300.0)
"""A gap that no such unit causes."""
FAR_FACTOR = 10.0
"""Factor that rows in another unit are off at least, before neighbors are asked."""
MIN_OUTLIERS = 3
"""Minimum rows for another unit."""
MAX_CATEGORIES = 20
"""Texts of a column that are told apart."""
TEXT_DISTANCE = 2.0
"""Distance of rows with different texts, in standard deviations of a number."""
OVERHEAD_MS = 0.006
"""Overhead of a launch, relevant for the smallest work."""
LEAK_ERROR = 2e-3
"""Minimum log error of any column known before the measurement."""
LEAK_ERROR_RATIO = 0.1
"""Ratio of the errors with and without a leaking column."""
LEAK_DISTINCT_SHARE = 0.5
"""Minimum distinct values of a leaking column, as a share of those of the target."""
MAX_INTEGER = 2**62
"""Larger numbers are not compared as integers."""
GROUPS = ("problem", "config", "device")
FORMAT_SUFFIXES = (".format", "kv_format", ".dtype", "mat1_dtype", "mat2_dtype")
"""Suffixes of number-format columns."""


def warn_about_data(
    family: Family | None, runs: pd.DataFrame, targets: Iterable[Target], extra: Sequence[str] = ()
) -> None:
    """Warn (`DataWarning`) about suspect rows and columns, by row index.

    ``extra`` are additional column groups that are used.
    """
    texts = [*_unknown_formats(family, runs), *_without_roofline(family, runs)]
    for target in targets:
        rows = measured_rows(target, runs, renumber=False)
        if len(rows) >= MIN_ROWS:
            texts += [*_mixed_units(family, rows, target), *_leaks(rows, target, extra)]
    texts += _near_duplicates(runs)
    for text in texts:
        warnings.warn(text, DataWarning, stacklevel=3)  # at the call of `Predictor.fit`


def _unknown_formats(family: Family | None, runs: pd.DataFrame) -> Iterator[str]:
    columns = [*columns_of(runs, "problem"), *columns_of(runs, "config")]
    if family is None or isinstance(family, Kernel):  # a kernel knows its formats
        return
    for column in columns:
        if not column.endswith(FORMAT_SUFFIXES):
            continue
        values = as_array(runs[column])
        texts = set(values.tolist()) if values.dtype.kind == "U" else set()
        for name in sorted(texts - {*FORMATS, ""}):
            rows = runs.index[values == name]
            yield f"{column}={name} is an unknown format: {format_rows(rows)} count as 16 bits"


def _without_roofline(family: Family | None, runs: pd.DataFrame) -> Iterator[str]:
    unknown = np.isnan(row_roofline_ms(family, with_rates(family, Rows(runs))))
    if unknown.any() and not unknown.all():
        yield f"{format_rows(runs.index[unknown])} have no roofline: they lack a size"


def _mixed_units(family: Family | None, rows: pd.DataFrame, target: Target) -> Iterator[str]:
    """Yield the rows that are off by about 1000 from similar rows, if few or none are in between.

    The effect of sizes is removed first, because neighbors may be far away in a table of few
    problems. After that, similar rows are all rows or, if these scatter, the neighbors.
    """
    y = np.log(rows[target].to_numpy(float))
    X = _standardized_columns(rows)
    sampled = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]

    # 1. What sizes explain: a linear fit, or the roofline if most rows have one.
    terms = np.column_stack([np.ones(len(y)), X])
    explained = terms @ np.linalg.lstsq(terms[sampled], y[sampled], rcond=None)[0]
    if target == "time_ms":
        roofline = np.log(row_roofline_ms(family, rows) + OVERHEAD_MS)
        if np.isfinite(roofline).sum() > len(y) / 2:
            explained = roofline
    deviations = np.nan_to_num(y - explained - np.nanmedian(y - explained))

    # 2. Rows that are far from all others; else rows that are far from their neighbors.
    is_outlier = _outliers(deviations)
    if not is_outlier.any():
        from_neighbors = _neighbor_deviations(X, deviations, known=sampled, wanted=sampled)
        if _outliers(from_neighbors).any():
            far_rows = np.flatnonzero(np.abs(deviations) > np.log(FAR_FACTOR))
            from_neighbors = np.zeros(len(y))
            from_neighbors[far_rows] = _neighbor_deviations(
                X, deviations, known=sampled, wanted=far_rows
            )
            is_outlier = _outliers(from_neighbors)
    if is_outlier.any():
        yield (
            f"{target} of {format_rows(rows.index[is_outlier])} is about 1000 times off similar "
            "runs: is their unit different?"
        )


def _outliers(deviations: np.ndarray) -> np.ndarray:
    """Return which log deviations indicate another unit: several, after a gap."""
    for sign in (1.0, -1.0):
        is_outlier = _is_within(sign * deviations, OTHER_UNIT_FACTORS)
        is_in_gap = _is_within(sign * deviations, GAP_FACTORS)
        if is_outlier.sum() >= MIN_OUTLIERS and is_outlier.sum() > 2 * is_in_gap.sum():
            return is_outlier
    return np.zeros(len(deviations), dtype=bool)


def _is_within(deviations: np.ndarray, factors: tuple[float, float]) -> np.ndarray:
    low, high = factors
    return np.asarray((deviations >= np.log(low)) & (deviations < np.log(high)))


def _neighbor_deviations(
    X: np.ndarray, y: np.ndarray, *, known: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Return the deviation of ``y`` of rows ``wanted`` from the median of their known neighbors."""
    n_chunks = -(-len(wanted) // MAX_ROWS)
    squares_of_known = (X[known] ** 2).sum(1)
    deviations = []
    for chunk in np.array_split(wanted, n_chunks):
        distances = squares_of_known - 2.0 * X[chunk] @ X[known].T  # less the chunk's own squares
        distances[chunk[:, None] == known] = np.inf  # a row is not its neighbor
        nearest = np.argpartition(distances, NEIGHBORS, axis=1)[:, :NEIGHBORS]
        deviations.append(y[chunk] - np.median(y[known][nearest], axis=1))
    return np.concatenate(deviations)


def _standardized_columns(rows: pd.DataFrame) -> np.ndarray:
    """Return standardized numbers (positive ones as log2) and indicators of text."""
    columns = [np.zeros(len(rows))]
    for column in [name for group in GROUPS for name in columns_of(rows, group)]:
        values = as_array(rows[column])
        if values.dtype.kind == "U":
            codes = pd.factorize(values)[0]
            n_texts = min(codes.max() + 1, MAX_CATEGORIES)
            columns += [TEXT_DISTANCE * (codes == code) for code in range(n_texts)]
            continue
        numbers = np.nan_to_num(values)
        if np.ptp(numbers) > 0:
            if (numbers > 0).all():
                numbers = np.log2(numbers)
            columns.append((numbers - numbers.mean()) / (numbers.std() or 1.0))
    return np.column_stack(columns).astype(np.float32)


def _leaks(rows: pd.DataFrame, target: Target, extra: Sequence[str]) -> Iterator[str]:
    """Yield the columns that predict the target too closely, so are probably computed from it.

    They have nearly as many distinct values, and the target is a smooth function of them, or a
    product of powers of them and of sizes.
    """
    y = np.log(rows[target].to_numpy(float))
    numbers = _numeric_columns(rows, extra)
    min_distinct = max(LEAK_DISTINCT_SHARE * len(np.unique(y)), MIN_ROWS)
    suspects = {
        column: values
        for column, values in numbers.items()
        if len(np.unique(values)) >= min_distinct and not _look_like_sizes(values)
    }
    log_sizes = [
        np.log(values)
        for column, values in numbers.items()
        if column not in suspects and (values > 0).all()
    ]
    sampled = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]
    sampled_y = y[sampled]
    for column, values in suspects.items():
        # A product of powers: linear in logarithms, with and without the column.
        without_column = [np.ones(len(y)), *log_sizes]
        with_column = [*without_column, *([np.log(values)] if (values > 0).all() else [])]
        error_without = _fit_error(without_column, sampled, sampled_y)
        error_with = _fit_error(with_column, sampled, sampled_y)

        # A smooth function: the line between the next smaller and the next larger value.
        order = np.argsort(values[sampled])
        interpolation_errors = _interpolation_errors(values[sampled][order], sampled_y[order])
        error = min(error_with, np.median(np.abs(interpolation_errors)))
        if error < min(LEAK_ERROR * np.std(y), LEAK_ERROR_RATIO * error_without):
            yield (
                f"{column} predicts {target} suspiciously well: if it was computed from {target}, "
                "drop the column, because new runs do not have it"
            )


def _numeric_columns(rows: pd.DataFrame, extra: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the columns of numbers without gaps."""
    numbers = {}
    for group in (*GROUPS, *extra):
        for column in columns_of(rows, group):
            values = as_array(rows[column])
            if values.dtype.kind != "U" and np.isfinite(values).all():
                numbers[column] = values
    return numbers


def _fit_error(terms: list[np.ndarray], sampled: np.ndarray, y: np.ndarray) -> float:
    """Return the median absolute error of a linear fit to the sampled rows."""
    X = np.column_stack(terms)[sampled]
    errors = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    return float(np.median(np.abs(errors)))


def _interpolation_errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error of every other ``y`` from the line between its neighbors."""
    is_new = np.r_[True, np.diff(x) > 0]
    x = x[is_new]
    y = y[is_new]
    return np.asarray(y[1::2] - np.interp(x[1::2], x[::2], y[::2]))


def _near_duplicates(runs: pd.DataFrame) -> Iterator[str]:
    """Yield the rows of problems that are nearly equal to others, if they are many."""
    distinct = distinct_problems(runs)
    exact = exact_problems(runs)
    n_distinct = int(distinct.max(initial=-1)) + 1
    n_exact = int(exact.max(initial=-1)) + 1
    duplicates = MANY_DUPLICATES if n_distinct < MIN_PROBLEMS else MOSTLY_DUPLICATES
    if n_exact >= max(MIN_ROWS, duplicates * n_distinct):
        _, first_rows = np.unique(exact, return_index=True)
        first_rows.sort()
        is_copy = pd.Series(distinct[first_rows]).duplicated().to_numpy()
        yield (
            f"only {n_distinct:,} of {n_exact:,} problems differ, the others are near-duplicates "
            f"({format_rows(runs.index[first_rows[is_copy]])}), which teach little about new "
            "problems"
        )


def _look_like_sizes(values: np.ndarray) -> bool:
    """Return whether the numbers have a common divisor, like chosen sizes and unlike results."""
    above_one = values[values > 1]
    if not len(above_one) or (values != np.round(values)).any():
        return False
    if above_one.max() >= MAX_INTEGER:
        return False
    return bool(np.gcd.reduce(above_one.astype(np.int64)) > 1)
