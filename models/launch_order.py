"""An order of launches that learned from other kernels: what is expected of one never measured.

Two boosted models see the columns of `foretune.features.launches`: one learned to order the
candidates of a problem (LambdaMART; Burges, MSR-TR-2010-82), one the share of the best speed that
each keeps. Both start from the law among the columns, so where nothing is like what they learned
from, the law stands. The sum of both is turned into an expected ratio of times by a rising curve,
made with kernels that were left out.

It comes as plain arrays, read in milliseconds, and needs nothing but NumPy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.features.launches import TOO_SLOW, LaunchColumns
from foretune.models.trees.walk import Walk

SHIPPED = Path(__file__).parent / "shipped" / "launches.npz"
ROUNDS = 200
TREES = {
    "eta": 0.1, "max_depth": 4, "subsample": 0.8, "colsample_bytree": 0.5, "min_child_weight": 2,
    "seed": 0, "nthread": 1,
}  # fmt: skip
ORDER = {
    "objective": "rank:ndcg", "lambdarank_pair_method": "topk", "ndcg_exp_gain": False,
    "lambdarank_num_pair_per_sample": 10,
}  # fmt: skip
GAIN = 31.0
"""Gain of the fastest candidate for LambdaMART; others have the square of the share they keep."""
LAW_COUNTS = 1.5
"""Logarithm of a factor up to which the law is where the trees start from."""
MOST_LOST = 1.5
"""Logarithm of a factor beyond which a candidate is as bad; failures are that bad, too."""
KNOTS = 24
"""Of the curve from scores to ratios."""


@dataclass(frozen=True)
class LearnedProblem:
    """All candidates of one problem, measured.

    Attributes:
        kernel: what they are of: kernels are left out as a whole.
        columns: of the candidates.
        time_ms: infinite for failures.
    """

    kernel: str
    columns: LaunchColumns
    time_ms: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        """Share of the best speed that each candidate keeps; 0 of failures."""
        return self.time_ms.min() / self.time_ms

    @property
    def lost(self) -> np.ndarray:
        """Logarithm of each time over the best, at most `MOST_LOST`."""
        lost: np.ndarray = np.minimum(-np.log(np.maximum(self.kept, 1e-9)), MOST_LOST)
        return lost


@dataclass(frozen=True)
class LaunchOrder:
    """Expects ratios of times.

    Attributes:
        walk: through the trees of both models: the order, then the share.
        scale: usual spread of each model's score among a problem's candidates.
        scores, ratios: knots of the curve from scores, less the best, to logarithms of ratios.
        spread: standard deviation of what is then wrong, among the candidates that matter.
    """

    walk: Walk
    scale: np.ndarray
    scores: np.ndarray
    ratios: np.ndarray
    spread: float

    @classmethod
    def fit(cls, problems: Sequence[LearnedProblem]) -> Self:
        """Learn from problems; needs XGBoost.

        Where there are several kernels, the curve and the spread are those of each kernel as it is
        expected from the others, else of one half of the problems from the other.
        """
        kernels = sorted({p.kernel for p in problems})
        if len(kernels) > 1:
            parts = [[p.kernel == kernel for p in problems] for kernel in kernels]
        else:
            parts = [[i % 2 == odd for i in range(len(problems))] for odd in (0, 1)]
        score, lost, weight = [], [], []
        for out in parts:
            learned = _trees([p for p, left in zip(problems, out, strict=True) if not left])
            judged = [p for p, left in zip(problems, out, strict=True) if left]
            for p in judged:
                here = _score(*learned, p.columns)
                runs = p.columns.fits & np.isfinite(p.time_ms)
                score.append(here[runs] - here[runs].min(initial=np.inf))
                lost.append(p.lost[runs])
                weight.append(np.full(int(runs.sum()), 1.0 / len(judged)))
        scores, ratios, spread = _curve(*map(np.concatenate, (score, lost, weight)))
        return cls(*_trees(problems), scores, ratios, spread)

    def log_ratios(self, columns: LaunchColumns) -> np.ndarray:
        """Return the logarithm of every candidate's expected time over the best, any constant."""
        score = _score(self.walk, self.scale, columns)
        least = score[columns.fits].min() if columns.fits.any() else score.min()
        ratios: np.ndarray = np.interp(score - least, self.scores, self.ratios)
        return ratios

    def save(self, path: Path) -> None:
        """Write one file of arrays."""
        trees = {f.name: np.asarray(getattr(self.walk, f.name)) for f in fields(Walk)}
        trees = {n: a.astype(np.int32) if a.dtype == np.int64 else a for n, a in trees.items()}
        own = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name != "walk"}
        np.savez_compressed(path, **trees, **own)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            read = {name: arrays[name] for name in arrays.files}
        walk = Walk(**{f.name: _plain(read.pop(f.name)) for f in fields(Walk)})
        return cls(walk, **{name: _plain(array) for name, array in read.items()})


@cache
def shipped_order() -> LaunchOrder:
    """Return the one that comes with Foretune."""
    return LaunchOrder.load(SHIPPED)


def _plain(array: np.ndarray) -> Any:
    return array if array.ndim else array.item()


def _score(walk: Walk, scale: np.ndarray, columns: LaunchColumns) -> np.ndarray:
    """Return the less, the better; one is the usual spread of a problem's candidates."""
    order, share = walk.sums(columns.values).T
    return (_start(columns) - order) / scale[0] + (_share_start(columns) + share) / scale[1]


def _start(columns: LaunchColumns) -> np.ndarray:
    return np.clip(columns.law, 0.0, TOO_SLOW)


def _share_start(columns: LaunchColumns) -> np.ndarray:
    return 1.0 - np.exp(-np.clip(columns.law, 0.0, LAW_COUNTS))


def _trees(problems: Sequence[LearnedProblem]) -> tuple[Walk, np.ndarray]:
    """Return the trees of both models, and the usual spread of their scores."""
    import xgboost

    from foretune.models.trees.nodes import Trees

    X = np.concatenate([p.columns.values for p in problems])
    kept = np.concatenate([p.kept for p in problems])
    start = np.concatenate([_start(p.columns) for p in problems])
    lost = 1.0 - kept - np.concatenate([_share_start(p.columns) for p in problems])
    weight = _weights(problems)
    counts = np.array([len(p.time_ms) for p in problems])
    order = xgboost.DMatrix(X, GAIN * kept**2, group=counts, weight=weight, base_margin=-start)
    share = xgboost.DMatrix(X, lost, weight=np.repeat(weight, counts))
    models = (
        xgboost.train(TREES | ORDER, order, ROUNDS),
        xgboost.train(TREES | {"objective": "reg:squarederror"}, share, ROUNDS),
    )
    trees = [Trees.of(model) for model in models]
    assert trees[0] is not None and trees[1] is not None
    walk = Walk.of([t for t in trees if t is not None])
    spreads = []
    for p in problems:
        ranked, shared = walk.sums(p.columns.values).T
        spreads.append((np.std(_start(p.columns) - ranked), np.std(_share_start(p.columns) + shared)))
    return walk, np.maximum(np.median(np.array(spreads), axis=0), 1e-6)


def _weights(problems: Sequence[LearnedProblem]) -> np.ndarray:
    """Return the weight of each problem: all kernels together count alike, one on average."""
    kernels, number, counts = np.unique(
        [p.kernel for p in problems], return_inverse=True, return_counts=True
    )
    weight: np.ndarray = len(problems) / len(kernels) / counts[number]
    return weight


def _curve(
    score: np.ndarray, lost: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return knots of the rising curve nearest to what was lost, and the error left."""
    from sklearn.isotonic import IsotonicRegression

    at = np.unique(np.quantile(score, np.linspace(0.0, 1.0, KNOTS)))
    mean = IsotonicRegression().fit(score, lost, sample_weight=weight).predict(at)
    wrong = lost - np.interp(score, at, mean)
    matters = score <= np.quantile(score, 0.5)
    spread = np.sqrt(np.average(wrong[matters] ** 2, weights=weight[matters]))
    return at, mean, float(spread)
