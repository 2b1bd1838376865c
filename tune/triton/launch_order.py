"""Orders the launches of a kernel that was never measured, using other kernels' runs.

Boosted trees on the columns of `foretune.features.launches` rank the candidates of a problem
(LambdaMART; Burges, MSR-TR-2010-82). They start from the analytic time, which therefore decides for
unfamiliar launches. An isotonic curve, fitted to held-out kernels, maps scores to expected
slow-downs. ``benchmarks/launch_training.py`` fits both.

The shipped model is a file of arrays that loads in milliseconds and needs only NumPy.
"""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.errors import PredictorError
from foretune.features.launches import LaunchFeatures
from foretune.support.files import read_arrays, translate_read_errors

SHIPPED = Path(__file__).parent / "shipped" / "launches.npz"
SPREAD = 0.15
"""Standard deviation of the smooth part of the log error (`foretune.search.ordered`). With this
value, the expected loss covers the real loss of kernels left out of recorded tables, but not of
GEMM and attention left out on an H100."""


@dataclass(frozen=True)
class RankingTrees:
    """The nodes of all trees, concatenated; NumPy alone adds up their leaves.

    Values of a node's ``column`` below its ``bound`` go to node ``left``, others to the one after
    that. A leaf is its own left child, and its bound is NaN. ``roots`` are the first nodes of the
    trees, ``depth`` is the maximum depth.
    """

    left: np.ndarray
    column: np.ndarray
    bound: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    depth: int

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Return the sum of the leaves of every row, which may miss no value."""
        row = np.arange(len(X))[:, None]
        node = self.roots[None, :]
        # All rows go down all trees at the same time. One that is at a leaf stays there.
        for _ in range(self.depth):
            node = self.left[node] + (X[row, self.column[node]] >= self.bound[node])
        return self.leaf[node].sum(axis=1, dtype=np.float64)


@dataclass(frozen=True)
class LaunchOrder:
    """Predicts slow-downs relative to the best candidate.

    ``scores`` and ``ratios``: knots of the curve from relative scores to log slow-downs.
    """

    trees: RankingTrees
    scores: np.ndarray
    ratios: np.ndarray

    def log_ratios(self, columns: LaunchFeatures) -> np.ndarray:
        """Return the log of every candidate's expected slow-down."""
        scores = launch_scores(self.trees, columns)
        fits = columns.fits
        best_score = scores[fits].min() if fits.any() else scores.min()
        return np.interp(scores - best_score, self.scores, self.ratios)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file; raises PredictorError if it is damaged."""
        with translate_read_errors(path, PredictorError, "is damaged ({}): install Foretune again"):
            arrays: dict[str, Any] = {}
            for name, array in read_arrays(path).items():
                arrays[name] = array if array.ndim else array.item()
            of_trees = {field.name: arrays.pop(field.name) for field in fields(RankingTrees)}
            return cls(RankingTrees(**of_trees), **arrays)


@cache
def shipped_order() -> LaunchOrder:
    """Return the order shipped with Foretune."""
    return LaunchOrder.load(SHIPPED)


def launch_scores(trees: RankingTrees, columns: LaunchFeatures) -> np.ndarray:
    """Return a score for each candidate; lower is better."""
    return columns.analytic_log_time - trees.scores(columns.values)
