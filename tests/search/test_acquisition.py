"""Acquisition functions: against integrals and by hand."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from foretune.search.posterior import (
    SHORTLIST,
    expected_regrets,
    log_expected_improvement,
    log_probability_below,
)


@dataclass
class Belief:
    """Stands in for a posterior of independent candidates."""

    mean: np.ndarray
    spread: np.ndarray

    def covariance(self, numbers):
        return np.diag(self.spread[numbers] ** 2)


@pytest.mark.parametrize("gain", [-2.0, -0.5, 0.0, 1.5])
def test_expected_improvement_equals_integral(gain):
    belief = Belief(np.array([1.0 - gain]), np.array([0.7]))
    values = np.linspace(-8.0, 8.0, 100_001)
    improvement = np.maximum(1.0 - values, 0.0) * norm.pdf(values, 1.0 - gain, 0.7)
    found = np.exp(log_expected_improvement(belief, 1.0))[0]
    assert found == pytest.approx(np.trapezoid(improvement, values), rel=1e-5)


def test_far_from_any_improvement_there_is_still_an_order():
    belief = Belief(np.array([40.0, 50.0, 50.0]), np.array([1.0, 1.0, 2.0]))
    less, least, more = log_expected_improvement(belief, 0.0)
    assert np.isfinite([less, least, more]).all()
    assert least < less
    assert least < more


def test_log_probability_below_equals_normal_distribution():
    belief = Belief(np.array([0.0, 1.0, 60.0]), np.array([1.0, 2.0, 1.0]))
    found = log_probability_below(belief, 0.0)
    assert np.allclose(found, norm.logcdf([0.0, -0.5, -60.0]))


def test_expected_regret_without_uncertainty_is_distance_from_best():
    times = np.array([1.0, 1.3, np.inf])
    belief = Belief(np.zeros(3), np.ones(3))
    known, slower, failed = expected_regrets(belief, times)
    assert known == pytest.approx(0.0, abs=1e-3)
    assert slower == pytest.approx(0.3, abs=0.01)
    assert np.isinf(failed)


def test_expected_regret_grows_with_uncertainty():
    times = np.array([1.0, np.nan, np.nan])
    sure, unsure = (
        expected_regrets(Belief(np.zeros(3), np.full(3, spread)), times)[0]
        for spread in (0.05, 0.5)
    )
    assert 0.0 < sure < 0.1 < unsure


def test_candidates_that_go_together_are_to_be_feared_less():
    """Of ten that are all fast or all slow, the best is no better than each."""

    class Together(Belief):
        def covariance(self, numbers):
            return np.outer(self.spread[numbers], self.spread[numbers])

    times = np.append(1.0, np.full(10, np.nan))
    apart, together = (
        expected_regrets(kind(np.zeros(11), np.full(11, 0.3)), times)[0]
        for kind in (Belief, Together)
    )
    assert together < 0.6 * apart


def test_expected_regret_ignores_hopeless_candidates():
    many = SHORTLIST + 44
    belief = Belief(np.arange(many) / many, np.full(many, 0.1))
    expected = expected_regrets(belief, np.full(many, np.nan))
    assert np.isfinite(expected).sum() == SHORTLIST
    assert np.isfinite(expected[:SHORTLIST]).all()


def test_expected_regret_nothing_runs():
    assert np.isinf(expected_regrets(Belief(np.zeros(2), np.ones(2)), np.full(2, np.inf))).all()
