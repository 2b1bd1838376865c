"""Correction: what a few runs on a new device (or of a new kind) say about a trained predictor.

A Gaussian process on the logarithm of measured over predicted, between rows that are alike
(`Likeness`). Near measured runs it moves the prediction to where they were, far from them it goes
back to their mean error. Its own uncertainty, scaled so that it holds for nine of ten runs when
each is left out, is the new interval.
"""

import json
from pathlib import Path
from typing import Self

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

MOST_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
MOST_TO_TUNE = 512
"""Scales are found on so many: more find the same, and the cost of finding them is a cube too."""


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        likeness: which rows are alike.
        posterior: what the Gaussian process says.
        widening: what its deviation is multiplied with for a 90 % interval.
    """

    likeness: Likeness
    posterior: Posterior
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
        self.widening = _widening(self.posterior, gradual)
        return self

    def predict(
        self, rows: pd.DataFrame | Rows, evidence: Evidence
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        mean, deviation = self.posterior.predict(self.likeness.points(Rows.of(rows), evidence)[0])
        return mean, self.widening * deviation

    @property
    def typical(self) -> float:
        """The half-width of the interval of a typical run it was learned from, left out."""
        return float(self.widening * np.median(self.posterior.left_out()[1]))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        like, arrays = self.likeness, posterior_arrays(self.posterior)
        card = {"numbers": like.numbers, "texts": like.texts, "widening": self.widening}
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(folder / f"{name}.npz", **like.scaling.arrays(), **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card, data = read_json(folder / f"{name}.json"), read_arrays(folder / f"{name}.npz")
        correction.widening = card["widening"]
        correction.likeness = Likeness(card["numbers"], card["texts"], Scaling.of_arrays(data))
        correction.posterior = posterior_of_arrays(data)
        return correction


def _widening(posterior: Posterior, gradual: int) -> float:
    """Return the factor with which the process's deviations hold for nine of ten left-out runs.

    Scales that were found with a run in sight make it seem better known than it was: with those of
    one half of the runs the other half is predicted.
    """
    X, y = posterior.X, posterior.y
    _, deviations = posterior.left_out()
    half = np.arange(len(y)) % 2 == 0
    misses = np.empty(len(y))
    for seen in (half, ~half):
        process = fitted_process(X[seen][:MOST_TO_TUNE], y[seen][:MOST_TO_TUNE], gradual)
        misses[~seen] = Posterior(process, X, y).left_out()[0][~seen]
    return quantile(np.maximum(np.abs(misses), SMALLEST) / deviations)
