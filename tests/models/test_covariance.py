"""Terms of a covariance: `models/covariance.py`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.models.covariance import (
    CHUNK_CELLS,
    ConstantCovariance,
    GroupCovariance,
    Hyperprior,
    LinearCovariance,
    MaternCovariance,
)

EXPECTED = Hyperprior(1.0)
TERMS = [
    ConstantCovariance(EXPECTED),
    LinearCovariance(1, EXPECTED),
    GroupCovariance(3, EXPECTED),
    MaternCovariance(slice(0, 3), EXPECTED, EXPECTED, 1.5),
    MaternCovariance(slice(1, 3), EXPECTED, EXPECTED, 2.5),
    MaternCovariance(slice(0, 0), EXPECTED, EXPECTED, 2.5),
]
every_term = pytest.mark.parametrize("term", TERMS, ids=repr)


def points(rows, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=(rows, 3)), rng.integers(3, size=rows)])


def parameters_of(term, seed=0):
    return np.random.default_rng(seed).normal(0, 0.5, len(term.hyperpriors))


def covariance(term, parameters, X, X2):
    return np.broadcast_to(term.covariance(parameters, X, X2), (len(X), len(X2)))


@every_term
@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_gradient_equals_finite_differences(term, seed):
    X = points(7, seed)
    parameters = parameters_of(term, seed)
    slope = np.random.default_rng(seed).normal(size=(7, 7))
    slope += slope.T  # as those of all losses

    def loss(at):
        return (slope * covariance(term, at, X, X)).sum()

    steps = 1e-6 * np.eye(len(parameters))
    expected = [(loss(parameters + s) - loss(parameters - s)) / 2e-6 for s in steps]
    same, slopes = term.covariance_and_gradient(parameters, X)
    assert np.allclose(same, covariance(term, parameters, X, X))
    assert np.allclose(slopes(slope), expected, rtol=1e-5, atol=1e-6)


@every_term
def test_covariance_has_variance_on_diagonal_and_is_positive(term):
    X = points(9)
    parameters = parameters_of(term)
    own = covariance(term, parameters, X, X)
    variance = np.broadcast_to(term.variance(parameters, X), len(X))
    assert np.allclose(np.diag(own), variance, rtol=1e-6)
    assert np.linalg.eigvalsh(own).min() > -1e-9


@every_term
@pytest.mark.parametrize("rows", [0, 1, CHUNK_CELLS // 20 + 7])
def test_mean_function_equals_covariance_times_weights(term, rows):
    X = points(20)
    Z = points(rows, 1)
    parameters = parameters_of(term)
    weights = np.random.default_rng(2).normal(size=20)
    expected = covariance(term, parameters, Z, X) @ weights
    mean = np.zeros(rows) + term.mean_function(parameters, X, weights)(Z)
    assert np.allclose(mean, expected, rtol=1e-9, atol=1e-9)


def test_matern_equals_formula():
    X = np.array([[0.0], [3.0]])
    Z = np.array([[2.0]])
    for smoothness, expected in (
        (1.5, lambda d: (1 + 3**0.5 * d) * np.exp(-(3**0.5) * d)),
        (2.5, lambda d: (1 + 5**0.5 * d + 5 * d**2 / 3) * np.exp(-(5**0.5) * d)),
    ):
        term = MaternCovariance(slice(0, 1), EXPECTED, EXPECTED, smoothness)
        found = term.covariance(np.log([3.0, 2.0]), X, Z).ravel()
        assert np.allclose(found, [3 * expected(1.0), 3 * expected(0.5)])


def test_group_covariance_nan_equals_no_label():
    X = np.array([[1.0], [2.0], [np.nan]])
    found = GroupCovariance(0, EXPECTED).covariance(np.log([0.3]), X, X)
    assert np.allclose(found, np.diag([0.3, 0.3, 0.0]))


def test_length_prior_grows_with_number_of_inputs():
    term = MaternCovariance(slice(0, 4), Hyperprior(0.1), Hyperprior(1.5, 0.8), 1.5)
    variance, *lengths = term.hyperpriors
    assert variance.median == 0.1
    assert [h.median for h in lengths] == [3.0] * 4
    assert {h.width for h in lengths} == {0.8}


def test_hyperprior_is_open_bounded_or_fixed():
    assert Hyperprior(2.0).bounds == (-np.inf, np.inf)
    assert Hyperprior(2.0, 1.0, np.exp(-4), np.e).bounds == pytest.approx((-4.0, 1.0))
    assert Hyperprior(2.0, 0.0).bounds == (np.log(2.0), np.log(2.0))
