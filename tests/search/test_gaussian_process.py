import numpy as np
import pytest

from foretune.search.gaussian_process import CONSTANT, GaussianProcess, Posterior


def example(n=12, axes=3, seed=0):
    rng = np.random.default_rng(seed)
    X, prior = rng.random((n, axes)), rng.normal(size=n)
    return X, prior, np.sin(4 * X.sum(axis=1)) + 0.3 * prior


def fitted(n=12, axes=3):
    X, prior, y = example(n, axes)
    process = GaussianProcess(axes)
    process.fit(X, prior, y)
    return process, X, prior, y


def directly(process, X, prior, y, Z, prior_z):
    """Return the posterior by the textbook, one inverse."""
    K = process.covariance(X, prior, X, prior) + process.noise * np.eye(len(X))
    cross = process.covariance(Z, prior_z, X, prior) @ np.linalg.inv(K)
    mean = cross @ y
    K_z = process.covariance(Z, prior_z, X, prior)
    return mean, np.sqrt(process.variance(prior_z) - (cross * K_z).sum(axis=1))


def test_the_gradient_is_that_of_the_loss():
    X, prior, y = example()
    process = GaussianProcess(3)
    squares = ((X[:, None] - X) ** 2).transpose(2, 0, 1).reshape(3, -1)
    at = process.parameters + np.random.default_rng(1).normal(size=6) * 0.3
    about = (squares, np.outer(prior, prior), CONSTANT**2, y)
    _, gradient = process._loss(at, *about)
    for i, slope in enumerate(gradient):
        step = np.zeros(6)
        step[i] = 1e-5
        up, down = (process._loss(at + s, *about)[0] for s in (step, -step))
        assert slope == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-6)


def test_the_posterior_is_the_textbooks_however_it_was_told():
    process, X, prior, y = fitted()
    Z, prior_z, _ = example(20, seed=5)
    mean, spread = directly(process, X, prior, y, Z, prior_z)
    at_once, one_by_one = (Posterior(process, Z, prior_z) for _ in range(2))
    at_once.add(X, prior)
    for i in range(len(X)):
        one_by_one.add(X[i : i + 1], prior[i : i + 1])
    for posterior in (at_once, one_by_one):
        found_mean, found_spread = posterior.moments(y)
        assert np.allclose(found_mean, mean, atol=1e-6)
        assert np.allclose(found_spread, spread, atol=1e-6)


def test_what_is_forgotten_was_never_there():
    process, X, prior, y = fitted()
    Z, prior_z, _ = example(20, seed=5)
    posterior = Posterior(process, Z, prior_z)
    posterior.add(X, prior)
    before = posterior.moments(y)
    posterior.add(Z[:3], prior_z[:3])
    assert len(posterior) == 15
    assert (posterior.moments(np.append(y, [0, 0, 0]))[1][:3] < before[1][:3]).all()
    posterior.forget(3)
    assert len(posterior) == 12
    assert np.allclose(posterior.moments(y), before, atol=1e-9)


def test_it_finds_the_axis_that_matters():
    rng = np.random.default_rng(0)
    X = rng.random((40, 4))
    process = GaussianProcess(4)
    process.fit(X, np.zeros(40), np.sin(8 * X[:, 2]))
    assert process.parameters[:4].argmin() == 2


def test_it_unlearns_a_prior_that_is_upside_down():
    X, prior, _ = example(30)
    Z, prior_z, _ = example(50, seed=7)
    process = GaussianProcess(3)
    wrong = -2 * prior  # the truth is minus the prior
    process.fit(X, prior, wrong)
    posterior = Posterior(process, Z, prior_z)
    posterior.add(X, prior)
    corrected = prior_z + posterior.moments(wrong)[0]
    assert np.corrcoef(corrected, -prior_z)[0, 1] > 0.95


def test_a_posterior_outgrows_its_room():
    process, X, prior, y = fitted(90)
    Z, prior_z, _ = example(5, seed=5)
    posterior = Posterior(process, Z, prior_z)
    for part in np.array_split(np.arange(90), 7):
        posterior.add(X[part], prior[part])
    assert np.allclose(
        posterior.moments(y)[0], directly(process, X, prior, y, Z, prior_z)[0], atol=1e-5
    )


def test_points_without_axes_have_a_common_mean():
    process, X, prior, y = fitted(axes=0)
    posterior = Posterior(process, np.empty((4, 0)), np.zeros(4))
    posterior.add(X, prior)
    mean, spread = posterior.moments(y)
    assert np.ptp(mean) == pytest.approx(0)
    assert np.isfinite(spread).all()
