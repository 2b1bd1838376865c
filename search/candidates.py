"""Which configurations of a large space a model looks at."""

import numpy as np

from foretune.search.searcher import Searcher

EXPANDED_BEST = 5
"""Of so many of the best so far the neighbours are looked at."""
MAX_CHANGES = 3
"""In spaces that cannot be listed, what differs from these in up to so many parameters, too."""


def candidate_pool(
    searcher: Searcher, max_candidates: int, log_acquisition: np.ndarray | None
) -> np.ndarray:
    """Return the numbers of all configurations, or of about ``max_candidates``, in order.

    What was measured is among them, with the neighbours of the best. Half of the others are what
    promises most, if anything does, or are near the best where nobody could list the space; the
    rest are random.

    Args:
        searcher: whose space.
        max_candidates: how many.
        log_acquisition: of every configuration; None where nothing is believed of them.
    """
    space, observed = searcher.space, searcher.observed
    if len(space) <= max_candidates:
        return np.arange(len(space))
    best = sorted((i for i in observed if np.isfinite(observed[i])), key=lambda i: observed[i])[
        :EXPANDED_BEST
    ]
    parts = [np.array([*observed], dtype=np.int64)]
    if best:
        parts.append(space.neighbor_indices(best))
        for _ in range(1, MAX_CHANGES if space.is_too_large_to_enumerate else 1):
            sampled = searcher.rng.choice(parts[-1], min(len(parts[-1]), max_candidates // 200))
            parts.append(
                searcher.rng.permutation(space.neighbor_indices(sampled))[: max_candidates // 4]
            )
    if log_acquisition is not None:
        parts.append(np.argpartition(-log_acquisition, max_candidates // 2)[: max_candidates // 2])
    rest = max(max_candidates - sum(map(len, parts)), max_candidates // 4)
    return np.unique(np.concatenate([*parts, space.sample_indices(rest, searcher.rng)]))
