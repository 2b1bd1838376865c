"""The smooth expert: a Gaussian process on the features, for tables with few runs.

Trees need many runs to learn a slope; a process joins two points. With a few hundred runs of a
search space both are equally accurate and make different errors. With thousands, trees catch up,
and the process' cubic cost no longer pays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.files import read_arrays
from foretune.models.calibration import WORK_FEATURES
from foretune.models.gaussian_process import (
    Posterior,
    Scaling,
    fit_process,
    posterior_arrays,
    posterior_from_arrays,
)

MAX_ROWS = 1000
MAX_TUNING_ROWS = 400
"""Rows used to fit hyperparameters, which also has cubic cost; more rows find the same."""
GRADUAL_PREFIXES = ("problem.", "config.")
"""Columns along which times change gradually."""


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
        first = [
            i
            for i, name in enumerate(columns)
            if name.startswith(GRADUAL_PREFIXES) or name in WORK_FEATURES
        ]
        order = np.array([*first, *sorted(set(range(len(columns))) - set(first))])
        octaves = (np.nan_to_num(X[:, order], nan=1.0) > 0.0).all(axis=0)
        octaves[len(first) :] = False
        scaling = Scaling.fit(_inputs(X, order, octaves))
        sampled = rng.permutation(len(X))[:MAX_TUNING_ROWS]
        points, gradual_count = scaling.points(_inputs(X[sampled], order, octaves), len(first))
        mean = float(y[sampled].mean())
        process = fit_process(points, y[sampled] - mean, gradual_count)
        posterior = Posterior(process, points, y[sampled] - mean)
        return cls(order, len(first), octaves, scaling, mean, posterior)

    def refit(self, X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Self:
        """Return an expert with the same hyperparameters for these rows (at most `MAX_ROWS`)."""
        sampled = rng.permutation(len(X))[:MAX_ROWS]
        mean = float(y[sampled].mean())
        posterior = Posterior(self.posterior.process, self._points(X[sampled]), y[sampled] - mean)
        return replace(self, mean=mean, posterior=posterior)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict, clipped to the range of the training values."""
        deviation = self._mean_function(self._points(X))
        return self.mean + np.minimum(
            np.maximum(deviation, self._value_range[0]), self._value_range[1]
        )

    def save(self, path: Path) -> None:
        """Write one file of arrays."""
        np.savez_compressed(
            path, order=self.order, first=self.gradual_count, octaves=self.octaves, mean=self.mean,
            **self.scaling.arrays(), **posterior_arrays(self.posterior),
        )  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file."""
        data = read_arrays(path)
        return cls(
            data["order"], int(data["first"]), data["octaves"], Scaling.from_arrays(data),
            float(data["mean"]), posterior_from_arrays(data),
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_mean_function"}

    @cached_property
    def _value_range(self) -> tuple[float, float]:
        return float(self.posterior.y.min()), float(self.posterior.y.max())

    @cached_property
    def _mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.posterior.mean_function()

    def _points(self, X: np.ndarray) -> np.ndarray:
        return self.scaling.points(_inputs(X, self.order, self.octaves), self.gradual_count)[0]


def _inputs(X: np.ndarray, order: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    inputs = X[:, order].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log2(inputs, out=inputs, where=octaves)
    inputs[np.isinf(inputs)] = np.nan
    return inputs
