"""What measuring is expected to cost."""

import numpy as np

from foretune.search.surrogate_process import MIN_MEASUREMENTS, log_seconds

RNG = np.random.default_rng(0)


def test_costs_of_candidates_are_learned():
    """One axis decides: builds of twice the size take twice as long; another axis does not."""
    points = RNG.random((60, 2))
    took = {i: float(2.0 ** (4 * points[i, 0])) for i in range(30)}
    expected = log_seconds(points[:30], points[30:], took, RNG)
    assert np.abs(expected - 4 * np.log(2) * points[30:, 0]).max() < 0.3


def test_too_few_measurements_say_nothing():
    took = {i: 10.0**i for i in range(MIN_MEASUREMENTS - 1)}
    assert not log_seconds(
        RNG.random((MIN_MEASUREMENTS - 1, 2)), RNG.random((5, 2)), took, RNG
    ).any()


def test_equal_costs_prefer_nothing():
    points = RNG.random((20, 2))
    expected = log_seconds(points[:10], points[10:], dict.fromkeys(range(10), 3.0), RNG)
    assert np.allclose(expected, np.log(3.0))
