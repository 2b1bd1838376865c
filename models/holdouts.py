"""Selects rows to hold out, in every way in which a row can be new (docs/decisions/hold-outs.md).

A *kind* of hold-out is a set of axes (`foretune.models.neighbors.Axis`): the combinations of their
values are new, those of the other axes are known.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import Axis

SHARE = 0.25
"""Approximate share of the rows in one mixed hold-out."""
MAX_SHARE = 0.45
"""Maximum share of the rows in one mixed hold-out."""
MIN_COMBINATIONS = 3
"""Minimum distinct combinations for a kind to be held out."""
LARGEST_SHARES = (0.1, 0.25)
"""Shares of the rows, of the largest problems, that are held out together if a law is learned."""
PROBLEM_FOLDS = 6
"""Number of folds of whole problems."""
MIN_DEVICES = 2
"""Minimum devices for holding some out."""
MAX_HELD_OUT_DEVICES = 4
"""Devices that are held out, one at a time."""


def holdout_axes(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return the kinds of hold-outs: sets of axes whose combination may be new.

    Single axes; all problem axes; all but one (a new matrix at known batch sizes); all axes.
    """
    all_axes = tuple(range(len(axes)))
    problem_axes = tuple(i for i in all_axes if axes[i].column.startswith("problem."))
    kinds: list[tuple[int, ...]] = [(axis,) for axis in all_axes]
    if len(problem_axes) > 2:
        kinds += [tuple(axis for axis in problem_axes if axis != left) for left in problem_axes]
    kinds += [problem_axes or all_axes, all_axes]
    return list(dict.fromkeys(kinds))  # each once


def problem_holdouts(problems: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole problems, each held out once."""
    n_problems = int(problems.max()) + 1
    n_folds = min(n_problems, PROBLEM_FOLDS)
    fold_of_problem = rng.permutation(n_problems) % n_folds
    return [fold_of_problem[problems] == fold for fold in np.unique(fold_of_problem)]


def largest_holdouts(problems: np.ndarray, log_work: np.ndarray) -> list[np.ndarray]:
    """Return masks of the rows of the largest problems, by the mean of their rows' ``log_work``.

    One mask for each of `LARGEST_SHARES`; none that holds out no problem, or all.
    """
    rows_of_problem = np.bincount(problems)
    work_of_problem = np.bincount(problems, log_work) / np.maximum(rows_of_problem, 1)
    largest_first = np.argsort(-work_of_problem, kind="stable")
    rows_up_to = np.cumsum(rows_of_problem[largest_first])

    masks = []
    for share in LARGEST_SHARES:
        n_largest = int(np.searchsorted(rows_up_to, share * len(problems), side="right"))
        n_largest = max(1, n_largest)
        if n_largest < len(rows_of_problem):
            masks.append(np.isin(problems, largest_first[:n_largest]))
    return masks


def device_holdouts(rows: pd.DataFrame, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole devices, if enough others remain."""
    device_of_row = rows["device"].astype(str).to_numpy()
    devices = np.unique(device_of_row)
    if len(devices) < MIN_DEVICES:
        return []
    held_out_devices = rng.permutation(devices)[:MAX_HELD_OUT_DEVICES]
    return [device_of_row == device for device in held_out_devices]


def mixed_holdouts(
    positions: AxisPositions, kinds: list[tuple[int, ...]], count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return ``count`` masks of rows to hold out together, with combinations of every kind.

    The largest values of one axis are also a kind. Kinds are added in random order until `SHARE` of
    the rows are held out; a kind that would exceed `MAX_SHARE` is skipped. Kinds that were used
    less often go first, because with few values not every kind fits into one hold-out.
    """
    times_used = np.zeros(len(kinds) + 1)
    masks = []
    for _ in range(count):
        order = np.lexsort((rng.random(len(times_used)), times_used))
        is_held_out, used_kinds = _mixed_holdout(positions, kinds, order, rng)
        times_used[used_kinds] += 1
        masks.append(is_held_out)
    return masks


def _mixed_holdout(
    positions: AxisPositions,
    kinds: list[tuple[int, ...]],
    order: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, list[int]]:
    """Return a mask, and the numbers of the kinds in it; the last number is the largest values."""
    n_rows = len(positions.shared)
    is_held_out = np.zeros(n_rows, dtype=bool)
    share_per_kind = SHARE / len(order)
    used_kinds = []
    for number in order:
        if number == len(kinds):
            with_kind = is_held_out | _rows_with_largest_values(positions, rng)
        else:
            combination = positions.combination(kinds[number])
            n_combinations = int(combination.max()) + 1
            if n_combinations < MIN_COMBINATIONS:
                continue
            chosen = _sample_combinations(combination, share_per_kind, rng)
            with_kind = is_held_out | np.isin(combination, chosen)

        if with_kind.mean() <= MAX_SHARE:
            is_held_out = with_kind
            used_kinds.append(int(number))
        if is_held_out.mean() >= SHARE:
            break

    # No kind fits: hold out single rows.
    if not is_held_out.any():
        is_held_out = rng.random(n_rows) < SHARE
    return is_held_out, used_kinds


def _sample_combinations(
    combination: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Return at least one combination, together with about ``share`` of the rows.

    Combinations with many rows are more likely. With equal probabilities, a value that most rows
    have would hardly ever be held out.
    """
    rows_of = np.bincount(combination)
    order = np.argsort(rng.exponential(size=len(rows_of)) / np.sqrt(rows_of))
    rows_in_order = rows_of[order]
    rows_up_to_middle = np.cumsum(rows_in_order) - rows_in_order / 2.0
    n_chosen = int(np.searchsorted(rows_up_to_middle, share * len(combination)))
    return order[: max(1, n_chosen)]


def _rows_with_largest_values(positions: AxisPositions, rng: np.random.Generator) -> np.ndarray:
    """Return the rows with the largest tenth of one axis' values; none if it has three or fewer."""
    coordinates = positions.coordinates[rng.integers(len(positions.coordinates))]
    values = np.unique(coordinates[~np.isnan(coordinates)])
    if len(values) <= 3:
        return np.zeros(len(coordinates), dtype=bool)
    n_largest = max(1, len(values) // 10)
    return coordinates > values[-1 - n_largest]
