"""Intervals cover nine of ten errors, and are as wide as errors are large: `models/interval.py`."""

import dataclasses

import numpy as np
import pytest

from foretune.models.error_model import MIN_ERROR
from foretune.models.expert_predictions import NEW_DEVICE, ExpertPredictions
from foretune.models.interval import (
    BEYOND_GROWTH,
    GROWTH_PER_OCTAVE,
    MIN_ROWS,
    UNSEEN_GROWTH,
    LearnedInterval,
    RuleInterval,
    load_interval,
)


@dataclasses.dataclass
class HeldOutRows:
    """Held-out rows with one expert; the arguments of `LearnedInterval.fit`."""

    predictions: ExpertPredictions
    errors: np.ndarray
    holdouts: np.ndarray
    octaves_outside: np.ndarray

    def fit(self):
        return LearnedInterval.fit(
            self.predictions,
            self.errors,
            holdouts=self.holdouts,
            octaves_outside=self.octaves_outside,
        )


def rows_with(error_features, row_kind=0):
    n = len(error_features)
    return ExpertPredictions(np.zeros((n, 1)), error_features, np.full(n, row_kind))


def hard_and_easy(n, seed):
    """Return rows with errors ten times larger where the first feature is large."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 3)).astype(np.float32)
    errors = rng.normal(0, np.where(is_hard(X), 0.3, 0.03))
    return HeldOutRows(rows_with(X), errors, rng.integers(0, 3, n), np.zeros(n))


def is_hard(X):
    return X[:, 0] > 0.5


def width_of(interval, predictions, outside=0.0, beyond=0.0):
    n = len(predictions.row_kind)
    return interval.half_width(predictions, np.full(n, outside), np.full(n, beyond))


@pytest.fixture(scope="module")
def learned():
    return hard_and_easy(3000, seed=0).fit()


def test_learned_interval_covers_hard_and_easy_rows(learned):
    new = hard_and_easy(5000, seed=1)

    width = width_of(learned, new.predictions)

    covered = np.abs(new.errors) <= width
    hard = is_hard(new.predictions.error_features)
    assert covered.mean() == pytest.approx(0.9, abs=0.02)
    assert covered[hard].mean() == pytest.approx(0.9, abs=0.05)
    assert covered[~hard].mean() == pytest.approx(0.9, abs=0.05)
    assert np.median(width[hard]) > 5 * np.median(width[~hard])
    assert np.quantile(width, 0.2) < learned.median_half_width < np.quantile(width, 0.8)


def test_learned_interval_has_factor_per_kind_of_row():
    """Errors of kind 2 have another shape: their expected size is right, one factor is not."""
    held_out = hard_and_easy(6000, seed=0)
    rng = np.random.default_rng(1)
    row_kind = np.where(rng.random(6000) < 0.1, 2, 0)
    row_kind[:50] = 3  # too few rows for a factor of their own
    heavy_tail = np.where(rng.random(6000) < 0.2, 8.0, 0.2)
    held_out.errors = held_out.errors * np.where(row_kind == 2, heavy_tail, 1.0)
    held_out.predictions = dataclasses.replace(held_out.predictions, row_kind=row_kind)

    interval = held_out.fit()

    assert set(interval.factors) == {0, 2}
    X = held_out.predictions.error_features
    for kind in (0, 2):
        is_kind = row_kind == kind
        width = width_of(interval, rows_with(X[is_kind], kind))
        covered = np.abs(held_out.errors[is_kind]) <= width
        assert covered.mean() == pytest.approx(0.9, abs=0.03)
    without_factor = width_of(interval, rows_with(X, 3)) / interval.factor
    np.testing.assert_allclose(
        without_factor, width_of(interval, rows_with(X, 0)) / interval.factors[0]
    )


def test_learned_interval_of_few_rows_is_the_same_everywhere():
    held_out = hard_and_easy(MIN_ROWS - 1, seed=0)

    interval = held_out.fit()

    assert interval.model is None
    width = width_of(interval, held_out.predictions)
    assert width.tolist() == [interval.median_half_width] * (MIN_ROWS - 1)
    covered = np.abs(held_out.errors) <= interval.median_half_width
    assert covered.mean() == pytest.approx(0.9, abs=0.02)


def test_learned_interval_of_one_holdout_learns_no_sizes():
    held_out = hard_and_easy(500, seed=0)
    held_out.holdouts = np.zeros(500)

    assert held_out.fit().model is None


@pytest.mark.parametrize(
    ("n", "growth", "beyond_share"),
    [
        pytest.param(100, 1.0, 0.0, id="few rows: grows from the training range"),
        pytest.param(3000, BEYOND_GROWTH, 1.0, id="grows beyond the held-out rows"),
    ],
)
def test_learned_interval_grows_with_distance(n, growth, beyond_share):
    interval = hard_and_easy(n, seed=0).fit()
    predictions = hard_and_easy(5, seed=1).predictions
    inside = width_of(interval, predictions)

    for octaves in (0.5, 3.0):
        width = width_of(interval, predictions, octaves, octaves * beyond_share)
        np.testing.assert_allclose(width, (1.0 + octaves * growth) * inside)


def test_learned_interval_learns_growth_up_to_held_out_rows():
    held_out = hard_and_easy(6000, seed=0)
    outside = np.random.default_rng(1).uniform(0, 3, 6000)
    held_out.octaves_outside = outside
    held_out.errors = held_out.errors * (1.0 + 2.0 * outside)

    interval = held_out.fit()

    new = hard_and_easy(5000, seed=2)
    for octaves in (0.1, 1.0, 2.9):
        errors = np.abs(new.errors) * (1.0 + 2.0 * octaves)
        covered = errors <= width_of(interval, new.predictions, octaves)
        assert covered.mean() == pytest.approx(0.9, abs=0.05)
    at_the_end = width_of(interval, new.predictions, outside.max())
    far = width_of(interval, new.predictions, 5.0, 2.0)
    np.testing.assert_allclose(far, (1.0 + 2.0 * BEYOND_GROWTH) * at_the_end)


def test_learned_interval_is_wider_on_new_devices():
    """Two of three devices were held out; the next one may be worse than both."""
    held_out = hard_and_easy(3000, seed=0)
    device = held_out.holdouts
    row_kind = np.where(device < 2, NEW_DEVICE, 0)
    held_out.predictions = dataclasses.replace(held_out.predictions, row_kind=row_kind)

    interval = held_out.fit()

    assert interval.factors[NEW_DEVICE] > 1.5 * interval.factors[0]
    new_rows = rows_with(held_out.predictions.error_features[:5], NEW_DEVICE)
    near = width_of(interval, new_rows, beyond=1.0)
    far = width_of(interval, new_rows, beyond=5.0)
    np.testing.assert_array_equal(near, far)  # how far its specs are off adds nothing


def test_learned_interval_of_exact_predictions_is_small():
    predictions = rows_with(np.zeros((300, 1), np.float32))
    held_out = HeldOutRows(predictions, np.zeros(300), np.arange(300) % 3, np.zeros(300))

    width = width_of(held_out.fit(), predictions)

    assert (width >= 0).all()
    assert (width <= MIN_ERROR).all()


def test_learned_interval_of_no_rows_is_empty(learned):
    assert width_of(learned, rows_with(np.empty((0, 3), np.float32))).shape == (0,)


@pytest.mark.parametrize("n", [50, 1000])
def test_load_interval_learned_is_the_saved_one(n, tmp_path):
    held_out = hard_and_easy(n, seed=0)
    saved = held_out.fit()

    saved.save(tmp_path, "spread")
    loaded = load_interval(tmp_path, "spread")

    assert loaded.factor == saved.factor
    assert loaded.factors == saved.factors
    assert loaded.median_half_width == saved.median_half_width
    outside = np.linspace(0, 2, n)
    np.testing.assert_array_equal(
        loaded.half_width(held_out.predictions, outside, outside / 2),
        saved.half_width(held_out.predictions, outside, outside / 2),
    )


@pytest.fixture
def disagreeing():
    """Two experts that agree in half of the rows, and are 1.0 apart in the others."""
    apart = np.random.default_rng(0).choice([0.0, 0.5], 600)
    values = np.column_stack([apart, -apart])  # the mean distance from their mean is `apart`
    return ExpertPredictions(values, np.zeros((600, 1)), np.zeros(600, dtype=int))


@pytest.fixture
def by_rule(disagreeing):
    """An interval of 20 problems, with errors that are larger where experts disagree."""
    errors = np.random.default_rng(1).normal(0, 0.1 + disagreeing.disagreement)
    return RuleInterval.fit(disagreeing.disagreement, errors, problems=np.arange(600) % 20)


def test_rule_interval_follows_disagreement(by_rule, disagreeing):
    errors = np.random.default_rng(2).normal(0, 0.1 + disagreeing.disagreement)

    width = width_of(by_rule, disagreeing)

    covered = np.abs(errors) <= width
    assert covered.mean() == pytest.approx(0.93, abs=0.04)
    disagree = disagreeing.disagreement > 0
    assert width[disagree].min() > 2 * width[~disagree].max()


@pytest.mark.parametrize(
    ("outside", "beyond", "growth"),
    [(3.0, 0.0, 3 * GROWTH_PER_OCTAVE), (0.0, 5.0, UNSEEN_GROWTH)],
)
def test_rule_interval_grows_outside(by_rule, disagreeing, outside, beyond, growth):
    inside = width_of(by_rule, disagreeing)
    width = width_of(by_rule, disagreeing, outside, beyond)
    np.testing.assert_allclose(width, (1 + growth) * inside)


def test_load_interval_by_rule_is_the_saved_one(by_rule, tmp_path):
    by_rule.save(tmp_path, "spread")
    assert load_interval(tmp_path, "spread") == by_rule
