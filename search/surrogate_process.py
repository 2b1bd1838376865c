"""The Gaussian process of searchers: covariance, hyperpriors, and refitting."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from foretune.models.covariance import (
    ConstantCovariance,
    CovarianceTerm,
    Hyperprior,
    MaternCovariance,
)
from foretune.models.gaussian_process import GaussianProcess

FIT_STEPS = 15  # optimizer steps per fit; it starts from the last result
REFIT_FACTOR = 1.15
"""Refit the process when it has this many times the measurements of the last fit."""
MAX_FITTED = 200  # maximum number of measurements that hyperparameters are fitted to
OFFSET = ConstantCovariance(Hyperprior(1.0, 0.0))  # constant offset of all residuals
LENGTH_SCALE = Hyperprior(0.5, 1.0, np.exp(-4.0), np.exp(4.0))
MULTIPLE = Hyperprior(0.5, 0.7, np.exp(-5.0), np.exp(2.0))
"""Standard deviation of the multiple of the prior by which the prior is wrong."""
NOISE = Hyperprior(1e-2, 1.5, 1e-5, 1.0)
MATERN_SMOOTHNESS = 2.5


def surrogate_process(
    axes: int, amplitude: float = 1.0, extra_terms: Sequence[CovarianceTerm] = (OFFSET,)
) -> GaussianProcess:
    """Return the process before any data, in units of the residuals' scale.

    Values are smooth along the first ``axes``; ``amplitude`` is that part's expected deviation.
    """
    scale = Hyperprior(amplitude**2, 1.5, np.exp(-8.0), np.exp(3.0))
    smooth = MaternCovariance(slice(0, axes), scale, LENGTH_SCALE, MATERN_SMOOTHNESS)
    return GaussianProcess.from_prior([smooth, *extra_terms], NOISE)


def subsample_measurements(losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the measurements to fit to: the best `MAX_FITTED` / 2, and random others."""
    if len(losses) <= MAX_FITTED:
        return np.arange(len(losses))
    order = np.argsort(losses, kind="stable")
    rest = rng.choice(order[MAX_FITTED // 2 :], MAX_FITTED // 2, replace=False)
    return np.concatenate([order[: MAX_FITTED // 2], rest])


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context with one BLAS thread: more threads slow down these small matrices."""
    return _threads().limit(limits=1, user_api="blas")


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: once
