"""Intervals hold as often as they say."""

import numpy as np
import pytest

from foretune.models.calibration import cross_half_widths, half_width


@pytest.mark.parametrize("n", [9, 19, 50, 99, 500])
def test_new_residuals_are_covered_nine_times_in_ten(n):
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(2000):
        width = half_width(rng.standard_t(4, n))
        covered.append(np.mean(np.abs(rng.standard_t(4, 20)) <= width))
    expected = np.ceil((n + 1) * 0.9) / (n + 1)  # exactly, for continuous residuals
    assert np.mean(covered) == pytest.approx(expected, abs=0.006)
    assert expected >= 0.9


@pytest.mark.parametrize(("n", "rank"), [(9, 9), (10, 10), (19, 18), (99, 90), (100, 91)])
def test_it_is_the_residual_of_the_right_rank(n, rank):
    residuals = np.arange(1.0, n + 1) * np.where(np.arange(n) % 2, 1, -1)
    shuffled = np.random.default_rng(0).permutation(residuals)
    assert half_width(shuffled) == rank


def test_too_few_give_the_largest():
    assert half_width(np.array([-3.0, 1.0, 2.0])) == 3.0
    assert half_width(np.array([0.5])) == 0.5


def test_more_confidence_is_wider():
    residuals = np.arange(1.0, 101)
    assert half_width(residuals, 0.5) == 51
    assert half_width(residuals, 0.95) == 96


def test_a_fold_does_not_set_its_own_width():
    residuals = np.array([1.0, 1.0, 9.0, 9.0, 9.0])
    widths = cross_half_widths(residuals, np.array([0, 0, 1, 1, 1]))
    assert widths.tolist() == [9.0, 9.0, 1.0, 1.0, 1.0]
