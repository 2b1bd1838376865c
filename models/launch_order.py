"""An order of launches that learned from other kernels: what is expected of one never measured.

Boosted trees see the columns of `foretune.features.launches` and learned to order the candidates of
a problem (LambdaMART; Burges, MSR-TR-2010-82). They start from the law among the columns, so where
nothing is like what they learned from, the law stands. A rising curve turns their scores into
expected ratios of times; it was made with kernels that were left out.

It comes as plain arrays, read in milliseconds, and needs nothing but NumPy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.decoding import decoding, read_arrays
from foretune.errors import PredictorError
from foretune.extras import require
from foretune.features.launches import LaunchColumns
from foretune.models.trees.walk import Walk

SHIPPED = Path(__file__).parent / "shipped" / "launches.npz"
ROUNDS = 200
TREES = {
    "objective": "rank:ndcg", "lambdarank_pair_method": "topk", "ndcg_exp_gain": False,
    "lambdarank_num_pair_per_sample": 4, "eta": 0.1, "max_depth": 4, "subsample": 0.8,
    "colsample_bytree": 0.5, "min_child_weight": 2, "seed": 0, "nthread": 1,
}  # fmt: skip
GAIN = 31.0
"""Gain of the fastest candidate for LambdaMART; others have the square of the share they keep."""
MOST_LOST = 1.5
"""Logarithm of a factor beyond which a candidate is as bad; failures are that bad, too."""
KNOTS = 24
"""Of the curve from scores to ratios."""
FIRST = 4
"""So many candidates are measured where the order is all that is known: the spread is to tell what
the best of them loses."""
SPREADS = 1e-3, 2.0
"""Between these the spread is looked for, with so many draws of each problem."""
DRAWS = 32
SLOPE = 1e-3
"""Least slope of the curve: what is ordered stays ordered."""


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
        walk: through the trees.
        scores, ratios: knots of the curve from scores, less the best, to logarithms of ratios.
        spread: standard deviation of what is then wrong: the one with which the loss expected of
            the best of the `FIRST` is the loss there was.
    """

    walk: Walk
    scores: np.ndarray
    ratios: np.ndarray
    spread: float

    @classmethod
    def fit(cls, problems: Sequence[LearnedProblem]) -> Self:
        """Learn from problems; needs XGBoost and scikit-learn.

        Where there are several kernels, the curve and the spread are those of each kernel as it is
        expected from the others, else of each half of the problems from the other.
        """
        kernels = sorted({p.kernel for p in problems})
        part = [kernels.index(p.kernel) for p in problems]
        if len(kernels) == 1:
            part = [i % 2 for i in range(len(problems))]
        ordered: list[np.ndarray] = []
        lost: list[np.ndarray] = []
        weight: list[float] = []
        for out in set(part):
            walk = _trees([p for p, i in zip(problems, part, strict=True) if i != out])
            for p in (p for p, i in zip(problems, part, strict=True) if i == out):
                runs = p.columns.fits & np.isfinite(p.time_ms)
                here = _scores(walk, p.columns)[runs]
                ordered.append(here - here.min(initial=np.inf))
                lost.append(p.lost[runs])
                weight.append(1.0 / part.count(out))
        scores, ratios = _curve(ordered, lost, weight)
        expected = [np.interp(each, scores, ratios) for each in ordered]
        return cls(_trees(problems), scores, ratios, _spread(expected, lost, weight))

    def log_ratios(self, columns: LaunchColumns) -> np.ndarray:
        """Return the logarithm of every candidate's expected time over the best."""
        scores, fits = _scores(self.walk, columns), columns.fits
        least = scores[fits].min() if fits.any() else scores.min()
        ratios: np.ndarray = np.interp(scores - least, self.scores, self.ratios)
        return ratios

    def save(self, path: Path) -> None:
        """Write one file of arrays."""
        arrays = {f.name: np.asarray(getattr(self.walk, f.name)) for f in fields(Walk)}
        arrays |= {n: a.astype(np.int32) for n, a in arrays.items() if a.dtype == np.int64}
        own = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name != "walk"}
        np.savez(path, **arrays, **own)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            PredictorError: it is damaged.
        """
        with decoding(path, PredictorError, "is damaged ({}): install Foretune again"):
            read: dict[str, Any] = {
                n: a if a.ndim else a.item() for n, a in read_arrays(path).items()
            }
            walk = Walk(**{f.name: read.pop(f.name) for f in fields(Walk)})
            walk.check()
            order = cls(walk, **read)
            if not (np.isfinite(order.ratios).all() and (np.diff(order.scores) >= 0).all()):
                raise ValueError("the curve is none")
            if order.scores.shape != order.ratios.shape or not 0.0 <= float(order.spread) < np.inf:
                raise ValueError("the spread is none")
            return order


@cache
def shipped_order() -> LaunchOrder:
    """Return the one that comes with Foretune."""
    return LaunchOrder.load(SHIPPED)


def _scores(walk: Walk, columns: LaunchColumns) -> np.ndarray:
    """Return a number for each candidate: the less, the better."""
    scores: np.ndarray = columns.law - walk.sums(columns.values)[:, 0]
    return scores


def _trees(problems: Sequence[LearnedProblem]) -> Walk:
    """Return trees that order; all kernels together count alike."""
    xgboost = require("xgboost", "learn", "a predictor of boosted trees")

    from foretune.models.trees.nodes import Trees

    kernels, number, counts = np.unique(
        [p.kernel for p in problems], return_inverse=True, return_counts=True
    )
    data = xgboost.DMatrix(
        np.concatenate([p.columns.values for p in problems]),
        GAIN * np.concatenate([p.kept for p in problems]) ** 2,
        group=[len(p.time_ms) for p in problems],
        weight=len(problems) / len(kernels) / counts[number],
        base_margin=-np.concatenate([p.columns.law for p in problems]),
    )
    trees = Trees.of(xgboost.train(TREES, data, ROUNDS))
    assert trees is not None
    return Walk.of([trees])


def _curve(
    ordered: Sequence[np.ndarray], lost: Sequence[np.ndarray], weight: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return knots of the rising curve from scores that is nearest to what was lost."""
    from sklearn.isotonic import IsotonicRegression

    scores = np.concatenate(ordered)
    at = np.unique(np.quantile(scores, np.linspace(0.0, 1.0, KNOTS)))
    weights = np.repeat(weight, [len(each) for each in ordered])
    rising = IsotonicRegression().fit(scores, np.concatenate(lost), sample_weight=weights)
    return at, rising.predict(at) + SLOPE * at


def _spread(
    expected: Sequence[np.ndarray], lost: Sequence[np.ndarray], weight: Sequence[float]
) -> float:
    """Return the spread of independent errors that would have told what the `FIRST` ones lose."""
    from scipy.optimize import brentq

    first = [np.argsort(each, kind="stable")[:FIRST] for each in expected]
    left = [loss[some].min(initial=MOST_LOST) for loss, some in zip(lost, first, strict=True)]
    seen = np.average(left, weights=weight)
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((DRAWS, len(each))) for each in expected]

    def more_than_seen(spread: float) -> float:
        told = []
        for mean, errors, some in zip(expected, drawn, first, strict=True):
            logs = mean + spread * errors
            told.append((logs[:, some].min(axis=1) - logs.min(axis=1)).mean())
        return float(np.average(told, weights=weight) - seen)

    return float(brentq(more_than_seen, *SPREADS, xtol=1e-3))
