"""Which configurations of a large space a model looks at."""

import numpy as np

from foretune.search.searcher import Searcher

BEST = 5
"""Of so many of the best so far the neighbours are looked at."""


def pool(searcher: Searcher, most: int, promise: np.ndarray | None) -> np.ndarray:
    """Return the numbers of all configurations, or of about ``most``, in order.

    Half of these are random, half what promises most; and what was measured is among them, with
    the neighbours of the best.

    Args:
        searcher: whose space.
        most: how many.
        promise: of every configuration; None where nothing is believed of them.
    """
    space, told = searcher.space, searcher.told
    if len(space) <= most:
        return np.arange(len(space))
    parts = [searcher.rng.choice(len(space), most // 2, replace=False)]
    if promise is not None:
        parts.append(np.argpartition(-promise, most // 2)[: most // 2])
    best = sorted(told, key=lambda i: told[i])[:BEST]
    near = [space.index(c) for i in best for c in space.neighbours(space[i])]
    return np.unique(np.concatenate([*parts, np.array([*near, *told], dtype=int)]))
