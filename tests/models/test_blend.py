"""The blend believes whom experience has shown to be right, here."""

import numpy as np
import pytest

from foretune.models.blend import POWERS, Blend


def argument(n, seed, noise=(0.02, 0.5)):
    """Two opinions: the first is good where the circumstance is low, the second elsewhere."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(0, 1, (n, 2)).astype(np.float32)
    truth = rng.normal(0, 1, n)
    low = Z[:, 0] < 0.5
    sizes = np.where(low[:, None], noise, noise[::-1])
    return Z, truth[:, None] + rng.normal(0, 1, (n, 2)) * sizes, truth


def known(truth):
    """Rows of a device that is known, all of them."""
    return np.zeros(len(truth), dtype=bool)


def learn(Z, opinions, truth):
    """Three hold-outs; the blend alone."""
    return Blend.fit(Z, opinions, truth, np.arange(len(truth)) % 3, known(truth))[0]


def error(predicted, truth):
    return float(np.median(np.abs(predicted - truth)))


@pytest.fixture(scope="module")
def blend():
    return learn(*argument(1500, 0))


def test_it_believes_who_is_right_here(blend):
    Z, opinions, truth = argument(1000, 1)
    blended = error(blend.predict(Z, opinions, known(Z), known(Z)), truth)
    assert blended < 0.1 * error(opinions[:, 0], truth) + 0.02
    assert blended < 0.2 * error(opinions.mean(axis=1), truth)


def test_a_blend_lies_between_the_opinions(blend):
    Z, opinions, _ = argument(200, 2)
    predicted = blend.predict(Z, opinions, known(Z), known(Z))
    assert (predicted >= opinions.min(axis=1) - 1e-12).all()
    assert (predicted <= opinions.max(axis=1) + 1e-12).all()


def test_of_a_device_like_none_held_out_everyone_has_a_say(blend):
    """Where no device was held out, nobody has shown to be right on a new one."""
    Z, opinions, _ = argument(100, 4)
    middle = opinions.mean(axis=1)
    here, there = (blend.predict(Z, opinions, known(Z), new) for new in (known(Z), ~known(Z)))
    assert blend.power > POWERS[0]
    assert (np.abs(there - middle) <= np.abs(here - middle) + 1e-12).all()


def test_who_has_no_opinion_has_no_weight(blend):
    Z, opinions, _ = argument(50, 3)
    opinions[:25, 1] = np.nan
    predicted = blend.predict(Z, opinions, known(Z), known(Z))
    np.testing.assert_allclose(predicted[:25], opinions[:25, 0])
    assert np.isfinite(predicted).all()


def test_gaps_in_what_it_learns_from():
    Z, opinions, truth = argument(800, 4)
    opinions[::2, 1] = np.nan
    fitted = learn(Z, opinions, truth)
    Z, opinions, truth = argument(800, 5)
    assert error(fitted.predict(Z, opinions, known(Z), known(Z)), truth) < error(
        opinions.mean(axis=1), truth
    )


def test_equals_share():
    Z, opinions, truth = argument(2000, 6, noise=(0.3, 0.3))
    fitted = learn(Z, opinions, truth)
    assert error(fitted.predict(Z, opinions, known(Z), known(Z)), truth) < 0.9 * error(
        opinions[:, 0], truth
    )


def test_no_row_is_blended_by_what_it_taught():
    Z, opinions, truth = argument(600, 7)
    trials = np.arange(600) % 3
    new = np.arange(600) % 5 == 0
    fitted, blended = Blend.fit(Z, opinions, truth, trials, new)
    for number in range(3):
        out = trials == number
        others, _ = Blend.fit(Z[~out], opinions[~out], truth[~out], trials[~out], new[~out])
        others.power, others.new_device_power = fitted.power, fitted.new_device_power
        np.testing.assert_array_equal(
            blended[out], others.predict(Z[out], opinions[out], new[out], known(truth[out]))
        )


def test_one_hold_out_is_enough_to_learn():
    Z, opinions, truth = argument(600, 7)
    fitted, blended = Blend.fit(Z, opinions, truth, np.zeros(600), known(Z))
    np.testing.assert_array_equal(blended, fitted.predict(Z, opinions, known(Z), known(Z)))


def test_it_is_as_sharp_as_was_best():
    """Where circumstances tell who is right, the better one gets nearly all the weight."""
    sharp, soft = (learn(*argument(1500, 0, noise)) for noise in ((0.02, 0.5), (0.3, 0.3)))
    assert soft.power < sharp.power
    assert {soft.power, sharp.power} <= set(POWERS)


def test_on_new_devices_it_is_no_sharper_than_hold_outs_agree_on():
    """Circumstances look decisive in the largest of three hold-outs only."""
    parts = argument(1500, 0), argument(500, 1, (0.3, 0.3)), argument(500, 2, (0.3, 0.3))
    Z, opinions, truth = (np.concatenate(part) for part in zip(*parts, strict=True))
    trials = np.repeat([0, 1, 2], [1500, 500, 500])
    apart, _ = Blend.fit(Z, opinions, truth, trials, known(truth))
    assert apart.new_device_power == apart.power
    doubtful, blended = Blend.fit(Z, opinions, truth, trials, ~known(truth))
    assert doubtful.new_device_power < doubtful.power == apart.power
    weights = [
        doubtful.predict(Z, np.eye(2)[[0] * len(Z)], new, known(Z)) for new in (known(Z), ~known(Z))
    ]
    assert abs(weights[1] - 0.5).mean() < abs(weights[0] - 0.5).mean()
    assert np.isfinite(blended).all()


def test_who_is_mostly_exact_and_sometimes_far_off_is_not_the_best():
    rng = np.random.default_rng(9)
    Z, truth = rng.uniform(0, 1, (1500, 2)).astype(np.float32), rng.normal(0, 1, 1500)
    reckless = np.where(rng.random(1500) < 0.4, 1.0, 0.003)
    fitted = learn(Z, truth[:, None] + np.column_stack([reckless, np.full(1500, 0.1)]), truth)
    of_reckless, of_steady = fitted.log_errors(Z).mean(axis=0)
    assert of_steady < of_reckless


def test_it_comes_back_from_disk_the_same(blend, tmp_path):
    blend.save(tmp_path)
    Z, opinions, _ = argument(100, 8)
    loaded = Blend.load(tmp_path, 2)
    assert (loaded.power, loaded.new_device_power) == (blend.power, blend.new_device_power)
    for new in (known(Z), ~known(Z)):
        np.testing.assert_array_equal(
            loaded.predict(Z, opinions, new, known(Z)), blend.predict(Z, opinions, new, known(Z))
        )


def test_of_few_problems_each_counts_alike(tmp_path):
    """The first opinion is good on one problem of many rows, the second on nine of few."""
    rng = np.random.default_rng(0)
    problems = np.repeat(np.arange(10), [900] + [10] * 9)
    truth = rng.normal(size=len(problems))
    sizes = np.where((problems == 0)[:, None], (0.01, 0.5), (0.5, 0.05))
    opinions = truth[:, None] + rng.normal(0, 1, (len(truth), 2)) * sizes
    fitted, value = Blend.fit_by_problem(opinions, truth, problems % 5, problems)
    assert fitted.typical[1] < fitted.typical[0]
    assert np.isfinite(value).all()
    fitted.save(tmp_path)
    loaded = Blend.load(tmp_path, 2)
    new = np.zeros(len(truth), dtype=bool)
    for each in (fitted, loaded):
        predicted = each.predict(np.zeros((len(truth), 1)), opinions, new, known(truth))
        assert np.abs(predicted - truth)[problems > 0].mean() < 0.1


def test_no_problem_is_blended_by_what_it_taught():
    rng = np.random.default_rng(1)
    problems = np.arange(60) % 6
    truth, opinions = rng.normal(size=60), rng.normal(size=(60, 3))
    _, value = Blend.fit_by_problem(opinions, truth, problems, problems)
    for number in range(6):
        out = problems == number
        others, _ = Blend.fit_by_problem(
            opinions[~out], truth[~out], problems[~out], problems[~out]
        )
        again = others.predict(opinions[out], opinions[out], out[out], known(truth[out]))
        np.testing.assert_allclose(value[out], again)
