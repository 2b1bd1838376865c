"""Predicts the measurement time of each candidate."""

from collections.abc import Mapping

import numpy as np

from foretune.models.gaussian_process import Posterior
from foretune.search.surrogate_process import FIT_STEPS, subsample_measurements, surrogate_process

MIN_MEASUREMENTS = 4
"""Minimum number of measurements from which costs are learned."""


def log_seconds(
    known: np.ndarray, points: np.ndarray, seconds: Mapping[int, float], rng: np.random.Generator
) -> np.ndarray:
    """Return the log of the expected measurement time in seconds at ``points``.

    Builds, repeats and failures all count.

    Args:
        known: points of the measured configurations (measurements, axes), in the order of
            ``seconds``.
        points: points of the candidates (candidates, axes).
        seconds: measurement times by configuration number.
        rng: subsamples long histories.
    """
    if len(seconds) < MIN_MEASUREMENTS:
        return np.zeros(len(points))
    logs = np.log(np.maximum(list(seconds.values()), 1e-6))
    some = subsample_measurements(-logs, rng)
    middle, unit = float(logs.mean()), float(logs.std()) or 1.0
    X, y = known[some], (logs[some] - middle) / unit
    process = surrogate_process(X.shape[1]).fitted(X, y, FIT_STEPS)
    expected: np.ndarray = middle + unit * Posterior(process, X, y, points).mean
    return expected
