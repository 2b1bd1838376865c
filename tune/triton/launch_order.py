"""Orders the launches of a kernel that was never measured, using other kernels' runs.

Three orders misjudge different kernels:

- ``ranking``: boosted trees on the columns of `foretune.features.launches` rank the candidates of a
  problem (LambdaMART; Burges, MSR-TR-2010-82). They start from the analytic time, which therefore
  decides for unfamiliar launches.
- ``sizes``: trees that rank by plain sizes and types, and know no analytic time.
- ``analytic``: the analytic time alone.

An isotonic curve for each, fitted to held-out kernels, maps its scores to expected slow-downs.
``benchmarks/launch_training.py`` fits them.

The shipped orders are a file of arrays that loads in milliseconds and needs only NumPy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.errors import PredictorError
from foretune.features.launches import LaunchFeatures
from foretune.support.files import read_arrays, translate_read_errors

SHIPPED = Path(__file__).parent / "shipped" / "launches.npz"
RANKING = "ranking"
SIZES = "sizes"
ANALYTIC = "analytic"
"""Names of the orders, in the order of their turns."""
SPREAD = 0.2
"""Standard deviation of the smooth part of the log error (`foretune.search.ordered`)."""
ERROR_FREEDOM = 2.5
"""Degrees of freedom of the Student law of the errors: for some kernels, they are several times
`SPREAD`. With both values, the promised loss covers the real one of kernels that were left out."""


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
class SlowdownCurve:
    """Knots of a curve from scores, relative to the best candidate's, to log slow-downs."""

    scores: np.ndarray
    ratios: np.ndarray

    def log_ratios(self, scores: np.ndarray, fits: np.ndarray) -> np.ndarray:
        """Return the log slow-down of candidates against the best one that fits."""
        best_score = scores[fits].min() if fits.any() else scores.min()
        return np.interp(scores - best_score, self.scores, self.ratios)


@dataclass(frozen=True)
class LaunchOrders:
    """Predicts slow-downs relative to the best candidate.

    ``ranking`` and ``sizes`` are the trees of two orders, ``curves`` the curves of all by name.
    """

    ranking: RankingTrees
    sizes: RankingTrees
    curves: Mapping[str, SlowdownCurve]

    def log_ratios(self, columns: LaunchFeatures) -> dict[str, np.ndarray]:
        """Return the log of every candidate's expected slow-down, by order."""
        scores = {
            RANKING: ranking_scores(self.ranking, columns),
            SIZES: size_scores(self.sizes, columns),
            ANALYTIC: columns.analytic_log_time,
        }
        return {
            name: self.curves[name].log_ratios(of_order, columns.fits)
            for name, of_order in scores.items()
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file; raises PredictorError if it is damaged."""
        with translate_read_errors(path, PredictorError, "is damaged ({}): install Foretune again"):
            arrays: dict[str, Any] = {}
            for name, array in read_arrays(path).items():
                arrays[name] = array if array.ndim else array.item()
            trees = {
                order: RankingTrees(**{f.name: arrays[f"{order}.{f.name}"] for f in _TREE_FIELDS})
                for order in (RANKING, SIZES)
            }
            curves = {
                order: SlowdownCurve(arrays[f"{order}.scores"], arrays[f"{order}.ratios"])
                for order in (RANKING, SIZES, ANALYTIC)
            }
            return cls(trees[RANKING], trees[SIZES], curves)

    def save(self, path: Path) -> None:
        """Write to a file."""
        arrays: dict[str, Any] = {}
        for order, trees in ((RANKING, self.ranking), (SIZES, self.sizes)):
            for field in _TREE_FIELDS:
                array = np.asarray(getattr(trees, field.name))
                is_long = array.dtype == np.int64
                arrays[f"{order}.{field.name}"] = array.astype(np.int32) if is_long else array
        for order, curve in self.curves.items():
            arrays[f"{order}.scores"] = curve.scores
            arrays[f"{order}.ratios"] = curve.ratios
        np.savez_compressed(path, **arrays)


@cache
def shipped_orders() -> LaunchOrders:
    """Return the orders shipped with Foretune."""
    return LaunchOrders.load(SHIPPED)


def ranking_scores(trees: RankingTrees, columns: LaunchFeatures) -> np.ndarray:
    """Return a score for each candidate from the analytic time and trees; lower is better."""
    return columns.analytic_log_time - trees.scores(columns.values)


def size_scores(trees: RankingTrees, columns: LaunchFeatures) -> np.ndarray:
    """Return a score for each candidate from trees on plain sizes; lower is better."""
    return -trees.scores(columns.sizes)


_TREE_FIELDS = fields(RankingTrees)
