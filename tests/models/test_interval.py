"""Intervals hold as often as they say, are narrow where errors are small, and wide far away."""

import numpy as np
import pytest

from foretune.models.interval import (
    BEYOND_GROWTH,
    GROWTH_PER_OCTAVE,
    MAX_LOG_HALF_WIDTH,
    MIN_ERROR,
    MIN_ROWS,
    NEW_DEVICE,
    UNSEEN_GROWTH,
    ConformalInterval,
    conformal_quantile,
    conformal_quantile_by_problem,
)


@pytest.mark.parametrize("n", [9, 19, 50, 99, 500])
def test_new_residuals_are_covered_nine_times_in_ten(n):
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(2000):
        width = conformal_quantile(np.abs(rng.standard_t(4, n)))
        covered.append(np.mean(np.abs(rng.standard_t(4, 20)) <= width))
    expected = np.ceil((n + 1) * 0.9) / (n + 1)  # exactly, for continuous residuals
    assert np.mean(covered) == pytest.approx(expected, abs=0.006)
    assert expected >= 0.9


@pytest.mark.parametrize(("n", "rank"), [(9, 9), (10, 10), (19, 18), (99, 90), (100, 91)])
def test_it_is_the_residual_of_the_right_rank(n, rank):
    assert conformal_quantile(np.random.default_rng(0).permutation(np.arange(1.0, n + 1))) == rank


def test_too_few_give_the_largest():
    assert conformal_quantile(np.array([3.0, 1.0, 2.0])) == 3.0
    assert conformal_quantile(np.array([0.5])) == 0.5


def hard_and_easy(n, seed):
    """Errors ten times larger where the first feature is large; which hold-out is chance."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 3)).astype(np.float32)
    size = np.where(X[:, 0] > 0.5, 0.3, 0.03)
    return X, rng.normal(0, size), rng.integers(0, 3, n), np.zeros(n), np.zeros(n, int)


def width_of(spread, X, outside=0.0, beyond=0.0, company=0):
    return spread.half_width(X, *(np.full(len(X), v) for v in (outside, beyond, company)))


@pytest.fixture(scope="module")
def spread():
    return ConformalInterval.fit(*hard_and_easy(3000, 0))


def test_nine_of_ten_new_errors_are_covered(spread):
    X, errors, *_ = hard_and_easy(5000, 1)
    width = width_of(spread, X)
    covered = np.abs(errors) <= width
    assert covered.mean() == pytest.approx(0.9, abs=0.02)
    hard = X[:, 0] > 0.5
    for part in (hard, ~hard):  # not by hiding the hard rows behind the easy ones
        assert covered[part].mean() == pytest.approx(0.9, abs=0.05)
    assert np.median(width[hard]) > 5 * np.median(width[~hard])
    assert np.quantile(width, 0.2) < spread.median_half_width < np.quantile(width, 0.8)


def test_rows_with_few_neighbours_are_judged_by_their_like():
    """Errors of the third class have another shape: its model is right, one factor is not."""
    X, errors, holdouts, outside, company = hard_and_easy(6000, 0)
    rng = np.random.default_rng(1)
    company[rng.random(len(X)) < 0.1] = 2
    company[:50] = 3  # too few to judge by
    errors = np.where(company == 2, np.where(rng.random(len(X)) < 0.2, 8.0, 0.2) * errors, errors)
    fitted = ConformalInterval.fit(X, errors, holdouts, outside, company)
    assert set(fitted.factors) == {0, 2}
    for number in (0, 2):
        own = company == number
        covered = np.abs(errors[own]) <= width_of(fitted, X[own], company=number)
        assert covered.mean() == pytest.approx(0.9, abs=0.03)
    np.testing.assert_allclose(
        width_of(fitted, X, company=3) * fitted.factors[0],
        width_of(fitted, X, company=0) * fitted.factor,
    )


def test_few_errors_give_every_row_the_same():
    X, errors, *rest = hard_and_easy(MIN_ROWS - 1, 0)
    few = ConformalInterval.fit(X, errors, *rest)
    assert few.model is None
    assert width_of(few, X).tolist() == [few.median_half_width] * len(X)
    assert (np.abs(errors) <= few.median_half_width).mean() == pytest.approx(0.9, abs=0.02)
    one_hold_out = np.zeros(500)  # nobody to check
    alone = ConformalInterval.fit(*hard_and_easy(500, 0)[:2], one_hold_out, *np.zeros((2, 500)))
    assert alone.model is None


def test_intervals_grow_outside_the_training_range():
    for n, each in ((100, 1.0), (3000, 0.0)):  # few rows: nothing is known of any distance
        X, errors, *rest = hard_and_easy(n, 0)
        fitted = ConformalInterval.fit(X, errors, *rest)
        inside, near, far = (width_of(fitted, X[:5], o, o * (1.0 - each)) for o in (0.0, 0.5, 3.0))
        growth = BEYOND_GROWTH if n > 100 else 1.0
        np.testing.assert_allclose(near, (1.0 + 0.5 * growth) * inside)
        np.testing.assert_allclose(far, (1.0 + 3.0 * growth) * inside)


def test_growth_outside_is_learned_as_far_as_rows_were_held_out():
    X, errors, holdouts, _, same = hard_and_easy(6000, 0)
    outside = np.random.default_rng(1).uniform(0, 3, len(X))
    fitted = ConformalInterval.fit(X, errors * (1.0 + 2.0 * outside), holdouts, outside, same)
    X, errors, *_ = hard_and_easy(5000, 2)
    for octaves in (0.1, 1.0, 2.9):
        width = width_of(fitted, X, octaves)
        covered = np.abs(errors * (1.0 + 2.0 * octaves)) <= width
        assert covered.mean() == pytest.approx(0.9, abs=0.05)
    last = width_of(fitted, X, outside.max())
    far = width_of(fitted, X, 5.0, 2.0)
    np.testing.assert_allclose(far, (1.0 + 2.0 * BEYOND_GROWTH) * last)


def test_a_new_device_may_be_worse_than_those_that_were_held_out():
    X, errors, device, inside, _ = hard_and_easy(3000, 0)
    kind = np.where(device < 2, NEW_DEVICE, 0)
    fitted = ConformalInterval.fit(X, errors, device, inside, kind)
    assert fitted.factors[NEW_DEVICE] > 1.5 * fitted.factors[0]
    near, far = (width_of(fitted, X[:5], 0.0, octaves, NEW_DEVICE) for octaves in (1.0, 5.0))
    np.testing.assert_array_equal(near, far)  # how far its specs are says nothing more


def test_no_error_at_all():
    """Rows that were met exactly have an interval all the same."""
    holdouts, inside = np.arange(300) % 3, np.zeros(300)
    X = np.zeros((300, 1), np.float32)
    width = width_of(ConformalInterval.fit(X, np.zeros(300), holdouts, inside, inside), X[:2])
    assert (width >= 0).all()
    assert (width <= MIN_ERROR).all()


@pytest.mark.parametrize("n", [50, 1000])
def test_it_comes_back_from_disk_the_same(n, tmp_path):
    X, errors, *rest = hard_and_easy(n, 0)
    fitted = ConformalInterval.fit(X, errors, *rest)
    fitted.save(tmp_path, "spread")
    loaded = ConformalInterval.load(tmp_path, "spread")
    assert (loaded.factor, loaded.median_half_width) == (fitted.factor, fitted.median_half_width)
    assert loaded.factors == fitted.factors
    outside = np.linspace(0, 2, n)
    far = outside / 2
    again, before = (each.half_width(X, outside, far, rest[2]) for each in (loaded, fitted))
    np.testing.assert_array_equal(again, before)


def test_no_rows(spread):
    assert width_of(spread, np.empty((0, 3), np.float32)).shape == (0,)


@pytest.mark.parametrize("n", [4, 9, 32])
def test_rows_of_new_problems_are_covered_however_many_rows_there_were(n):
    """Problems differ in how far off they are; rows of one are alike."""
    rng = np.random.default_rng(n)

    def errors(problems):
        scale = np.exp(rng.normal(-2, 0.6, problems))
        return np.abs(scale[:, None] * rng.normal(1, 0.3, (problems, 50)))

    covered = []
    for _ in range(300):
        known = errors(n)
        problems = np.repeat(np.arange(n), 50)
        covered.append(
            np.mean(errors(20) <= conformal_quantile_by_problem(known.ravel(), problems))
        )
    assert 0.87 < np.mean(covered) < 0.97


def test_problems_count_alike_whatever_rows_they_have():
    sizes, problems = np.arange(1.0, 11.0), np.arange(10)
    repeated = np.repeat(sizes, 1000 ** (sizes == 1)), np.repeat(problems, 1000 ** (sizes == 1))
    assert (
        conformal_quantile_by_problem(*repeated)
        == conformal_quantile_by_problem(sizes, problems)
        == 10.0
    )


def test_an_interval_of_few_problems_has_an_end():
    assert (
        conformal_quantile_by_problem(np.array([0.9, 1.4]), np.array([0, 1])) == MAX_LOG_HALF_WIDTH
    )
    assert conformal_quantile_by_problem(np.array([0.9, 3.0]), np.array([0, 1])) == 3.0


def test_where_problems_are_few_the_width_follows_the_disagreement(tmp_path):
    rng = np.random.default_rng(0)
    apart = rng.choice([0.0, 0.5], 600)
    errors = rng.normal(0, 0.1 + apart)
    none, problems = np.zeros(600), np.arange(600) % 20
    fitted = ConformalInterval.fit(
        apart[:, None], errors, problems % 4, none, none, problems=problems
    )
    width = width_of(fitted, apart[:, None])
    covered = np.abs(errors) <= width
    assert covered.mean() == pytest.approx(0.93, abs=0.04)
    assert width[apart > 0].min() > 2 * width[apart == 0].max()
    fitted.save(tmp_path, "spread")
    for each in (fitted, ConformalInterval.load(tmp_path, "spread")):
        np.testing.assert_array_equal(width_of(each, apart[:, None]), width)
        np.testing.assert_allclose(
            width_of(each, apart[:, None], 3.0), (1 + 3 * GROWTH_PER_OCTAVE) * width
        )
        np.testing.assert_allclose(
            width_of(each, apart[:, None], 0.0, 5.0), (1 + UNSEEN_GROWTH) * width
        )
