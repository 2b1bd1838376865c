"""Hold-outs: the ways in which a future row can be new.

A new row may have a size nobody ran, a combination of known sizes nobody ran, or lie beyond all
sizes that were run. How well each kind is predicted differs by an order of magnitude, so blending
and calibration look at all of them: every kind has a share in what is held out.
"""

from collections.abc import Sequence

import numpy as np

from foretune.models.neighbours import Axis, Places

SHARE = 0.25
"""Of the rows, in one mixed hold-out, roughly."""
MOST = 0.45


def kinds_of_novelty(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return sets of axes whose combination may be new.

    Single axes; the problem's together, and those without one (a new matrix at known batch sizes);
    all.
    """
    every = tuple(range(len(axes)))
    problem = tuple(i for i in every if axes[i].column.startswith("problem."))
    singles = [(i,) for i in every]
    without = [tuple(j for j in problem if j != i) for i in problem] if len(problem) > 2 else []
    return list(dict.fromkeys([*singles, *without, problem or every, every]))


def mixed_holdout(
    places: Places, kinds: list[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray:
    """Return which rows to hold out: some combinations of every kind, and one axis' largest values.

    Kinds are taken in random order until `SHARE` of the rows are out, and what would leave fewer
    than half is passed over: with few values, not every kind fits into one hold-out.
    """
    n = len(places.shared)
    held_out = np.zeros(n, dtype=bool)
    each = SHARE / (len(kinds) + 1)
    for number in rng.permutation(len(kinds) + 1):
        if number == len(kinds):
            out = held_out | _largest(places, rng)
        else:
            combination = places.combination(kinds[number])
            distinct = int(combination.max()) + 1
            if distinct < 3:
                continue
            chosen = rng.choice(distinct, max(1, round(each * distinct)), replace=False)
            out = held_out | np.isin(combination, chosen)
        if out.mean() <= MOST:
            held_out = out
        if held_out.mean() >= SHARE:
            break
    if not held_out.any():
        held_out = rng.random(n) < SHARE
    return held_out


def _largest(places: Places, rng: np.random.Generator) -> np.ndarray:
    """Return the rows with the largest tenth of one axis' values."""
    at = places.positions[rng.integers(len(places.positions))]
    values = np.unique(at[~np.isnan(at)])
    if len(values) <= 3:
        return np.zeros(len(at), dtype=bool)
    largest: np.ndarray = at > values[-1 - max(1, len(values) // 10)]
    return largest
