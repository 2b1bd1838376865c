"""Fits an order of launches (`foretune.tune.triton.launch_order`) to measured problems."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from foretune.features.launches import LaunchFeatures
from foretune.support.lazy import require
from foretune.tune.triton.launch_order import LaunchOrder, RankingTrees, launch_scores

ROUNDS, MAX_DEPTH = 400, 6
LAMBDAMART_PARAMETERS = {
    "objective": "rank:ndcg",
    "lambdarank_pair_method": "topk",
    "ndcg_exp_gain": False,
    "lambdarank_num_pair_per_sample": 4,
    "eta": 0.1,
    "max_depth": MAX_DEPTH,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "min_child_weight": 2,
    "seed": 0,
    "nthread": 1,
}
GAIN = 31.0
"""Gain of the fastest candidate for LambdaMART; others have the square of their relative speed."""
MAX_LOG_SLOWDOWN = 1.5
"""Clip of log slow-downs; failures count as this."""
KNOTS = 24
"""Number of knots of the curve."""
MIN_SLOPE = 1e-3
"""Minimum slope of the curve, which keeps the order strict."""


@dataclass(frozen=True)
class MeasuredProblem:
    """All candidates of one problem, measured.

    Kernels are held out as a whole; ``columns`` are features of the candidates, and ``time_ms`` is
    infinite for failures.
    """

    kernel: str
    columns: LaunchFeatures
    time_ms: np.ndarray

    @property
    def relative_speed(self) -> np.ndarray:
        """Speed of each candidate relative to the best; 0 for failures."""
        return self.time_ms.min() / self.time_ms

    @property
    def log_slowdown(self) -> np.ndarray:
        """Log of each time over the best, at most `MAX_LOG_SLOWDOWN`."""
        return np.minimum(-np.log(np.maximum(self.relative_speed, 1e-9)), MAX_LOG_SLOWDOWN)


def fit_order(problems: Sequence[MeasuredProblem]) -> LaunchOrder:
    """Fit to problems; needs XGBoost and scikit-learn.

    The curve is fitted to held-out kernels, or with one kernel to held-out halves of
    its problems.
    """
    kernels = sorted({p.kernel for p in problems})
    fold_of_problem = [kernels.index(p.kernel) for p in problems]
    if len(kernels) == 1:
        fold_of_problem = [i % 2 for i in range(len(problems))]
    relative_scores: list[np.ndarray] = []
    log_slowdowns: list[np.ndarray] = []
    weight: list[float] = []
    for held_out in set(fold_of_problem):
        trees = _fit_trees(
            [p for p, i in zip(problems, fold_of_problem, strict=True) if i != held_out]
        )
        for p in (p for p, i in zip(problems, fold_of_problem, strict=True) if i == held_out):
            succeeded = p.columns.fits & np.isfinite(p.time_ms)
            problem_scores = launch_scores(trees, p.columns)[succeeded]
            relative_scores.append(problem_scores - problem_scores.min(initial=np.inf))
            log_slowdowns.append(p.log_slowdown[succeeded])
            weight.append(1.0 / fold_of_problem.count(held_out))
    scores, ratios = _fit_curve(relative_scores, log_slowdowns, weight)
    return LaunchOrder(_fit_trees(problems), scores, ratios)


def save_order(order: LaunchOrder, path: Path) -> None:
    """Write one file of arrays."""
    arrays = {f.name: np.asarray(getattr(order.trees, f.name)) for f in fields(RankingTrees)}
    arrays |= {n: a.astype(np.int32) for n, a in arrays.items() if a.dtype == np.int64}
    curve = {f.name: np.asarray(getattr(order, f.name)) for f in fields(order) if f.name != "trees"}
    np.savez_compressed(path, **arrays, **curve)  # type: ignore[arg-type]


def _fit_trees(problems: Sequence[MeasuredProblem]) -> RankingTrees:
    """Fit the ranking trees; all kernels have equal weight."""
    xgboost = require("xgboost", "learn", "a predictor of boosted trees")

    kernels, number, counts = np.unique(
        [p.kernel for p in problems], return_inverse=True, return_counts=True
    )
    data = xgboost.DMatrix(
        np.concatenate([p.columns.values for p in problems]),
        GAIN * np.concatenate([p.relative_speed for p in problems]) ** 2,
        group=[len(p.time_ms) for p in problems],
        weight=len(problems) / len(kernels) / counts[number],
        base_margin=-np.concatenate([p.columns.analytic_log_time for p in problems]),
    )
    return ranking_trees(xgboost.train(LAMBDAMART_PARAMETERS, data, ROUNDS))


def ranking_trees(booster: Any) -> RankingTrees:
    """Return the trees of an XGBoost booster; its base score, which all rows share, is left out."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    fields_of_nodes = ("left_children", "split_indices", "split_conditions")
    left, column, bound = (np.concatenate([tree[f] for tree in trees]) for f in fields_of_nodes)
    sizes = [len(tree["left_children"]) for tree in trees]
    roots, inner = np.cumsum([0, *sizes[:-1]]), left >= 0
    return RankingTrees(
        left=np.where(inner, left + np.repeat(roots, sizes), np.arange(len(left))),
        column=np.where(inner, column, 0),
        bound=np.where(inner, bound, np.nan).astype(np.float32),
        leaf=np.where(inner, 0.0, bound).astype(np.float32),
        roots=roots,
        depth=MAX_DEPTH,
    )


def _fit_curve(
    relative_scores: Sequence[np.ndarray],
    log_slowdowns: Sequence[np.ndarray],
    weight: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the knots of the isotonic curve from scores to log slow-downs."""
    from sklearn.isotonic import IsotonicRegression

    scores = np.concatenate(relative_scores)
    knots = np.unique(np.quantile(scores, np.linspace(0.0, 1.0, KNOTS)))
    weights = np.repeat(weight, [len(each) for each in relative_scores])
    rising = IsotonicRegression().fit(scores, np.concatenate(log_slowdowns), sample_weight=weights)
    return knots, rising.predict(knots) + MIN_SLOPE * knots
