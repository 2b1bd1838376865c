"""Correction: what a few runs on a new device (or of a new kind) say about a trained predictor.

A Gaussian process (Rasmussen and Williams, 2006) on the logarithm of measured over predicted, over
the sizes and settings of the runs. Near measured runs it moves the prediction to where they were,
far from them it goes back to their mean error. Its own uncertainty, scaled so that it holds for
nine of ten runs when each is left out (residuals in closed form, ibid. 5.4.2), is the new interval.
"""

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Rows, as_array
from foretune.models.spread import quantile

LEAST_ROWS = 5
MOST_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
LEAST_TO_TUNE = 40
"""Fewer rows do not tell how far apart two runs may be and still say something of each other."""
PRIOR_ROWS = 3.0
"""As many rows without error are assumed beside the measured ones: one run alone proves little."""
CHUNK_ROWS = 8192


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        numbers: column -> mean and deviation of its (logarithmic, where positive) values.
        texts: column -> the values it has an indicator for.
        widening: what the process's deviation is multiplied with for a 90 % interval.
    """

    def fit(self, runs: pd.DataFrame, errors: np.ndarray, seed: int = 0) -> Self:
        """Learn from ``errors`` of ``runs``, at least `LEAST_ROWS`; `MOST_ROWS` are used."""
        if len(runs) > MOST_ROWS:
            some = np.random.default_rng(seed).choice(len(runs), MOST_ROWS, replace=False)
            runs, errors = runs.iloc[some], errors[some]
        self._describe(runs)
        self._fit_process(self._inputs(Rows(runs)), errors, theta=None)
        return self

    def predict(self, rows: pd.DataFrame | Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        X = self._inputs(Rows.of(rows))
        parts = [
            self.process.predict(X[start : start + CHUNK_ROWS], return_std=True)
            for start in range(0, max(len(X), 1), CHUNK_ROWS)
            if len(X)
        ]
        if not parts:
            return np.empty(0), np.empty(0)
        mean, deviation = (np.concatenate(values) for values in zip(*parts, strict=True))
        return mean + self.shift, self.widening * deviation

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        card = {
            "numbers": self.numbers, "texts": self.texts, "shift": self.shift,
            "theta": self.process.kernel_.theta.tolist(),
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(folder / f"{name}.npz", X=self.X, errors=self.errors)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        correction.numbers = {c: (v[0], v[1], v[2]) for c, v in card["numbers"].items()}
        correction.texts = card["texts"]
        with np.load(folder / f"{name}.npz", allow_pickle=False) as data:
            correction._fit_process(data["X"], data["errors"], np.array(card["theta"]))
        return correction

    def _describe(self, runs: pd.DataFrame) -> None:
        self.numbers: dict[str, tuple[bool, float, float]] = {}
        self.texts: dict[str, list[str]] = {}
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            values = as_array(runs[column])
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if len(distinct) > 1:
                    self.texts[column] = distinct
            elif np.nanmin(values) != np.nanmax(values):
                logarithmic = bool(np.nanmin(values) > 0)
                scaled = np.log2(values) if logarithmic else values
                spread = float(np.nanstd(scaled)) or 1.0
                self.numbers[column] = (logarithmic, float(np.nanmean(scaled)), spread)

    def _inputs(self, rows: Rows) -> np.ndarray:
        columns = [np.zeros(len(rows))]
        for column, (logarithmic, mean, spread) in self.numbers.items():
            values = rows[column]
            scaled = np.log2(np.maximum(values, 1e-30)) if logarithmic else values
            columns.append(np.nan_to_num((scaled - mean) / spread))
        for column, distinct in self.texts.items():
            values = rows[column]
            columns += [(values == text) * 2.0 for text in distinct]
        return np.column_stack(columns)

    def _fit_process(self, X: np.ndarray, errors: np.ndarray, theta: np.ndarray | None) -> None:
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        length = np.full(X.shape[1], 2.0)
        kernel: Any = ConstantKernel(0.05, (1e-4, 10.0)) * Matern(length, (0.2, 100.0), nu=1.5)
        kernel = kernel + WhiteKernel(1e-3, (1e-5, 0.3))
        self.X, self.errors = X, errors
        self.shift = float(np.median(errors)) * len(errors) / (len(errors) + PRIOR_ROWS)
        fixed = theta is not None
        if len(X) < LEAST_TO_TUNE:
            few = ConstantKernel(0.05) * Matern(np.full(X.shape[1], 4.0), nu=1.5)
            kernel, fixed = few + WhiteKernel(0.03), True
        elif theta is not None:
            kernel = kernel.clone_with_theta(theta)
        self.process = GaussianProcessRegressor(
            kernel, optimizer=None if fixed else "fmin_l_bfgs_b", random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound: no matter
            self.process.fit(X, errors - self.shift)
        self.widening = self._widening()

    def _widening(self) -> float:
        """Return the factor with which left-out residuals stay within the deviation."""
        from scipy.linalg import cho_solve

        inverse = cho_solve((self.process.L_, True), np.eye(len(self.X)))
        variance = 1.0 / np.diag(inverse)
        left_out = self.process.alpha_.ravel() * variance
        return quantile(np.abs(left_out) / np.sqrt(variance))
