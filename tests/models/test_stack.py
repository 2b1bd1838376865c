"""The stack trusts the expert that held-out rows have shown to be right, here."""

import numpy as np
import pytest

from foretune.models.experts import Stack


def argument(n, seed, noise=(0.02, 0.5)):
    """Two opinions: the first is good where the circumstance is low, the second elsewhere."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(0, 1, (n, 2)).astype(np.float32)
    truth = rng.normal(0, 1, n)
    low = Z[:, 0] < 0.5
    sizes = np.where(low[:, None], noise, noise[::-1])
    return Z, truth[:, None] + rng.normal(0, 1, (n, 2)) * sizes, truth


def none_of(rows):
    return np.zeros(len(rows), dtype=bool)


def error(predicted, truth):
    return float(np.median(np.abs(predicted - truth)))


@pytest.fixture(scope="module")
def stack():
    Z, opinions, truth = argument(1500, 0)
    return Stack.fit(Z, opinions, truth, none_of(Z))


def test_the_expert_that_is_right_here_counts(stack):
    Z, opinions, truth = argument(1000, 1)
    stacked = error(stack.combine(Z, opinions, none_of(Z)), truth)
    assert stacked < 0.1 * error(opinions[:, 0], truth) + 0.02
    assert stacked < 0.2 * error(opinions.mean(axis=1), truth)


@pytest.mark.parametrize("new", [False, True])
def test_the_value_lies_between_the_opinions(stack, new):
    Z, opinions, _ = argument(200, 2)
    value = stack.combine(Z, opinions, np.full(200, new))
    assert (value >= opinions.min(axis=1) - 1e-9).all()
    assert (value <= opinions.max(axis=1) + 1e-9).all()


def test_equals_share():
    Z, opinions, truth = argument(2000, 6, noise=(0.3, 0.3))
    fitted = Stack.fit(Z, opinions, truth, none_of(Z))
    assert error(fitted.combine(Z, opinions, none_of(Z)), truth) < 0.9 * error(
        opinions[:, 0], truth
    )


def test_new_devices_have_the_weights_of_devices_held_out():
    """On known devices the first expert is right, on those held out the second."""
    rng = np.random.default_rng(3)
    Z, truth = rng.uniform(0, 1, (1200, 2)).astype(np.float32), rng.normal(0, 1, 1200)
    new = np.arange(1200) % 3 == 0
    sizes = np.where(new[:, None], (0.5, 0.02), (0.02, 0.5))
    opinions = truth[:, None] + rng.normal(0, 1, (1200, 2)) * sizes
    fitted = Stack.fit(Z, opinions, truth, new)
    assert fitted.fixed[1] > 0.9
    value = fitted.combine(Z, opinions, new)
    assert error(value[new], truth[new]) < 0.05
    assert error(value[~new], truth[~new]) < 0.05


def test_where_no_device_was_held_out_every_expert_has_a_say(stack):
    Z, opinions, _ = argument(100, 4)
    assert stack.fixed.sum() == pytest.approx(1.0)
    assert (stack.fixed >= 0.25).all()
    there = stack.combine(Z, opinions, ~none_of(Z))
    np.testing.assert_allclose(there, opinions @ stack.fixed)


def test_a_few_rows_of_new_devices_are_better_than_none():
    Z, opinions, truth = argument(20, 7)
    assert Stack.fit(Z, opinions, truth, ~none_of(Z)).fixed.sum() == pytest.approx(1.0)


def test_an_expert_that_is_mostly_exact_and_sometimes_far_off_is_not_the_best():
    rng = np.random.default_rng(9)
    Z, truth = rng.uniform(0, 1, (1500, 2)).astype(np.float32), rng.normal(0, 1, 1500)
    reckless = np.where(rng.random(1500) < 0.4, 1.0, 0.003)
    opinions = truth[:, None] + np.column_stack([reckless, np.full(1500, 0.1)])
    value = Stack.fit(Z, opinions, truth, none_of(Z)).combine(Z, opinions, none_of(Z))
    share = (value - opinions[:, 1]) / (opinions[:, 0] - opinions[:, 1])
    assert np.median(share) < 0.3


def test_of_few_problems_each_counts_alike():
    """Of nine problems' rows, nine tenths are of one that the second expert knows."""
    rng = np.random.default_rng(0)
    problems = np.concatenate([np.zeros(720, dtype=int), np.repeat(np.arange(1, 9), 10)])
    sizes = np.where((problems == 0)[:, None], (0.5, 0.01), (0.01, 0.5))
    opinions, truth = rng.normal(0, 1, (800, 2)) * sizes, np.zeros(800)
    fitted = Stack.fit(np.zeros((800, 1)), opinions, truth, none_of(truth), problems)
    assert fitted.models == []
    assert fitted.fixed[0] > 0.8
    np.testing.assert_allclose(
        fitted.combine(np.zeros((800, 1)), opinions, none_of(truth)), opinions @ fitted.fixed
    )


def test_one_expert_needs_no_weights():
    Z, opinions, truth = argument(500, 5)
    fitted = Stack.fit(Z, opinions[:, :1], truth, none_of(Z))
    np.testing.assert_allclose(fitted.combine(Z, opinions[:, :1], none_of(Z)), opinions[:, 0])


def test_it_comes_back_from_disk_the_same(stack, tmp_path):
    stack.save(tmp_path)
    Z, opinions, _ = argument(100, 8)
    new = np.arange(100) % 2 == 0
    np.testing.assert_array_equal(
        Stack.load(tmp_path).combine(Z, opinions, new), stack.combine(Z, opinions, new)
    )
