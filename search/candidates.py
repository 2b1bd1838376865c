"""Candidate pool of a large space."""

import numpy as np

from foretune.search.searcher import Searcher

EXPANDED_BEST = 5
"""Number of best configurations whose neighbors join the pool."""
MAX_CHANGES = 3
"""In spaces too large to enumerate, neighbors differ from the best in up to three parameters."""


def candidate_pool(
    searcher: Searcher, max_candidates: int, log_acquisition: np.ndarray | None
) -> np.ndarray:
    """Return the sorted indices of all configurations, or of about ``max_candidates``.

    The pool has the measured configurations and the neighbors of the best. Half of the rest have
    the largest ``log_acquisition``, or are further neighbors in spaces too large to enumerate. The
    others are random.

    Args:
        searcher: the searcher whose space is sampled.
        max_candidates: approximate size of the pool.
        log_acquisition: acquisition of every configuration; None without a prior.
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
