"""Hold-outs: the ways in which a future row can be new.

A new row may have a size nobody ran, a combination of known sizes nobody ran, or lie beyond all
sizes that were run. How well each kind is predicted differs by an order of magnitude, so blending
and calibration look at all of them: every kind has a share in what is held out.
"""

from collections.abc import Sequence

import numpy as np

from foretune.models.experts.neighbours import Axis
from foretune.models.experts.places import AxisPositions

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
