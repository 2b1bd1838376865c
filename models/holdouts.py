"""Hold-outs, distinct problems."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array
from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import Axis

SHARE = 0.25
"""Of the rows, in one mixed hold-out, roughly."""
MAX_SHARE = 0.45


def holdout_kinds(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return sets of axes whose combination may be new.

    Single axes; the problem's together, and those without one (a new matrix at known batch sizes);
    all.
    """
    all_axes = tuple(range(len(axes)))
    problem = tuple(i for i in all_axes if axes[i].column.startswith("problem."))
    singles = [(i,) for i in all_axes]
    without = [tuple(j for j in problem if j != i) for i in problem] if len(problem) > 2 else []
    return list(dict.fromkeys([*singles, *without, problem or all_axes, all_axes]))


def mixed_holdouts(
    positions: AxisPositions, kinds: list[tuple[int, ...]], count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return which rows to hold out together, ``count`` times: some combinations of every kind.

    One axis' largest values are a kind too. Kinds are taken in random order until `SHARE` of the
    rows are out, and what would leave fewer than half is passed over: with few values, not every
    kind fits into one hold-out, so those that had fewest turns so far come first.
    """
    turns = np.zeros(len(kinds) + 1)
    held_out = []
    for _ in range(count):
        out, taken = _mixed_holdout(
            positions, kinds, np.lexsort((rng.random(len(turns)), turns)), rng
        )
        turns[taken] += 1
        held_out.append(out)
    return held_out


def _mixed_holdout(
    positions: AxisPositions,
    kinds: list[tuple[int, ...]],
    order: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, list[int]]:
    """Return the rows to hold out, and the numbers of the kinds that are among them."""
    n = len(positions.shared)
    held_out = np.zeros(n, dtype=bool)
    share_per_kind = SHARE / len(order)
    taken = []
    for number in order:
        if number == len(kinds):
            out = held_out | _rows_with_largest_values(positions, rng)
        else:
            combination = positions.combination(kinds[number])
            distinct = int(combination.max()) + 1
            if distinct < 3:
                continue
            out = held_out | np.isin(
                combination, _sample_combinations(combination, share_per_kind, rng)
            )
        if out.mean() <= MAX_SHARE:
            held_out = out
            taken.append(int(number))
        if held_out.mean() >= SHARE:
            break
    if not held_out.any():
        held_out = rng.random(n) < SHARE
    return held_out, taken


def _sample_combinations(
    combination: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Return some combinations, one at least, that have a ``share`` of the rows together.

    Those of many rows come sooner: if all had the same chance, a value that most rows have would
    hardly ever be held out beside many that few rows have.
    """
    counts = np.bincount(combination)
    order = np.argsort(rng.exponential(size=len(counts)) / np.sqrt(counts))
    middle = np.cumsum(counts[order]) - counts[order] / 2.0
    return order[: max(1, int(np.searchsorted(middle, share * len(combination))))]


def _rows_with_largest_values(positions: AxisPositions, rng: np.random.Generator) -> np.ndarray:
    """Return the rows with the largest tenth of one axis' values."""
    coordinates = positions.coordinates[rng.integers(len(positions.coordinates))]
    values = np.unique(coordinates[~np.isnan(coordinates)])
    if len(values) <= 3:
        return np.zeros(len(coordinates), dtype=bool)
    largest: np.ndarray = coordinates > values[-1 - max(1, len(values) // 10)]
    return largest


SAME_SIZE_FACTOR = 1.05
"""Sizes within this factor are near-duplicates."""
MIN_PROBLEMS = 50
"""With fewer distinct problems, a law is trusted more than what is learned."""
MANY_DUPLICATES, MOSTLY_DUPLICATES = 4, 10
"""So many problems to each that is distinct: many are near-duplicates; nearly all are."""


def distinct_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, the same for problems that are the same or nearly so."""
    arrays = [as_array(rows[column]) for column in columns_of(rows, "problem")]
    number, exact = _combine_codes(map(_codes, arrays), len(rows)), exact_problems(rows)
    if int(exact.max(initial=0)) < MANY_DUPLICATES * int(number.max(initial=0) + 1):
        return number
    # A bound between ranges of sizes splits what lies on it: here that would be most of the rows.
    _, first = np.unique(exact, return_index=True)
    kinds = _combine_codes((_codes(v) for v in arrays if not _has_octaves(v)), len(rows))
    sizes = [np.log(v[first]) for v in arrays if _has_octaves(v)]
    clusters = _leader_clusters(
        np.column_stack([*sizes, kinds[first] * 10.0 * np.log(SAME_SIZE_FACTOR)])
    )
    return np.asarray(pd.factorize(clusters[exact])[0])


def exact_problems(rows: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, the same for problems that are the same."""
    arrays = (as_array(rows[column]) for column in columns_of(rows, "problem"))
    return _combine_codes((pd.factorize(values)[0] for values in arrays), len(rows))


def has_few_problems(problems: np.ndarray, exact: np.ndarray | None = None) -> bool:
    """Return whether there are several distinct problems, and few, or nearly all are duplicates.

    Args:
        problems: of `distinct_problems`.
        exact: of `exact_problems`.
    """
    count = int(problems.max(initial=-1)) + 1
    exact_count = 0 if exact is None else int(exact.max(initial=-1)) + 1
    return count >= 2 and (count < MIN_PROBLEMS or exact_count >= MOSTLY_DUPLICATES * count)


def _combine_codes(columns: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Return an integer per row, the same for rows that agree in all columns of integers."""
    number = np.zeros(rows, dtype=np.int64)
    for codes in columns:
        number = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)[0]
    return number


def _codes(values: np.ndarray) -> np.ndarray:
    return pd.factorize(values)[0] if values.dtype.kind == "U" else _size_codes(values)


def _has_octaves(values: np.ndarray) -> bool:
    return values.dtype.kind != "U" and bool((values > 0).all())


def _leader_clusters(points: np.ndarray) -> np.ndarray:
    """Return per point the number of the first one that is within `SAME` of it in all columns."""
    number = np.full(len(points), -1)
    remaining, leaders = np.lexsort(points.T[::-1]), 0
    while len(remaining):
        near = (
            np.abs(points[remaining] - points[remaining[0]]) <= np.log(SAME_SIZE_FACTOR) + 1e-12
        ).all(axis=1)
        number[remaining[near]] = leaders
        remaining, leaders = remaining[~near], leaders + 1
    return number


def _size_codes(values: np.ndarray) -> np.ndarray:
    """Return an integer per value: those of one begin at its smallest and end at `SAME` times it.

    Zero and negative values are the same if they are equal; NaN is -1.
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
