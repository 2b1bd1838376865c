"""The Gaussian process on features, and its files: `models/feature_process.py`, `gp_files.py`."""

import numpy as np
import pytest

from foretune.models.feature_process import LENGTH_PRIOR, Scaling, fit_process
from foretune.models.gaussian_process import Posterior
from foretune.models.gp_files import process_arrays, process_from_arrays

GRADUAL = 2
INPUTS = 4


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, INPUTS))
    return X, 0.4 + 0.5 * np.sin(2 * X[:, 0]) + rng.normal(0, 0.05, len(X))


@pytest.fixture(scope="module")
def fitted(data):
    X = data[0][:80]
    y = data[1][:80]
    return Posterior(fit_process(X, y, GRADUAL), X, y, observation_noise=True)


def lengths(process):
    _, (_, gradual), _ = process.terms_with_parameters()
    return np.exp(gradual[1:])


def test_fit_process_finds_relevant_input(fitted):
    found = lengths(fitted.process)
    assert found[0] < 0.5 * found[1]


def test_fit_process_predicts_with_calibrated_spread(data, fitted):
    mean, deviation = fitted.predict(data[0][80:])
    misses = np.abs(mean - data[1][80:])
    assert misses.mean() < 0.12
    assert 0.8 <= (misses <= 1.645 * deviation).mean() <= 1.0


def test_far_away_nothing_is_known(fitted):
    near, far = (fitted.predict(np.full((1, INPUTS), at))[1][0] for at in (0.0, 1e3))
    assert far > 2 * near


def test_fit_process_few_values_keep_prior_lengths(data):
    few = fit_process(data[0][:5], data[1][:5], GRADUAL)
    assert np.all(np.abs(np.log(lengths(few) / (LENGTH_PRIOR.median * np.sqrt(GRADUAL)))) < 1.0)


def test_points_without_inputs_have_one_mean():
    X = np.empty((6, 0))
    y = np.full(6, 0.3)
    posterior = Posterior(fit_process(X, y, 0), X, y)
    assert np.isclose(posterior.predict(X[:1])[0][0], 0.3, atol=0.05)


def test_arrays_keep_it(data, fitted):
    scaling = Scaling(np.zeros(INPUTS), np.ones(INPUTS))
    _, again = process_from_arrays(process_arrays(scaling, fitted))
    for found, expected in zip(again.predict(data[0]), fitted.predict(data[0]), strict=True):
        assert np.array_equal(found, expected)
