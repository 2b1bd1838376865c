"""Weights of experts: `models/stack.py`."""

import numpy as np
import pytest

from foretune.models.expert_predictions import BEYOND_FRONTIER, NEW_DEVICE, ExpertPredictions
from foretune.models.stack import ConvexStack, StackByRow, fit_stack_by_row, load_stack


def two_experts(n, seed, noise=(0.02, 0.5)):
    """Return predictions and truth: expert 0 is good where the first feature is low, 1 elsewhere.

    ``noise`` are the standard deviations of the good and of the other expert.
    """
    rng = np.random.default_rng(seed)
    error_features = rng.uniform(0, 1, (n, 2)).astype(np.float32)
    truth = rng.normal(0, 1, n)
    first_is_good = error_features[:, 0] < 0.5
    deviations = np.where(first_is_good[:, None], noise, noise[::-1])
    values = truth[:, None] + rng.normal(0, 1, (n, 2)) * deviations
    return known_device(values, error_features), truth


def known_device(values, error_features):
    return ExpertPredictions(values, error_features, np.zeros(len(values), dtype=int))


def of_new_device(predictions, is_new=True):
    row_kind = np.where(is_new, NEW_DEVICE, predictions.row_kind)
    return ExpertPredictions(predictions.values, predictions.error_features, row_kind)


def median_error(predicted, truth):
    return float(np.median(np.abs(predicted - truth)))


@pytest.fixture(scope="module")
def stack():
    return fit_stack_by_row(*two_experts(1500, seed=0))


def test_stack_by_row_prefers_expert_that_is_right_in_the_row(stack):
    predictions, truth = two_experts(1000, seed=1)

    error = median_error(stack.combine(predictions), truth)

    assert isinstance(stack, StackByRow)
    assert error < 0.1 * median_error(predictions.values[:, 0], truth) + 0.02
    assert error < 0.2 * median_error(predictions.values.mean(axis=1), truth)


@pytest.mark.parametrize("is_new", [False, True])
def test_combine_stays_between_the_experts(stack, is_new):
    predictions, _ = two_experts(200, seed=2)

    combined = stack.combine(of_new_device(predictions, is_new))

    assert (combined >= predictions.values.min(axis=1) - 1e-9).all()
    assert (combined <= predictions.values.max(axis=1) + 1e-9).all()


def test_stack_of_equally_good_experts_beats_one_of_them():
    predictions, truth = two_experts(2000, seed=6, noise=(0.3, 0.3))

    combined = fit_stack_by_row(predictions, truth).combine(predictions)

    assert median_error(combined, truth) < 0.9 * median_error(predictions.values[:, 0], truth)


def test_stack_new_devices_use_weights_of_held_out_devices():
    """On known devices expert 0 is right, on the devices that were held out expert 1."""
    rng = np.random.default_rng(3)
    error_features = rng.uniform(0, 1, (1200, 2)).astype(np.float32)
    truth = rng.normal(0, 1, 1200)
    is_new = np.arange(1200) % 3 == 0
    deviations = np.where(is_new[:, None], (0.5, 0.02), (0.02, 0.5))
    values = truth[:, None] + rng.normal(0, 1, (1200, 2)) * deviations
    predictions = of_new_device(known_device(values, error_features), is_new)

    stack = fit_stack_by_row(predictions, truth)

    combined = stack.combine(predictions)
    assert stack.fixed[1] > 0.9
    assert median_error(combined[is_new], truth[is_new]) < 0.05
    assert median_error(combined[~is_new], truth[~is_new]) < 0.05


def test_stack_without_held_out_device_keeps_minimum_weight(stack):
    """New devices: halfway between fitted weights and equal ones, so at least 1/4 of two."""
    predictions, _ = two_experts(100, seed=4)

    combined = stack.combine(of_new_device(predictions))

    assert stack.fixed.sum() == pytest.approx(1.0)
    assert (stack.fixed >= 0.25).all()
    np.testing.assert_allclose(combined, predictions.values @ stack.fixed)


def test_stack_fits_weights_to_few_rows_of_new_devices():
    predictions, truth = two_experts(20, seed=7)

    stack = fit_stack_by_row(of_new_device(predictions), truth)

    assert isinstance(stack, ConvexStack)
    assert stack.fixed.sum() == pytest.approx(1.0)


def test_stack_by_row_avoids_expert_that_is_sometimes_far_off():
    """Expert 0 is off by 0.003 in most rows and by 1 in the others; expert 1 by 0.1 in all."""
    rng = np.random.default_rng(9)
    error_features = rng.uniform(0, 1, (1500, 2)).astype(np.float32)
    truth = rng.normal(0, 1, 1500)
    reckless_error = np.where(rng.random(1500) < 0.4, 1.0, 0.003)
    values = truth[:, None] + np.column_stack([reckless_error, np.full(1500, 0.1)])
    predictions = known_device(values, error_features)

    combined = fit_stack_by_row(predictions, truth).combine(predictions)

    weight_of_reckless = (combined - values[:, 1]) / (values[:, 0] - values[:, 1])
    assert np.median(weight_of_reckless) < 0.3


def test_convex_stack_weighs_problems_equally():
    """720 of 800 rows are of one problem, which expert 1 knows; expert 0 knows the other eight."""
    rng = np.random.default_rng(0)
    problems = np.concatenate([np.zeros(720, dtype=int), np.repeat(np.arange(1, 9), 10)])
    deviations = np.where((problems == 0)[:, None], (0.5, 0.01), (0.01, 0.5))
    values = rng.normal(0, 1, (800, 2)) * deviations
    row_weight = 1.0 / np.bincount(problems)[problems]

    predictions = known_device(values, np.zeros((800, 1)))
    stack = ConvexStack.fit(predictions, np.zeros(800), row_weight)

    assert stack.fixed[0] > 0.8
    combined = stack.combine(predictions)
    np.testing.assert_allclose(combined, values @ stack.fixed)


def test_stack_beyond_measured_problems_has_weights_of_its_own(tmp_path):
    """Expert 0 knows the rows inside, expert 1 those beyond."""
    rng = np.random.default_rng(0)
    is_beyond = np.arange(800) % 4 == 0
    deviations = np.where(is_beyond[:, None], (0.5, 0.01), (0.01, 0.5))
    values = rng.normal(0, 1, (800, 2)) * deviations
    row_kind = np.where(is_beyond, BEYOND_FRONTIER, 0)
    predictions = ExpertPredictions(values, np.zeros((800, 1), np.float32), row_kind)

    stack = fit_stack_by_row(predictions, np.zeros(800))
    stack.save(tmp_path)

    assert stack.beyond[1] > 0.8
    combined = load_stack(tmp_path).combine(predictions)
    np.testing.assert_allclose(combined[is_beyond], values[is_beyond] @ stack.beyond)


def test_stack_of_one_expert_repeats_it():
    predictions, truth = two_experts(500, seed=5)
    one_expert = known_device(predictions.values[:, :1], predictions.error_features)

    combined = fit_stack_by_row(one_expert, truth).combine(one_expert)

    np.testing.assert_allclose(combined, predictions.values[:, 0])


@pytest.mark.parametrize("kind", [ConvexStack, StackByRow])
def test_load_stack_combines_as_the_saved_one(kind, stack, tmp_path):
    saved = stack if kind is StackByRow else ConvexStack(stack.fixed)
    predictions, _ = two_experts(100, seed=8)
    predictions = of_new_device(predictions, np.arange(100) % 2 == 0)

    saved.save(tmp_path)
    loaded = load_stack(tmp_path)

    assert type(loaded) is kind
    np.testing.assert_array_equal(loaded.combine(predictions), saved.combine(predictions))
