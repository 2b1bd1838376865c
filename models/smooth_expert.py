"""The smooth expert: a Gaussian process on the features.

It is an expert where few rows have measured neighbors, and on what a learned law leaves.
Hyperparameters are fitted once; each hold-out only conditions the process on its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.feature_process import WORK_FEATURES, Scaling, fit_process
from foretune.models.gaussian_process import Posterior
from foretune.models.gp_files import process_arrays, process_from_arrays
from foretune.support.files import read_arrays

MAX_ROWS = 1000
"""Maximum rows that the process is conditioned on."""
MAX_TUNING_ROWS = 400
"""Maximum rows for fitting hyperparameters, which has cubic cost; more rows change little."""
GRADUAL_PREFIXES = ("problem.", "config.")
"""Groups of columns along which times change gradually."""


@dataclass(frozen=True)
class SmoothExpert:
    """A posterior, fitted to the residuals of the ``mean``, and its inputs.

    ``order`` has the feature indices, the ``gradual_count`` gradual ones first; ``octaves`` are the
    inputs on a log2 scale.
    """

    order: np.ndarray
    gradual_count: int
    octaves: np.ndarray
    scaling: Scaling
    mean: float
    posterior: Posterior

    @classmethod
    def fit_hyperparameters(
        cls, columns: Sequence[str], X: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> Self:
        """Fit hyperparameters on a random subset of the rows."""
        # Gradual features come first; those that are always positive count in octaves.
        is_gradual = np.array([_is_gradual(name) for name in columns])
        order = np.argsort(~is_gradual, kind="stable")
        gradual_count = int(is_gradual.sum())
        octaves = (np.nan_to_num(X[:, order], nan=1.0) > 0.0).all(axis=0)
        octaves[gradual_count:] = False

        scaling = Scaling.fit(_inputs(X, order, octaves))
        sampled = rng.permutation(len(X))[:MAX_TUNING_ROWS]
        inputs = _inputs(X[sampled], order, octaves)
        points, varying_gradual_count = scaling.points(inputs, gradual_count)
        mean = float(y[sampled].mean())
        residuals = y[sampled] - mean
        process = fit_process(points, residuals, varying_gradual_count)
        posterior = Posterior(process, points, residuals)
        return cls(
            order=order,
            gradual_count=gradual_count,
            octaves=octaves,
            scaling=scaling,
            mean=mean,
            posterior=posterior,
        )

    def refit(self, X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Self:
        """Return an expert with the same hyperparameters for these rows (at most `MAX_ROWS`)."""
        sampled = rng.permutation(len(X))[:MAX_ROWS]
        mean = float(y[sampled].mean())
        points = self._points(X[sampled])
        posterior = Posterior(self.posterior.process, points, y[sampled] - mean)
        return replace(self, mean=mean, posterior=posterior)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict, clipped to the range of the training values."""
        deviation = self._mean_function(self._points(X))
        return self.mean + np.clip(deviation, *self._value_range)

    def save(self, path: Path) -> None:
        """Write one file of arrays."""
        np.savez_compressed(
            path,
            order=self.order,
            first=self.gradual_count,
            octaves=self.octaves,
            mean=self.mean,
            **process_arrays(self.scaling, self.posterior),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file."""
        arrays = read_arrays(path)
        scaling, posterior = process_from_arrays(arrays)
        return cls(
            order=arrays["order"],
            gradual_count=int(arrays["first"]),
            octaves=arrays["octaves"],
            scaling=scaling,
            mean=float(arrays["mean"]),
            posterior=posterior,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the cached function out: it cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_mean_function"}

    @cached_property
    def _value_range(self) -> tuple[float, float]:
        return float(self.posterior.y.min()), float(self.posterior.y.max())

    @cached_property
    def _mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.posterior.mean_function()

    def _points(self, X: np.ndarray) -> np.ndarray:
        points, _ = self.scaling.points(_inputs(X, self.order, self.octaves), self.gradual_count)
        return points


def _is_gradual(column: str) -> bool:
    return column.startswith(GRADUAL_PREFIXES) or column in WORK_FEATURES


def _inputs(X: np.ndarray, order: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    """Return the features in another order, some on a log2 scale; NaN if that is not finite."""
    inputs = X[:, order].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log2(inputs, out=inputs, where=octaves)
    inputs[np.isinf(inputs)] = np.nan
    return inputs
