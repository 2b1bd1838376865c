"""The surrogate's units, failures, fits, and its posterior as measurements come in."""

import math

import numpy as np
import pytest

from foretune.search.surrogate_model import (
    REFIT_FACTOR,
    Evidence,
    FailureRule,
    FitCache,
    OtherProblems,
    Points,
    PriorScale,
    SurrogateModel,
    subsample_measurements,
    surrogate_process,
)

SLOW = FailureRule(margin=1.0, shift_losses=True)
BAD = FailureRule(margin=None, shift_losses=False)
GRID = np.linspace(0.0, 1.0, 21)[:, None]


def bowl(encoded):
    return 3.0 * (encoded[:, 0] - 0.7) ** 2


def condition(evidence, candidates, prior_scale=None, fits=None):
    return SurrogateModel(fits).condition(
        evidence,
        candidates,
        key="test",
        n_measured=len(evidence.losses),
        prior_scale=prior_scale,
    )


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.0, math.inf], [0.0, 1.0]),  # the margin above the median
        ([0.0, 1.0, 9.0, math.inf], [0.0, 1.0, 9.0, 9.0]),  # the slowest
        ([math.inf, math.inf], [0.0, 0.0]),
        ([2.0, math.nan], [2.0, 3.0]),  # without a value, too
    ],
)
def test_failure_rule_replaces_failures(losses, expected):
    assert SLOW.as_losses(np.array(losses), unit=5.0).tolist() == expected


def test_failure_rule_without_margin_adds_one_unit():
    assert BAD.as_losses(np.array([0.0, math.inf]), unit=5.0).tolist() == [0.0, 5.0]


@pytest.mark.parametrize(
    ("rule", "offset"),
    [
        (SLOW, 2.0),  # the failure counts as 2.5, 1 above the median: the median of 1, 2, 2.5
        (BAD, 1.5),  # the median of 1, 2
    ],
)
def test_evidence_offset_counts_failures_if_they_shift_losses(rule, offset):
    points = Points(np.zeros((3, 1)))
    evidence = Evidence(points, np.array([1.0, 2.0, math.inf]), rule)
    assert evidence.errors(unit=1.0).offset == offset


def test_evidence_errors_are_relative_to_prior_and_offset():
    points = Points(np.zeros((3, 1)), prior_mean=np.array([0.0, 2.0, 4.0]))
    evidence = Evidence(points, losses=np.array([10.0, 14.0, 12.0]), failure_rule=SLOW)
    errors = evidence.errors(unit=2.0)
    # (10, 14, 12) / 2 - (0, 2, 4) / 2 = (5, 6, 4): the median is 5.
    assert errors.offset == 5.0
    assert errors.values.tolist() == [0.0, 1.0, -1.0]


def test_evidence_puts_other_problems_first():
    others = OtherProblems(
        Points(np.array([[0.5]]), problem=np.array([1.0])), errors=np.array([4.0])
    )
    here = Points(np.array([[0.25], [0.75]]), problem=np.zeros(2))
    evidence = Evidence(here, np.array([1.0, 3.0]), SLOW, others)
    assert evidence.inputs(unit=2.0).tolist() == [[0.5, 1.0], [0.25, 0.0], [0.75, 0.0]]
    assert evidence.errors(unit=2.0).values.tolist() == [2.0, -0.5, 0.5]


@pytest.mark.parametrize(
    ("spread", "relative_error"), [(0.0, 0.2), (1.0, 0.5), (9.0, 1.0)], ids=["low", "ok", "high"]
)
def test_prior_scale_bounds_the_expected_error(spread, relative_error):
    scale = PriorScale.of_prior(np.array([-2.0, 2.0]), spread)
    assert scale == PriorScale(unit=2.0, relative_error=relative_error)


def test_surrogate_process_has_a_term_per_column():
    encoded = np.zeros((1, 3))
    lengths_and_variance = 4
    noise = 1

    def parameter_count(points):
        return len(surrogate_process(points).parameters)

    one = np.zeros(1)
    shift_alone = lengths_and_variance + 1 + noise
    assert parameter_count(Points(encoded)) == shift_alone
    assert parameter_count(Points(encoded, problem=one)) == shift_alone
    assert parameter_count(Points(encoded, prior_mean=one, problem=one)) == shift_alone + 1


def test_fit_cache_refits_after_enough_measurements():
    fits = FitCache()
    start = surrogate_process(Points(GRID))

    def fit(n_measured):
        return fits.fitted("one", start, GRID, bowl(GRID), n_measured=n_measured)

    first = fit(100)
    assert fit(100) is first
    assert fit(math.ceil(100 * REFIT_FACTOR) - 1) is first
    assert fit(math.ceil(100 * REFIT_FACTOR)) is not first
    assert fit(100) is not first  # fewer than at the last fit: other measurements


def test_posterior_predicts_a_smooth_loss():
    measured = Points(GRID[::4])
    posterior = condition(Evidence(measured, bowl(GRID[::4]), BAD), Points(GRID)).of_candidates
    assert posterior.mean == pytest.approx(bowl(GRID), abs=0.05)


def test_posterior_does_not_depend_on_the_unit_of_losses():
    measured = Points(GRID[::4])
    small = condition(Evidence(measured, bowl(GRID[::4]), BAD), Points(GRID)).of_candidates
    large = condition(Evidence(measured, 50 * bowl(GRID[::4]) + 7, BAD), Points(GRID)).of_candidates
    assert large.mean == pytest.approx(50 * small.mean + 7, rel=1e-4)
    assert large.spread == pytest.approx(50 * small.spread, rel=1e-4)


def test_posterior_keeps_a_right_prior_and_corrects_a_reversed_one():
    losses = bowl(GRID)
    measured = np.arange(0, 21, 3)

    def mean_error(prior_mean):
        posterior = condition(
            Evidence(
                Points(GRID[measured], prior_mean=prior_mean[measured]), losses[measured], BAD
            ),
            Points(GRID, prior_mean=prior_mean),
            prior_scale=PriorScale.of_prior(prior_mean, spread=0.1),
        ).of_candidates
        return np.abs(posterior.mean - losses).mean()

    centered = losses - losses.mean()
    assert mean_error(centered) < 0.01
    assert mean_error(-centered) < 0.1 < np.abs(-centered - centered).mean()


def test_added_measurements_count_as_if_known_from_the_start():
    fits = FitCache()
    all_losses = bowl(GRID[::5])
    at_once = condition(Evidence(Points(GRID[::5]), all_losses, SLOW), Points(GRID), fits=fits)

    # The same unit and process, so that only the way in differs.
    prior_scale = PriorScale(unit=at_once.unit, relative_error=1.0)
    first = Evidence(Points(GRID[::5][:3]), all_losses[:3], SLOW)
    later = SurrogateModel(fits).condition(
        first, Points(GRID), key="test", n_measured=len(all_losses), prior_scale=prior_scale
    )
    later.add(Points(GRID[::5][3:]))
    later.set_losses(all_losses)

    assert later.of_candidates.mean == pytest.approx(at_once.of_candidates.mean)
    assert later.of_candidates.spread == pytest.approx(at_once.of_candidates.spread)


def test_pending_points_shrink_the_spread_and_keep_the_mean():
    posterior = condition(Evidence(Points(GRID[:3]), bowl(GRID[:3]), BAD), Points(GRID))
    mean = posterior.of_candidates.mean
    spread = posterior.of_candidates.spread

    with posterior.pending(Points(GRID[-1:])) as with_pending:
        assert with_pending.mean == pytest.approx(mean)
        assert with_pending.spread[-1] < 0.5 * spread[-1]

    assert posterior.of_candidates.spread == pytest.approx(spread)


def test_subsample_keeps_the_best_half(monkeypatch):
    monkeypatch.setattr("foretune.search.surrogate_model.MAX_FITTED", 10)
    losses = np.random.default_rng(0).permutation(30).astype(float)
    kept = subsample_measurements(losses, np.random.default_rng(0))
    assert len(set(kept.tolist())) == 10
    assert sorted(losses[kept])[:5] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert subsample_measurements(losses[:10], np.random.default_rng(0)).tolist() == list(range(10))
