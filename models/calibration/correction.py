"""Correction: what a few runs on a new device (or of a new kind) say about a trained predictor.

A Gaussian process on the logarithm of measured over predicted, between rows that are alike
(`Similarity`). Near measured runs it moves the prediction to where they were, far from them it goes
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
from foretune.models.calibration.likeness import CorrectionFeatures, Similarity
from foretune.models.process.feature_process import (
    fit_process,
    posterior_arrays,
    posterior_from_arrays,
)
from foretune.models.process.posterior import Posterior
from foretune.models.process.scaling import Scaling
from foretune.models.target.spread import MIN_ERROR, conformal_quantile
from foretune.models.trees.boosting import BoostingModel

MAX_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
MAX_TUNING_ROWS = 512
"""Scales are found on so many: more find the same, and the cost of finding them is a cube too."""
MIN_TREE_ROWS, FOLDS = 64, 5
TREE_SHARES = (0.25, 0.5, 0.75)
"""Of the trees: the process always has its say, for the interval is its own."""
TREE_PARAMETERS: dict[str, Any] = {
    "rounds": 125, "depth": 5, "rate": 0.1, "rows": 0.7, "columns": 0.6, "min_child_weight": 3.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        similarity: which rows are alike.
        posterior: what the Gaussian process says.
        trees: learned from the same; None where they have no share.
        tree_share: of the trees in the correction.
        interval_factor: what its deviation is multiplied with for a 90 % interval.
    """

    similarity: Similarity
    posterior: Posterior
    trees: BoostingModel | None
    tree_share: float
    interval_factor: float

    def fit(
        self, runs: pd.DataFrame, features: CorrectionFeatures, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Learn from ``errors`` of ``runs``, of which `MOST_ROWS` are used."""
        sampled = np.random.default_rng(seed).permutation(len(runs))[:MAX_ROWS]
        runs, features, y = runs.iloc[sampled], features[sampled], errors[sampled]
        self.similarity = Similarity.from_rows(runs, features)
        X, gradual_count = self.similarity.points(Rows(runs), features)
        process = fit_process(X[:MAX_TUNING_ROWS], y[:MAX_TUNING_ROWS], gradual_count)
        self.posterior = Posterior(process, X, y, observation_noise=True)
        residuals, self.trees, self.tree_share = (
            _left_out_errors(self.posterior, gradual_count),
            None,
            0.0,
        )
        if len(y) >= MIN_TREE_ROWS:
            self.tree_share, residuals = _best_share(residuals, _left_out_tree_errors(X, y))
        if self.tree_share:
            self.trees = BoostingModel(**TREE_PARAMETERS).fit(X.astype(np.float32), y)
        sizes = np.maximum(np.abs(residuals), MIN_ERROR)
        self.interval_factor = conformal_quantile(sizes / self.posterior.leave_one_out()[1])
        return self

    def predict(
        self, rows: pd.DataFrame | Rows, features: CorrectionFeatures
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        points = self.similarity.points(Rows.from_table(rows), features)[0]
        mean, deviation = self.posterior.predict(points)
        if self.trees is not None:
            mean += self.tree_share * (self.trees.predict(points.astype(np.float32)) - mean)
        return mean, self.interval_factor * deviation

    @property
    def median_half_width(self) -> float:
        """The half-width of the interval of a typical run it was learned from, left out."""
        return float(self.interval_factor * np.median(self.posterior.leave_one_out()[1]))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        similarity, arrays = self.similarity, posterior_arrays(self.posterior)
        scalars = {"share": self.tree_share, "widening": self.interval_factor}
        card = {"numbers": similarity.numbers, "texts": similarity.texts, **scalars}
        if self.trees is not None:
            self.trees.save(folder / f"{name}{BoostingModel.suffix}")
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(folder / f"{name}.npz", **similarity.scaling.arrays(), **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card, data = read_json(folder / f"{name}.json"), read_arrays(folder / f"{name}.npz")
        correction.tree_share, correction.interval_factor = card["share"], card["widening"]
        file = folder / f"{name}{BoostingModel.suffix}"
        correction.trees = BoostingModel.load(file) if correction.tree_share else None
        correction.similarity = Similarity(
            card["numbers"], card["texts"], Scaling.from_arrays(data)
        )
        correction.posterior = posterior_from_arrays(data)
        return correction


def _left_out_errors(posterior: Posterior, gradual_count: int) -> np.ndarray:
    """Return by how much the process misses each run, left out.

    Scales that were found with a run in sight make it seem better known than it was: with those of
    one half of the runs the other half is predicted.
    """
    X, y = posterior.X, posterior.y
    half = np.arange(len(y)) % 2 == 0
    errors = np.empty(len(y))
    for known in (half, ~half):
        process = fit_process(X[known][:MAX_TUNING_ROWS], y[known][:MAX_TUNING_ROWS], gradual_count)
        errors[~known] = Posterior(process, X, y).leave_one_out()[0][~known]
    return errors


def _left_out_tree_errors(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return by how much trees miss each run that others taught."""
    X, fold, errors = X.astype(np.float32), np.arange(len(y)) % FOLDS, np.empty(len(y))
    for number in range(FOLDS):
        out = fold == number
        errors[out] = y[out] - BoostingModel(**TREE_PARAMETERS).fit(X[~out], y[~out]).predict(
            X[out]
        )
    return errors


def _best_share(errors: np.ndarray, tree_errors: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the trees' share, and by how much runs are missed with it.

    It is none unless they gain more than a standard error: few runs favor one of several by chance.
    """
    mixed = {share: errors + share * (tree_errors - errors) for share in TREE_SHARES}
    best = min(TREE_SHARES, key=lambda share: np.abs(mixed[share]).mean())
    gain = np.abs(errors) - np.abs(mixed[best])
    if gain.mean() > gain.std(ddof=1) / len(gain) ** 0.5:
        return best, mixed[best]
    return 0.0, errors
