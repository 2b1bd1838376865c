"""The posterior of a Gaussian process: `models/gaussian_process.py`."""

import numpy as np
import pytest

from foretune.models.covariance import (
    ConstantCovariance,
    GroupCovariance,
    Hyperprior,
    LinearCovariance,
    MaternCovariance,
)
from foretune.models.gaussian_process import CHUNK_ROWS, GaussianProcess, Posterior

ANY = Hyperprior(0.7)
PROCESS = GaussianProcess.from_prior(
    [
        MaternCovariance(slice(0, 3), ANY, ANY, 2.5),
        LinearCovariance(3, ANY),
        GroupCovariance(4, Hyperprior(0.2, 0.0)),
        ConstantCovariance(Hyperprior(1.0, 0.0)),
    ],
    Hyperprior(0.01),
)


def example(rows, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random((rows, 3)), rng.normal(size=rows), rng.integers(3, size=rows)])
    return X, np.sin(4 * X[:, :3].sum(axis=1)) + 0.3 * X[:, 3]


X, Y = example(12)
Z, _ = example(20, seed=5)


def by_the_textbook(X, y, Z):
    """Return mean and covariance, by one inverse."""
    inverse = np.linalg.inv(PROCESS.covariance(X, X) + PROCESS.noise * np.eye(len(X)))
    cross = PROCESS.covariance(Z, X)
    return cross @ inverse @ y, PROCESS.covariance(Z, Z) - cross @ inverse @ cross.T


def says(posterior, y=Y, X=X, Z=Z):
    """Check that a posterior says of its candidates what the textbook says."""
    mean, covariance = by_the_textbook(X, y, Z)
    assert np.allclose(posterior.mean, mean, atol=1e-6)
    assert np.allclose(posterior.spread**2, np.diag(covariance), atol=1e-6)
    assert np.allclose(posterior.covariance(np.arange(len(Z))), covariance, atol=1e-6)


def test_posterior_equals_textbook_formula():
    says(Posterior(PROCESS, X, Y, Z))


@pytest.mark.parametrize("first", [0, 1, 5])
def test_add_one_by_one_equals_all_at_once(first):
    posterior = Posterior(PROCESS, X[:first], Y[:first], Z)
    for i in range(first, len(X)):
        posterior.add(X[i : i + 1])
        posterior.set_values(Y[: i + 1])
    says(posterior)


def test_at_other_points_equals_new_posterior():
    posterior = Posterior(PROCESS, X, Y)
    says(posterior.at(Z))
    mean, spread = posterior.predict(Z)
    assert np.allclose(mean, posterior.at(Z).mean)
    assert np.allclose(spread, posterior.at(Z).spread)
    assert len(posterior.mean) == 0


def test_at_other_points_can_add_measurements():
    posterior = Posterior(PROCESS, X[:4], Y[:4]).at(Z)
    posterior.add(X[4:])
    posterior.set_values(Y)
    says(posterior)


def test_predict_in_chunks_equals_at_once():
    many, _ = example(CHUNK_ROWS + 3)
    posterior = Posterior(PROCESS, X, Y)
    mean, spread = posterior.predict(many)
    assert np.allclose(mean[-3:], posterior.at(many[-3:]).mean)
    assert np.allclose(spread[-3:], posterior.at(many[-3:]).spread)


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_mean_function_gives_the_same_mean(rows):
    points, _ = example(rows, seed=3)
    posterior = Posterior(PROCESS, X, Y)
    mean = posterior.mean_function()(points)
    assert np.allclose(mean, posterior.predict(points)[0], rtol=1e-9, atol=1e-9)


def test_pending_measurement_keeps_mean_and_shrinks_spread():
    posterior = Posterior(PROCESS, X, Y, Z)
    mean = posterior.mean
    spread = posterior.spread
    posterior.add(Z[:3])
    assert len(posterior) == 15
    assert np.allclose(posterior.mean, mean)
    assert (posterior.spread[:3] < 0.9 * spread[:3]).all()
    told = Posterior(PROCESS, np.vstack([X, Z[:3]]), np.append(Y, mean[:3]), Z)
    assert np.allclose(told.mean, mean)
    assert np.allclose(told.spread, posterior.spread)


def test_drop_pending_restores_posterior():
    posterior = Posterior(PROCESS, X, Y, Z)
    posterior.add(Z[:3])
    posterior.drop_pending(3)
    assert len(posterior) == 12
    says(posterior)


def test_set_values_replaces_values():
    posterior = Posterior(PROCESS, X, Y, Z)
    posterior.set_values(-2 * Y)
    says(posterior, -2 * Y)


def test_add_beyond_preallocated_rows():
    X, y = example(90)
    posterior = Posterior(PROCESS, X[:0], y[:0], Z)
    for part in np.array_split(np.arange(90), 7):
        posterior.add(X[part])
    posterior.set_values(y)
    says(posterior, y, X)


def test_posterior_without_measurements_is_the_prior():
    posterior = Posterior(PROCESS, X[:0], Y[:0], Z, prior=np.arange(20.0))
    assert np.allclose(posterior.mean, np.arange(20.0))
    assert np.allclose(posterior.spread**2, PROCESS.variance(Z))


def test_scale_and_observation_noise():
    plain = Posterior(PROCESS, X, Y, Z)
    other = Posterior(PROCESS, X, 3 * Y, Z, prior=5.0, scale=3.0, observation_noise=True)
    assert np.allclose(other.mean, 5 + 3 * plain.mean)
    assert np.allclose(other.spread**2, 9 * (plain.spread**2 + PROCESS.noise))
    numbers = np.array([3, 1])
    noise = PROCESS.noise * np.eye(2)
    assert np.allclose(other.covariance(numbers), 9 * (plain.covariance(numbers) + noise))


def test_extra_noise_of_some_measurements():
    more = np.where(np.arange(12) < 3, 1e6, 0.0)
    posterior = Posterior(PROCESS, X, Y, Z, extra_noise=more)
    without = Posterior(PROCESS, X[3:], Y[3:], Z)
    assert np.allclose(posterior.mean, without.mean, atol=1e-4)
    assert np.allclose(posterior.spread, without.spread, atol=1e-4)


def test_single_precision_is_close():
    whole = Posterior(PROCESS, X, Y)
    half = Posterior(PROCESS, X, Y).in_single_precision()
    assert half.at(Z)._buffer.dtype == np.float32
    assert np.allclose(half.at(Z).mean, whole.at(Z).mean, atol=1e-3)
    assert np.allclose(half.at(Z).spread, whole.at(Z).spread, atol=1e-3)


def test_leave_one_out_equals_posterior_without_the_row():
    posterior = Posterior(PROCESS, X, Y, scale=2.0)
    off, deviations = posterior.leave_one_out()
    rest = Posterior(PROCESS, X[1:], Y[1:], X[:1], scale=2.0, observation_noise=True)
    assert off[0] == pytest.approx(Y[0] - rest.mean[0], rel=1e-6)
    assert deviations[0] == pytest.approx(rest.spread[0], rel=1e-6)


def test_posterior_without_inputs_has_common_mean():
    process = GaussianProcess.from_prior(
        [ConstantCovariance(ANY), MaternCovariance(slice(0, 0), ANY, ANY, 2.5)], ANY
    )
    posterior = Posterior(process, np.empty((12, 0)), Y, np.empty((4, 0)))
    assert np.ptp(posterior.mean) == pytest.approx(0)
    assert np.isfinite(posterior.spread).all()
