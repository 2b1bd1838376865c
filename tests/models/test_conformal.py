"""Conformal quantiles cover nine of ten new errors: `models/conformal.py`."""

import numpy as np
import pytest

from foretune.models.conformal import (
    MAX_LOG_HALF_WIDTH,
    conformal_quantile,
    conformal_quantile_by_problem,
)


@pytest.mark.parametrize("n", [9, 19, 50, 99, 500])
def test_quantile_covers_new_errors_nine_times_in_ten(n):
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(2000):
        width = conformal_quantile(np.abs(rng.standard_t(4, n)))
        new_errors = np.abs(rng.standard_t(4, 20))
        covered.append(np.mean(new_errors <= width))

    expected = np.ceil((n + 1) * 0.9) / (n + 1)  # exact for continuous errors
    assert np.mean(covered) == pytest.approx(expected, abs=0.006)
    assert expected >= 0.9


@pytest.mark.parametrize(("n", "rank"), [(9, 9), (10, 10), (19, 18), (99, 90), (100, 91)])
def test_quantile_has_rank_of_n_plus_one(n, rank):
    errors = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    assert conformal_quantile(errors) == rank


@pytest.mark.parametrize("errors", [[3.0, 1.0, 2.0], [3.0]])
def test_quantile_of_too_few_errors_is_the_largest(errors):
    assert conformal_quantile(np.array(errors)) == 3.0


@pytest.mark.parametrize("n_problems", [4, 9, 32])
def test_quantile_by_problem_covers_rows_of_new_problems(n_problems):
    """Problems differ in how far off they are; rows of one are alike."""
    rng = np.random.default_rng(n_problems)

    def errors_of(problems):
        scale = np.exp(rng.normal(-2, 0.6, problems))
        return np.abs(scale[:, None] * rng.normal(1, 0.3, (problems, 50)))

    problems = np.repeat(np.arange(n_problems), 50)
    covered = []
    for _ in range(300):
        width = conformal_quantile_by_problem(errors_of(n_problems).ravel(), problems)
        covered.append(np.mean(errors_of(20) <= width))
    assert 0.87 < np.mean(covered) < 0.97


def test_quantile_by_problem_weighs_problems_equally():
    """Ten problems with errors 1 to 10: a thousand rows of the first change nothing."""
    errors = np.arange(1.0, 11.0)
    problems = np.arange(10)
    n_rows = np.where(problems == 0, 1000, 1)

    by_problem = conformal_quantile_by_problem(errors, problems)
    repeated = conformal_quantile_by_problem(np.repeat(errors, n_rows), np.repeat(problems, n_rows))

    assert repeated == by_problem == 10.0


@pytest.mark.parametrize(
    ("errors", "width"),
    [
        ([0.9, 1.4], MAX_LOG_HALF_WIDTH),  # the power law would give 1.4 × √(1/3 / 0.1) = 2.6
        ([0.9, 3.0], 3.0),  # errors were as large
    ],
)
def test_quantile_by_problem_is_limited(errors, width):
    assert conformal_quantile_by_problem(np.array(errors), np.array([0, 1])) == width
