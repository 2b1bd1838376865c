"""Costs: how many seconds measuring each candidate would take, learned from what it took."""

from collections.abc import Mapping

import numpy as np

from foretune.models.gaussian_process import Posterior
from foretune.search.surrogate_process import FIT_STEPS, subsample_measurements, surrogate_process

MIN_MEASUREMENTS = 4
"""Measurements from which on costs are learned."""


def log_seconds(
    known: np.ndarray, points: np.ndarray, seconds: Mapping[int, float], rng: np.random.Generator
) -> np.ndarray:
    """Return the logarithm of the seconds that measuring at ``points`` is expected to take.

    Builds, repeats and failures count alike: a configuration that hangs costs its whole limit.

    Args:
        known: where was measured (measurements, axes), in the order of ``seconds``.
        points: of the candidates (candidates, axes).
        seconds: what each measurement took, by configuration number.
        rng: chooses among many measurements.
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
