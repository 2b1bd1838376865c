"""Parameters of a Gaussian process, and their fit: `models/gaussian_process.py`."""

import numpy as np
import pytest

from foretune.models.covariance import (
    ConstantCovariance,
    GroupCovariance,
    Hyperprior,
    LinearCovariance,
    MaternCovariance,
)
from foretune.models.gaussian_process import INVALID_LOSS, GaussianProcess

INPUTS = 4
ANY = Hyperprior(0.5)
FIXED = Hyperprior(0.3, 0.0)
PROCESS = GaussianProcess.from_prior(
    [
        MaternCovariance(slice(0, INPUTS), ANY, ANY, 2.5),
        MaternCovariance(slice(0, 2), ANY, ANY, 1.5),
        LinearCovariance(INPUTS, ANY),
        GroupCovariance(INPUTS + 1, FIXED),
        ConstantCovariance(FIXED),
    ],
    Hyperprior(0.01, 1.0, 1e-5, 1.0),
)


def example(rows, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(rows, INPUTS + 1)), rng.integers(3, size=rows)])
    return X, np.sin(2 * X[:, 2]) + 0.5 * X[:, INPUTS] + rng.normal(0, 0.05, rows)


def moved(process, seed=1):
    off = np.random.default_rng(seed).normal(0, 0.3, len(process.parameters))
    return process.parameters + off


def test_loss_gradient_equals_finite_differences():
    X, y = example(30)
    at = moved(PROCESS)
    steps = 1e-5 * np.eye(len(at))
    losses = [[PROCESS._loss(at + sign * s, X, y)[0] for sign in (1, -1)] for s in steps]
    expected = [(up - down) / 2e-5 for up, down in losses]
    assert np.allclose(PROCESS._loss(at, X, y)[1], expected, rtol=1e-5, atol=1e-5)


def test_covariance_is_sum_of_terms():
    X, _ = example(6)
    expected = sum(t.covariance(own, X, X) for t, own in PROCESS.terms_with_parameters())
    assert np.allclose(PROCESS.covariance(X, X), expected)
    assert np.allclose(np.diag(expected), PROCESS.variance(X))


def test_fitted_finds_relevant_input_and_keeps_fixed_parameters():
    X, y = example(60)
    fitted = PROCESS.fitted(X, y, 30)
    (_, smooth), _, _, (_, label), (_, constant) = fitted.terms_with_parameters()
    assert smooth[1:].argmin() == 2
    assert np.allclose(np.exp([*label, *constant]), 0.3)
    assert fitted._loss(fitted.parameters, X, y)[0] < PROCESS._loss(PROCESS.parameters, X, y)[0]
    assert 1e-5 <= np.exp(fitted.parameters[-1]) <= 1.0


def test_fitted_few_values_keep_prior_lengths():
    (_, smooth), *_ = PROCESS.fitted(*example(4), 30).terms_with_parameters()
    assert np.all(np.abs(smooth[1:] - np.log(0.5 * INPUTS**0.5)) < 1.0)


def test_fitted_recovers_from_invalid_step():
    X, y = example(5)
    too_far = np.full(len(PROCESS.parameters), 300.0)
    loss, gradient = PROCESS._loss(too_far, np.vstack([X, X]), np.append(y, y))
    assert loss == INVALID_LOSS
    assert not gradient.any()


@pytest.mark.parametrize("steps", [1, 50])
def test_fitted_without_inputs_finds_noise_and_offset(steps):
    process = GaussianProcess.from_prior([ConstantCovariance(ANY)], ANY)
    fitted = process.fitted(np.empty((6, 0)), np.full(6, 0.3), steps)
    assert np.isfinite(fitted.parameters).all()
