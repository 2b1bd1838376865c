"""Correction: what a few runs on a new device (or of a new kind) say about a trained predictor.

A Gaussian process on the logarithm of measured over predicted, between rows that are alike
(`Likeness`). Near measured runs it moves the prediction to where they were, far from them it goes
back to their mean error. What jumps, with the alignment of a size say, boosted trees follow better:
they have a share in the correction, as large as makes runs that were left out best predicted. The
process's own uncertainty, scaled so that it holds for nine of ten runs when each is left out, is
the new interval.
"""

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.decoding import read_arrays, read_json
from foretune.features.arrays import Rows
from foretune.models.calibration.likeness import Evidence, Likeness
from foretune.models.process.feature_process import (
    fitted_process,
    posterior_arrays,
    posterior_of_arrays,
)
from foretune.models.process.posterior import Posterior
from foretune.models.process.scaling import Scaling
from foretune.models.target.spread import SMALLEST, quantile
from foretune.models.trees.boosting import BoostingModel

MOST_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
MOST_TO_TUNE = 512
"""Scales are found on so many: more find the same, and the cost of finding them is a cube too."""
LEAST_FOR_TREES, FOLDS = 64, 5
SHARES = (0.25, 0.5, 0.75)
"""Of the trees: the process always has its say, for the interval is its own."""
TREES: dict[str, Any] = {
    "rounds": 125, "depth": 5, "rate": 0.1, "rows": 0.7, "columns": 0.6, "least_weight": 3.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        likeness: which rows are alike.
        posterior: what the Gaussian process says.
        trees: learned from the same; None where they have no share.
        share: of the trees in the correction.
        widening: what its deviation is multiplied with for a 90 % interval.
    """

    likeness: Likeness
    posterior: Posterior
    trees: BoostingModel | None
    share: float
    widening: float

    def fit(
        self, runs: pd.DataFrame, evidence: Evidence, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Learn from ``errors`` of ``runs``, of which `MOST_ROWS` are used."""
        some = np.random.default_rng(seed).permutation(len(runs))[:MOST_ROWS]
        runs, evidence, y = runs.iloc[some], evidence[some], errors[some]
        self.likeness = Likeness.of(runs, evidence)
        X, gradual = self.likeness.points(Rows(runs), evidence)
        process = fitted_process(X[:MOST_TO_TUNE], y[:MOST_TO_TUNE], gradual)
        self.posterior = Posterior(process, X, y, observation_noise=True)
        misses, self.trees, self.share = _missed(self.posterior, gradual), None, 0.0
        if len(y) >= LEAST_FOR_TREES:
            self.share, misses = _best_share(misses, _missed_by_trees(X, y))
        if self.share:
            self.trees = BoostingModel(**TREES).fit(X.astype(np.float32), y)
        sizes = np.maximum(np.abs(misses), SMALLEST)
        self.widening = quantile(sizes / self.posterior.left_out()[1])
        return self

    def predict(
        self, rows: pd.DataFrame | Rows, evidence: Evidence
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        points = self.likeness.points(Rows.of(rows), evidence)[0]
        mean, deviation = self.posterior.predict(points)
        if self.trees is not None:
            mean += self.share * (self.trees.predict(points.astype(np.float32)) - mean)
        return mean, self.widening * deviation

    @property
    def typical(self) -> float:
        """The half-width of the interval of a typical run it was learned from, left out."""
        return float(self.widening * np.median(self.posterior.left_out()[1]))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        like, arrays = self.likeness, posterior_arrays(self.posterior)
        own = {"share": self.share, "widening": self.widening}
        card = {"numbers": like.numbers, "texts": like.texts, **own}
        if self.trees is not None:
            self.trees.save(folder / f"{name}{BoostingModel.suffix}")
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(folder / f"{name}.npz", **like.scaling.arrays(), **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card, data = read_json(folder / f"{name}.json"), read_arrays(folder / f"{name}.npz")
        correction.share, correction.widening = card["share"], card["widening"]
        file = folder / f"{name}{BoostingModel.suffix}"
        correction.trees = BoostingModel.load(file) if correction.share else None
        correction.likeness = Likeness(card["numbers"], card["texts"], Scaling.of_arrays(data))
        correction.posterior = posterior_of_arrays(data)
        return correction


def _missed(posterior: Posterior, gradual: int) -> np.ndarray:
    """Return by how much the process misses each run, left out.

    Scales that were found with a run in sight make it seem better known than it was: with those of
    one half of the runs the other half is predicted.
    """
    X, y = posterior.X, posterior.y
    half = np.arange(len(y)) % 2 == 0
    misses = np.empty(len(y))
    for seen in (half, ~half):
        process = fitted_process(X[seen][:MOST_TO_TUNE], y[seen][:MOST_TO_TUNE], gradual)
        misses[~seen] = Posterior(process, X, y).left_out()[0][~seen]
    return misses


def _missed_by_trees(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return by how much trees miss each run that others taught."""
    X, fold, misses = X.astype(np.float32), np.arange(len(y)) % FOLDS, np.empty(len(y))
    for number in range(FOLDS):
        out = fold == number
        misses[out] = y[out] - BoostingModel(**TREES).fit(X[~out], y[~out]).predict(X[out])
    return misses


def _best_share(missed: np.ndarray, by_trees: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the trees' share, and by how much runs are missed with it.

    It is none unless they gain more than a standard error: few runs favor one of several by chance.
    """
    mixed = {share: missed + share * (by_trees - missed) for share in SHARES}
    best = min(SHARES, key=lambda share: np.abs(mixed[share]).mean())
    gain = np.abs(missed) - np.abs(mixed[best])
    if gain.mean() > gain.std(ddof=1) / len(gain) ** 0.5:
        return best, mixed[best]
    return 0.0, missed
