"""Fits the orders of launches (`foretune.tune.triton.launch_order`) to measured problems."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.features.launches import LaunchFeatures
from foretune.support.lazy import require
from foretune.tune.triton.launch_order import (
    ANALYTIC,
    RANKING,
    SIZES,
    LaunchOrders,
    RankingTrees,
    SlowdownCurve,
    ranking_scores,
    size_scores,
)

ROUNDS = 200
MAX_DEPTH = 6
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
MAX_FOLDS = 4
"""Maximum number of groups of kernels that are held out to fit the curves."""
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


def fit_orders(problems: Sequence[MeasuredProblem]) -> LaunchOrders:
    """Fit to problems; needs XGBoost and scikit-learn.

    The curves are fitted to held-out kernels, or with one kernel to held-out halves of
    its problems.
    """
    folds = _folds(problems)
    held_out: dict[str, list[np.ndarray]] = {RANKING: [], SIZES: [], ANALYTIC: []}
    judged: list[MeasuredProblem] = []
    for fold in sorted(set(folds)):
        others = [p for p, i in zip(problems, folds, strict=True) if i != fold]
        ranking = _fit_ranking(others)
        sizes = _fit_sizes(others)
        for p in (p for p, i in zip(problems, folds, strict=True) if i == fold):
            held_out[RANKING].append(ranking_scores(ranking, p.columns))
            held_out[SIZES].append(size_scores(sizes, p.columns))
            held_out[ANALYTIC].append(p.columns.analytic_log_time)
            judged.append(p)
    curves = {name: _fit_curve(scores, judged) for name, scores in held_out.items()}
    return LaunchOrders(_fit_ranking(problems), _fit_sizes(problems), curves)


def _folds(problems: Sequence[MeasuredProblem]) -> list[int]:
    """Return the group of each problem: whole kernels, or halves of the only one."""
    kernels = sorted({p.kernel for p in problems})
    if len(kernels) == 1:
        return [i % 2 for i in range(len(problems))]
    return [kernels.index(p.kernel) % MAX_FOLDS for p in problems]


def _fit_ranking(problems: Sequence[MeasuredProblem]) -> RankingTrees:
    """Fit trees that correct the analytic time."""
    return _fit_trees(
        problems,
        columns=[p.columns.values for p in problems],
        base_margin=-np.concatenate([p.columns.analytic_log_time for p in problems]),
    )


def _fit_sizes(problems: Sequence[MeasuredProblem]) -> RankingTrees:
    """Fit trees on plain sizes."""
    return _fit_trees(problems, columns=[p.columns.sizes for p in problems])


def _fit_trees(
    problems: Sequence[MeasuredProblem],
    *,
    columns: Sequence[np.ndarray],
    base_margin: np.ndarray | None = None,
) -> RankingTrees:
    """Fit ranking trees; all kernels have equal weight."""
    xgboost = require("xgboost", "learn", "a predictor of boosted trees")

    kernels, number, counts = np.unique(
        [p.kernel for p in problems], return_inverse=True, return_counts=True
    )
    data = xgboost.DMatrix(
        np.concatenate(columns),
        GAIN * np.concatenate([p.relative_speed for p in problems]) ** 2,
        group=[len(p.time_ms) for p in problems],
        weight=len(problems) / len(kernels) / counts[number],
        base_margin=base_margin,
    )
    return tree_nodes(xgboost.train(LAMBDAMART_PARAMETERS, data, ROUNDS), MAX_DEPTH)


def tree_nodes(booster: Any, depth: int) -> RankingTrees:
    """Return the trees of an XGBoost booster; its base score, which all rows share, is left out."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    fields_of_nodes = ("left_children", "split_indices", "split_conditions")
    left, column, bound = (np.concatenate([tree[f] for tree in trees]) for f in fields_of_nodes)
    sizes = [len(tree["left_children"]) for tree in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    inner = left >= 0
    return RankingTrees(
        left=np.where(inner, left + np.repeat(roots, sizes), np.arange(len(left))),
        column=np.where(inner, column, 0),
        bound=np.where(inner, bound, np.nan).astype(np.float32),
        leaf=np.where(inner, 0.0, bound).astype(np.float32),
        roots=roots,
        depth=depth,
    )


def _fit_curve(scores: Sequence[np.ndarray], problems: Sequence[MeasuredProblem]) -> SlowdownCurve:
    """Return the isotonic curve from relative scores to log slow-downs; kernels weigh the same."""
    from sklearn.isotonic import IsotonicRegression

    kernels = [p.kernel for p in problems]
    relative_scores = []
    log_slowdowns = []
    weights = []
    for of_problem, p in zip(scores, problems, strict=True):
        succeeded = p.columns.fits & np.isfinite(p.time_ms)
        known = of_problem[succeeded]
        relative_scores.append(known - known.min(initial=np.inf))
        log_slowdowns.append(p.log_slowdown[succeeded])
        weights.append(np.full(len(known), 1.0 / kernels.count(p.kernel)))

    all_scores = np.concatenate(relative_scores)
    knots = np.unique(np.quantile(all_scores, np.linspace(0.0, 1.0, KNOTS)))
    rising = IsotonicRegression().fit(
        all_scores, np.concatenate(log_slowdowns), sample_weight=np.concatenate(weights)
    )
    return SlowdownCurve(knots, rising.predict(knots) + MIN_SLOPE * knots)
