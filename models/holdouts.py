"""Selects rows to hold out."""

from collections.abc import Sequence

import numpy as np

from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import Axis

SHARE = 0.25  # approximate share of the rows in one mixed hold-out
MAX_SHARE = 0.45


def holdout_kinds(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return the sets of axes whose combination may be new.

    Single axes; all problem axes; all but one (a new matrix at known batch sizes); all axes.
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

    The largest values of one axis are also a kind. Kinds are added in random order until `SHARE` of
    the rows are held out; a kind that would exceed `MAX_SHARE` is skipped. Kinds that were used
    less often go first, because with few values not every kind fits into one hold-out.
    """
    turns = np.zeros(len(kinds) + 1)
    held_out = []
    for _ in range(count):
        order = np.lexsort((rng.random(len(turns)), turns))
        out, taken = _mixed_holdout(positions, kinds, order, rng)
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
            chosen = _sample_combinations(combination, share_per_kind, rng)
            out = held_out | np.isin(combination, chosen)
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

    Combinations with many rows are more likely. With equal probabilities, a value that most rows
    have would hardly ever be held out.
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
