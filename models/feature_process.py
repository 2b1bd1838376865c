"""The Gaussian process on features of runs, of the smooth expert and of calibrations.

The first inputs are *gradual*: time changes gradually along them. They have a separate term,
beside the term of all inputs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from foretune.models.covariance import ConstantCovariance, Hyperprior, MaternCovariance
from foretune.models.gaussian_process import GaussianProcess

WORK_FEATURES = ("log2_flops", "log2_bytes", "log2_intensity", "log2_roofline_ms")
"""Features of the amount and kind of work, present if the cost is known; they are gradual."""
CONSTANT_PRIOR = Hyperprior(0.1)
"""Prior of the constant's variance."""
FUNCTION_PRIOR = Hyperprior(0.1)
"""Prior of each function's variance."""
NOISE_PRIOR = Hyperprior(0.02)
"""Prior of the noise's variance."""
LENGTH_PRIOR = Hyperprior(1.3, 0.8)
"""Prior of lengths, in standard deviations of an input."""
SMOOTHNESS = 1.5
"""Smoothness of the Matérn functions."""
MAX_STEPS = 25
"""Maximum iterations of the optimizer of parameters."""
MIN_DEVIATION = 1e-6
"""Inputs with a smaller deviation are constant up to rounding."""


def feature_process(gradual_count: int, n_inputs: int) -> GaussianProcess:
    """Return the prior process; the first ``gradual_count`` inputs also have a separate term."""
    functions = [
        MaternCovariance(slice(0, size), FUNCTION_PRIOR, LENGTH_PRIOR, SMOOTHNESS)
        for size in (gradual_count, n_inputs)
    ]
    terms = [ConstantCovariance(CONSTANT_PRIOR), *functions]
    return GaussianProcess.from_prior(terms, NOISE_PRIOR)


def fit_process(X: np.ndarray, y: np.ndarray, gradual_count: int) -> GaussianProcess:
    """Return the process with maximum a posteriori parameters for values ``y`` at points ``X``."""
    return feature_process(gradual_count, X.shape[1]).fitted(X, y, MAX_STEPS)


@dataclass(frozen=True)
class Scaling:
    """Standardizes inputs by their mean and deviation, and drops constant ones."""

    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, inputs: np.ndarray) -> Self:
        """Fit to inputs (rows, inputs); NaN is unknown."""
        known = np.ma.masked_invalid(inputs)
        return cls(known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0))

    def points(self, inputs: np.ndarray, gradual_count: int) -> tuple[np.ndarray, int]:
        """Return scaled inputs, and how many of the first ``gradual_count`` inputs remain."""
        varying, center, scale = self._varying
        points = (inputs[:, varying] - center) / scale
        points[np.isnan(points)] = 0.0  # unknown: the mean
        return points, int((varying < gradual_count).sum())

    @cached_property
    def _varying(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of the inputs that vary, with their center and scale."""
        varying = np.flatnonzero(self.scale > MIN_DEVIATION)
        return varying, self.center[varying], self.scale[varying]
