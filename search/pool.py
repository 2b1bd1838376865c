"""Which configurations of a large space a model looks at."""

import numpy as np

from foretune.search.searcher import Searcher

BEST = 5
"""Of so many of the best so far the neighbours are looked at."""
FARTHER = 3
"""In spaces that cannot be listed, what differs from these in up to so many parameters, too."""


def pool(searcher: Searcher, most: int, promise: np.ndarray | None) -> np.ndarray:
    """Return the numbers of all configurations, or of about ``most``, in order.

    What was measured is among them, with the neighbours of the best. Half of the others are what
    promises most, if anything does, or are near the best where nobody could list the space; the
    rest are random.

    Args:
        searcher: whose space.
        most: how many.
        promise: of every configuration; None where nothing is believed of them.
    """
    space, told = searcher.space, searcher.told
    if len(space) <= most:
        return np.arange(len(space))
    best = sorted((i for i in told if np.isfinite(told[i])), key=lambda i: told[i])[:BEST]
    parts = [np.array([*told], dtype=np.int64)]
    if best:
        parts.append(space.near(best))
        for _ in range(1, FARTHER if space.vast else 1):
            beside = searcher.rng.choice(parts[-1], min(len(parts[-1]), most // 200))
            parts.append(searcher.rng.permutation(space.near(beside))[: most // 4])
    if promise is not None:
        parts.append(np.argpartition(-promise, most // 2)[: most // 2])
    rest = max(most - sum(map(len, parts)), most // 4)
    return np.unique(np.concatenate([*parts, space.draw(rest, searcher.rng)]))
