"""Selects rows to hold out, and finds problems that are nearly equal and runs that repeat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array, as_text, groups_of
from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import Axis

SHARE = 0.25  # approximate share of the rows in one mixed hold-out
MAX_SHARE = 0.45


def holdout_kinds(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return the sets of axes whose combination may be new.

    Single axes; all problem axes; all but one of them (e.g. a new matrix at known batch sizes); all
    axes.
    """
    all_axes = tuple(range(len(axes)))
    problem = tuple(i for i in all_axes if axes[i].column.startswith("problem."))
    singles = [(i,) for i in all_axes]
    without = [tuple(j for j in problem if j != i) for i in problem] if len(problem) > 2 else []
    return list(dict.fromkeys([*singles, *without, problem or all_axes, all_axes]))


def mixed_holdouts(
    positions: AxisPositions, kinds: list[tuple[int, ...]], count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return ``count`` masks of rows to hold out together, with combinations of every kind.

    The largest values of one axis are a kind too. Kinds are taken in random order until `SHARE` of
    the rows are held out; a kind that would exceed `MAX_SHARE` is skipped. Kinds with fewer turns
    so far go first, because with few values not every kind fits into one hold-out.
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
    """Return at least one combination, together with about ``share`` of the rows.

    Combinations with many rows are more likely. Under equal chances, a value that most rows have
    would hardly ever be held out.
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
    return coordinates > values[-1 - max(1, len(values) // 10)]


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
    clusters = _leader_clusters(
        np.column_stack([*sizes, kinds[first] * 10.0 * np.log(SAME_SIZE_FACTOR)])
    )
    return np.asarray(pd.factorize(clusters[exact])[0])


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
    """Return, per point, the index of the first point within `SAME_SIZE_FACTOR` in all columns."""
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


NO_MATCH = -1
MIN_REPEATS = 30  # repeated measurements needed to estimate the noise of rows measured once


def matching_rows(known: pd.DataFrame, runs: pd.DataFrame) -> np.ndarray:
    """Return, per row of ``runs``, the index of the row of ``known`` with the same run.

    That is the same device, problem and configuration; `NO_MATCH` if there is none. Columns missing
    from one table count as empty. The last of several matches counts. Both tables must be of the
    same kernel.
    """
    both = pd.concat(
        [known[_identity_columns(known)], runs[_identity_columns(runs)]], ignore_index=True
    )
    same = groups_of(both, list(both))
    row_of = np.full(len(same.names), NO_MATCH)
    row_of[same.codes[: len(known)]] = np.arange(len(known))
    return row_of[same.codes[len(known) :]]


def count_missing_runs(known: pd.DataFrame, runs: pd.DataFrame) -> int:
    """Return how many of ``runs`` are not in ``known``, kernel by kernel."""
    missing = 0
    for kernel, kernel_runs in runs.groupby("kernel", observed=True):
        missing += int(
            (matching_rows(known[known["kernel"] == kernel], kernel_runs) == NO_MATCH).sum()
        )
    return missing


@dataclass(frozen=True)
class Repeats:
    """Deviations between measurements of the same run: the noise floor of predictions.

    ``first`` is the index of each row's first deviation, and at last their number; ``deviations``
    are logs of each measurement over its row's value.
    """

    first: np.ndarray
    deviations: np.ndarray

    @classmethod
    def from_runs(cls, rows: pd.DataFrame, measured: pd.DataFrame, target: str) -> Self:
        """Return the repeats of ``rows`` among ``measured``.

        Measurements from another environment or date do not count, because newer ones supersede
        them. ``rows`` has no duplicate runs, and all of it has the ``target``; ``measured`` adds
        older measurements.
        """
        measured = measured[(measured["status"] == "ok") & measured[target].notna()]
        if len(measured) == len(rows):
            return cls(np.arange(len(rows) + 1), np.zeros(len(rows)))
        row = matching_rows(rows, measured)
        for column in (c for c in ("environment", "recorded_at") if c in rows):
            ours, theirs = (as_text(table[column]) for table in (rows, measured))
            row = np.where(ours[row] == theirs, row, NO_MATCH)
        found = row != NO_MATCH
        values, row_values = (t[target].to_numpy(float) for t in (measured, rows))
        deviations = np.log(values[found] / row_values[row[found]])
        unrepeated = np.setdiff1d(np.arange(len(rows)), row)  # 1 and "1" are equal as text
        numbers = np.concatenate([row[found], unrepeated])
        order = np.argsort(numbers, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
        return cls(first, np.concatenate([deviations, np.zeros(len(unrepeated))])[order])

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the deviation of a random measurement of each row in ``rows``.

        A row measured once gets a deviation of the rows that were measured more often.
        """
        counts = np.diff(self.first)
        drawn: np.ndarray = self.deviations[self.first[rows] + rng.integers(counts[rows])]
        several = self.deviations[np.repeat(counts > 1, counts)]
        if len(several) >= MIN_REPEATS:
            once = counts[rows] == 1
            drawn[once] = rng.choice(several, int(once.sum()))
        return drawn


def _identity_columns(runs: pd.DataFrame) -> list[str]:
    return ["device", *columns_of(runs, "problem"), *columns_of(runs, "config")]
