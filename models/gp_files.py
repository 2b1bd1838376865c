"""Saves the posterior of a `feature_process` as arrays; loading them runs no code."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from foretune.models.feature_process import Scaling, feature_process
from foretune.models.gaussian_process import Posterior


def process_arrays(scaling: Scaling, posterior: Posterior) -> dict[str, Any]:
    """Return the arrays that `process_from_arrays` reads."""
    _constant, (_, gradual_parameters), _all = posterior.process.terms_with_parameters()
    gradual_count = len(gradual_parameters) - 1  # a length per input, and the variance
    return {
        "centre": scaling.center,
        "scale": scaling.scale,
        "X": posterior.X,
        "y": posterior.y,
        "gradual": np.array(gradual_count),
        "log_parameters": posterior.process.parameters,
    }


def process_from_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[Scaling, Posterior]:
    """Return the inputs' scaling and the posterior, with observation noise."""
    X = arrays["X"]
    process = feature_process(int(arrays["gradual"]), X.shape[1])
    process = replace(process, parameters=arrays["log_parameters"])
    posterior = Posterior(process, X, arrays["y"], observation_noise=True)
    return Scaling(arrays["centre"], arrays["scale"]), posterior
