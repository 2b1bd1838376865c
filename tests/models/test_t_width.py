"""Widths from few problems: `models/t_width.py`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.models.expert_predictions import ExpertPredictions
from foretune.models.interval import RuleInterval, load_interval
from foretune.models.t_width import t_width_by_problem, width_of_median

ROWS = 20


@pytest.mark.parametrize("n_problems", [4, 7, 16, 40])
def test_nine_of_ten_new_problems_are_covered(n_problems):
    rng = np.random.default_rng(n_problems)
    problems = np.repeat(np.arange(n_problems), ROWS)
    covered = []
    for _ in range(500):
        width = t_width_by_problem(np.repeat(rng.normal(0, 0.3, n_problems), ROWS), problems)
        covered.append(np.mean(np.abs(rng.normal(0, 0.3, 50)) <= width))
    assert 0.89 < np.mean(covered) < 0.98


def test_all_problems_count_equally():
    errors = np.array([0.1, 0.2, 0.9])
    problems = np.arange(3)
    n_rows = np.array([1, 1, 500])
    repeated = t_width_by_problem(np.repeat(errors, n_rows), np.repeat(problems, n_rows))
    assert repeated == pytest.approx(t_width_by_problem(errors, problems))


def test_seven_sizes_do_not_make_a_factor_of_thousands():
    """The worst of seven problems is off by a factor of 20, the others by a tenth."""
    errors = np.array([0.1, -0.1, 0.05, 0.1, -0.08, 0.1, 3.0])
    assert np.exp(t_width_by_problem(errors, np.arange(7))) < 10.0
    assert t_width_by_problem(errors[:1], np.arange(1)) > 0.1


@given(st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=30), st.floats(0.1, 10.0))
def test_widths_scale_with_errors(errors, factor):
    values = np.array(errors)
    problems = np.arange(len(values))
    for width in (t_width_by_problem, width_of_median):
        assert width(factor * values, problems) == pytest.approx(factor * width(values, problems))


def test_the_median_of_one_problem_says_nothing():
    assert width_of_median(np.zeros(5), np.zeros(5, dtype=int)) == np.inf


def test_no_interval_is_wider_than_that_of_the_median(tmp_path):
    errors = np.random.default_rng(0).normal(0, 3.0, 8)
    times = np.random.default_rng(1).normal(0, 0.2, 8)
    widest = width_of_median(times, np.arange(8))
    interval = RuleInterval.fit(np.zeros(8), errors, problems=np.arange(8), widest=widest)
    asked = ExpertPredictions(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros(3, dtype=int))
    widths = interval.half_width(asked, np.zeros(3), np.zeros(3))
    np.testing.assert_allclose(widths, widest)
    assert interval.median_half_width == pytest.approx(widest)

    interval.save(tmp_path, "spread")
    loaded = load_interval(tmp_path, "spread")
    np.testing.assert_array_equal(loaded.half_width(asked, np.zeros(3), np.zeros(3)), widths)
