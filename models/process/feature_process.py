"""The process for runs that features describe: what it expects, and how it is saved.

A constant, a function of the features in which times change gradually, and one of all of them,
details like how full the last wave of tiles is among them. Values are logarithms of ratios.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from foretune.models.process.posterior import Posterior
from foretune.models.process.process import GaussianProcess
from foretune.models.process.terms import ConstantCovariance, Hyperprior, MaternCovariance

CONSTANT_PRIOR, FUNCTION_PRIOR, NOISE_PRIOR = Hyperprior(0.1), Hyperprior(0.1), Hyperprior(0.02)
"""Variances of the constant, of each function, and of a measurement."""
LENGTH_PRIOR = Hyperprior(1.3, 0.8)
"""In deviations of a feature."""
SMOOTHNESS = 1.5
MAX_STEPS = 25


def feature_process(gradual_count: int, inputs: int) -> GaussianProcess:
    """Return the process as it is expected.

    Args:
        gradual_count: so many inputs, the first ones, are those in which times change gradually.
        inputs: how many there are, each with a deviation of about one.
    """
    parts = [
        MaternCovariance(slice(0, size), FUNCTION_PRIOR, LENGTH_PRIOR, SMOOTHNESS)
        for size in (gradual_count, inputs)
    ]
    return GaussianProcess.from_prior([ConstantCovariance(CONSTANT_PRIOR), *parts], NOISE_PRIOR)


def fit_process(X: np.ndarray, y: np.ndarray, gradual_count: int) -> GaussianProcess:
    """Return the process whose parameters are likeliest, of values ``y`` at points ``X``."""
    return feature_process(gradual_count, X.shape[1]).fitted(X, y, MAX_STEPS)


def posterior_arrays(posterior: Posterior) -> dict[str, Any]:
    """Return what `posterior_from_arrays` reads."""
    _, first, _ = posterior.process.terms_with_parameters()
    return {
        "X": posterior.X,
        "y": posterior.y,
        "gradual": np.array(len(first[1]) - 1),
        "log_parameters": posterior.process.parameters,
    }


def posterior_from_arrays(data: Mapping[str, np.ndarray]) -> Posterior:
    """Return what `posterior_arrays` was given, that of a measurement."""
    X = data["X"]
    process = feature_process(int(data["gradual"]), X.shape[1])
    process = replace(process, parameters=data["log_parameters"])
    return Posterior(process, X, data["y"], observation_noise=True)
