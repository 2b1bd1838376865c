"""Conformal quantiles: limits that cover a share of new errors, whatever their distribution.

Conformal prediction (Vovk, Gammerman and Shafer, 2005) takes a quantile of held-out errors, at a
rank that also counts the new one. The hierarchical form (Lee, Barber and Willett, 2023) counts
problems instead of rows.
"""

import numpy as np

CONFIDENCE = 0.9
"""Share of new errors to cover."""
TAIL_INDEX = 2.0
"""Index of the power law assumed for errors of problems worse than all seen."""
MAX_LOG_HALF_WIDTH = 1.5
"""Log of 4.5: wider intervals are used only if errors were as large."""


def conformal_quantile(sizes: np.ndarray) -> float:
    """Return the conformal `CONFIDENCE` quantile of ``sizes``; the maximum if they are too few."""
    n = len(sizes)
    rank = min(n, int(np.ceil((n + 1) * CONFIDENCE)))
    return float(np.sort(sizes)[rank - 1])


def conformal_quantile_by_problem(
    errors: np.ndarray, problems: np.ndarray, sizes: np.ndarray | None = None
) -> float:
    """Return the factor of ``sizes`` (default 1) that covers `CONFIDENCE` of a new problem's rows.

    All problems have equal weight, and so has the new one, which may be worse than all.
    """
    distinct, problem_of_row, n_rows = np.unique(problems, return_inverse=True, return_counts=True)
    n_problems = len(distinct)
    if sizes is None:
        sizes = np.ones(len(errors))
    misses = errors / sizes

    # With too few problems for the level, the largest quantile of one problem stands for the level
    # n / (n + 1). A power law extrapolates from there.
    if CONFIDENCE * (n_problems + 1) >= n_problems:
        largest = max(conformal_quantile(misses[problems == problem]) for problem in distinct)
        tail_ratio = (1.0 / (n_problems + 1)) / (1.0 - CONFIDENCE)
        extrapolated = largest * tail_ratio ** (1.0 / TAIL_INDEX)
        widest = MAX_LOG_HALF_WIDTH / float(np.median(sizes))
        return max(largest, min(extrapolated, widest))

    # Else the quantile of all rows, weighted so that every problem has the share 1 / (n + 1).
    order = np.argsort(misses)
    row_weight = 1.0 / ((n_problems + 1) * n_rows[problem_of_row[order]])
    rank = int(np.searchsorted(np.cumsum(row_weight), CONFIDENCE - 1e-9))
    return float(misses[order[min(rank, len(misses) - 1)]])
