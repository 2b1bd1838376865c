"""Selects a few configurations that serve all problems, and a tree that chooses among them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretune.problem import Problem
from foretune.tune.heuristics.decision_tree import (
    Node,
    fit_tree,
    follow_path,
    leaf_choices,
    renumber,
)

DEPTHS = (0, 1, 2, 3, 4, 6, 8)
FOLDS = 5
MIN_GAIN = 1e-4
"""Minimum gain in the mean share that justifies another configuration."""
_SHARE_TOLERANCE = 1e-3
"""Trees count as equal if their held-out shares differ by less; the smallest one wins."""

PRIOR_FAILURES = 3
"""Failures added to a configuration's record when its unmeasured pairs are estimated, so that one
good measurement does not make it the best everywhere."""

Gains = npt.NDArray[np.float64]
"""Shape (problems, configurations): share of the best; NaN for unmeasured pairs."""


@dataclass(frozen=True)
class TreeChooser:
    """Some configurations and a tree that picks one of them.

    Attributes:
        subset: columns of the configurations, the most useful one first.
        tree: leaves are indices of ``subset``; all of them occur.
        considered: columns it could have chosen, used or not.
    """

    subset: list[int]
    tree: Node
    considered: list[int]

    def choose(self, problem: Problem) -> int:
        """Return the column of the configuration for a problem."""
        return self.subset[follow_path(self.tree, problem)]


def fill_missing_gains(gains: Gains, known: Gains | None = None) -> Gains:
    """Return ``gains`` with unmeasured pairs estimated from ``known``, by default itself."""
    known = gains if known is None else known
    measured = (~np.isnan(known)).sum(axis=0)
    column_means = np.nansum(known, axis=0) / (measured + PRIOR_FAILURES)
    return np.where(np.isnan(gains), column_means, gains)


def best_single(gains: Gains) -> int:
    """Return the column with the best expected mean."""
    return int(fill_missing_gains(gains).mean(axis=0).argmax())


def choose_subset(gains: Gains, max_configs: int) -> list[int]:
    """Return up to ``max_configs`` columns that maximize the mean of the best one per problem.

    The choice is greedy. It keeps at least 1 − 1/e of the optimum, because the mean of maxima is
    submodular; in practice it keeps nearly all. ``gains`` must not have gaps.
    """
    subset: list[int] = []
    reached = np.zeros(len(gains))
    while len(subset) < min(max_configs, gains.shape[1]):
        means = np.maximum(gains, reached[:, None]).mean(axis=0)
        best = int(means.argmax())
        if subset and means[best] - reached.mean() <= MIN_GAIN:
            break
        subset.append(best)
        reached = np.maximum(reached, gains[:, best])
    return subset


def fit_chooser(
    problems: Sequence[Problem], gains: Gains, max_configs: int, depth: int | None, seed: int = 0
) -> TreeChooser:
    """Fit a chooser to the gains of all configurations on ``problems``.

    Without ``depth``, the tree gets the depth that does best on held-out folds.
    """
    filled = fill_missing_gains(gains)
    subset = choose_subset(filled, max_configs)
    if depth is None:
        depth = _best_depth(problems, gains, max_configs, seed)
    tree = fit_tree(problems, filled[:, subset], depth)
    used = sorted(leaf_choices(tree))
    renumbered = renumber(tree, {old: new for new, old in enumerate(used)})
    return TreeChooser([subset[i] for i in used], renumbered, subset)


def _best_depth(problems: Sequence[Problem], gains: Gains, max_configs: int, seed: int) -> int:
    folds = min(FOLDS, len(problems))
    if folds < 2 or max_configs == 1:
        return 0
    fold = np.random.default_rng(seed).permutation(np.arange(len(problems)) % folds)
    kept = np.zeros(len(DEPTHS))
    for held_out in range(folds):
        known, new = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        filled, truth = (
            fill_missing_gains(gains[known]),
            fill_missing_gains(gains[new], gains[known]),
        )
        subset = choose_subset(filled, max_configs)
        for i, depth in enumerate(DEPTHS):
            tree = fit_tree([problems[j] for j in known.tolist()], filled[:, subset], depth)
            chosen = [subset[follow_path(tree, problems[j])] for j in new.tolist()]
            kept[i] += truth[np.arange(len(new)), chosen].sum()
    kept /= len(problems)
    return DEPTHS[int(np.argmax(kept >= kept.max() - _SHARE_TOLERANCE))]
