"""The Gaussian process of a correction: its gradient, what it learns, what it leaves alone."""

import numpy as np
import pytest

from foretune.models.process.process import LENGTH, Process

GRADUAL, INPUTS = 2, 4


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, INPUTS))
    return X, 0.4 + 0.5 * np.sin(2 * X[:, 0]) + rng.normal(0, 0.05, len(X))


@pytest.fixture(scope="module")
def tuned(data):
    return Process.tuned(data[0][:80], data[1][:80], GRADUAL)


def test_the_gradient_is_that_of_the_loss(data):
    process = Process(data[0][:30], data[1][:30], GRADUAL)
    at = process.parameters + np.random.default_rng(1).normal(0, 0.3, len(process.parameters))
    steps = 1e-5 * np.eye(len(at))
    expected = [(process._loss(at + s)[0] - process._loss(at - s)[0]) / 2e-5 for s in steps]
    assert np.allclose(process._loss(at)[1], expected, rtol=1e-5, atol=1e-5)


def test_it_finds_which_input_matters(tuned):
    lengths = np.exp(tuned.parameters[3 : 3 + GRADUAL])
    assert lengths[0] < 0.5 * lengths[1]


def test_it_predicts_and_says_how_well(data, tuned):
    mean, deviation = tuned.predict(data[0][80:])
    misses = np.abs(mean - data[1][80:])
    assert misses.mean() < 0.12
    assert 0.8 <= (misses <= 1.645 * deviation).mean() <= 1.0


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_the_mean_alone_is_the_same(tuned, rows):
    points = np.random.default_rng(4).normal(size=(rows, INPUTS))
    np.testing.assert_allclose(tuned.mean(points), tuned.predict(points)[0], rtol=1e-9, atol=1e-9)


def test_far_away_nothing_is_known(tuned):
    near, far = (tuned.predict(np.full((1, INPUTS), at))[1][0] for at in (0.0, 1e3))
    assert far > 2 * near


def test_values_left_out_are_those_of_a_process_without_them(data):
    X, y = data[0][:20], data[1][:20]
    rest = Process(X[1:], y[1:], GRADUAL)
    mean, deviation = rest.predict(X[:1])
    misses, deviations = Process(X, y, GRADUAL, rest.parameters).left_out()
    assert np.isclose(misses[0], y[0] - mean[0], rtol=1e-4)
    assert np.isclose(deviations[0], deviation[0], rtol=1e-4)


def test_few_values_leave_lengths_as_expected(data):
    few = Process.tuned(data[0][:5], data[1][:5], GRADUAL)
    lengths = np.exp(few.parameters[3 : 3 + GRADUAL])
    assert np.all(np.abs(np.log(lengths / (LENGTH * np.sqrt(GRADUAL)))) < 1.0)


def test_points_without_inputs_have_one_mean():
    process = Process.tuned(np.empty((6, 0)), np.full(6, 0.3), 0)
    assert np.isclose(process.predict(np.empty((1, 0)))[0][0], 0.3, atol=0.05)
