"""The calibrated roofline: `models/calibrated_roofline.py`."""

import json

import numpy as np
import pytest

from foretune.features.arrays import Groups
from foretune.models.calibrated_roofline import MIN_ROWS, TIME, CalibratedRoofline


def limits(n, seed=0):
    """Log milliseconds by either limit: from a microsecond to a second, in any proportion."""
    return np.random.default_rng(seed).uniform(np.log(1e-3), np.log(1e3), (n, 2))


def law(at, overhead_ms, compute, memory, power):
    """``compute`` and ``memory`` are shares of the peak that are reached."""
    terms = np.exp(at[:, 0]) / compute, np.exp(at[:, 1]) / memory
    return np.log(overhead_ms + sum(t**power for t in terms) ** (1.0 / power))


def one_group(n):
    return Groups(np.zeros(n, dtype=int), ["all"])


@pytest.mark.parametrize(
    "truth",
    [(0.005, 0.8, 0.9, 2.0), (0.05, 0.5, 0.7, 4.0), (0.002, 0.3, 0.95, 1.0)],
)
def test_fit_recovers_parameters(truth):
    at = limits(2000)
    noise = np.random.default_rng(1).normal(0, 0.02, len(at))
    fitted = CalibratedRoofline().fit(at, law(at, *truth) + noise, one_group(len(at)))
    log_overhead, a, b, overlap = fitted.by_group["all"]
    overhead, compute, memory, power = truth
    assert np.exp(log_overhead) == pytest.approx(overhead, rel=0.1)
    assert np.exp(-a) == pytest.approx(compute, rel=0.03)
    assert np.exp(-b) == pytest.approx(memory, rel=0.03)
    assert 1.0 + overlap**2 == pytest.approx(power, rel=0.15)
    new = limits(200, seed=9)
    np.testing.assert_allclose(fitted.log_value(new, one_group(200)), law(new, *truth), atol=0.05)


def test_fit_ignores_outliers():
    at = limits(500)
    log_time = law(at, 0.005, 0.8, 0.9, 2.0)
    log_time[::20] += 3.0
    fitted = CalibratedRoofline().fit(at, log_time, one_group(500))
    clean = np.arange(500) % 20 > 0
    missed = fitted.log_value(at, one_group(500)) - log_time
    assert np.abs(missed[clean]).max() < 0.1


def test_fit_large_groups_have_own_parameters():
    at = limits(400)
    codes = np.repeat([0, 1, 2], [190, 190, 20])
    groups = Groups(codes, ["fast", "slow", "few"])
    slow = np.where(codes == 1, 0.25, 0.8)
    log_time = np.array(
        [law(row[None], 0.005, s, s, 2.0)[0] for row, s in zip(at, slow, strict=True)]
    )
    fitted = CalibratedRoofline().fit(at, log_time, groups)
    assert set(fitted.by_group) == {"fast", "slow"}
    np.testing.assert_allclose(
        fitted.log_value(at, groups)[codes == 1], log_time[codes == 1], atol=0.1
    )
    # those of whom little or nothing is known get what is common to all
    unknown = Groups(np.zeros(5, dtype=int), ["never seen"])
    few = Groups(np.zeros(5, dtype=int), ["few"])
    np.testing.assert_array_equal(fitted.log_value(at[:5], unknown), fitted.log_value(at[:5], few))
    assert not np.allclose(
        fitted.log_value(at[:5], unknown), fitted.log_value(at[:5], Groups(unknown.codes, ["slow"]))
    )


def test_fit_group_of_few_sizes_shares_parameters():
    at = np.repeat(limits(5), MIN_ROWS, axis=0)
    fitted = CalibratedRoofline().fit(at, law(at, 0.005, 0.5, 0.5, 2.0), one_group(len(at)))
    assert fitted.by_group == {}


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fit_few_rows_stays_near_start(n):
    at = limits(n)
    fitted = CalibratedRoofline().fit(at, law(at, 0.004, 0.8, 0.8, 2.0), one_group(n))
    new = limits(50, seed=5)
    usual = law(new, 0.004, np.exp(-0.2), np.exp(-0.2), np.exp(0.7))
    assert np.abs(fitted.log_value(new, one_group(50)) - usual).max() < 0.5


def test_log_value_of_no_rows():
    nothing = CalibratedRoofline().log_value(np.empty((0, 2)), Groups(np.zeros(0, dtype=int), []))
    assert nothing.shape == (0,)


def test_log_value_grows_with_limits_within_efficiency():
    fitted = CalibratedRoofline()
    at = limits(100)
    base = fitted.log_value(at, one_group(100))
    for column in (0, 1):
        more = at.copy()
        more[:, column] += 0.5
        assert (fitted.log_value(more, one_group(100)) >= base).all()
    assert (base >= at.max(axis=1) + 0.2 - 1e-12).all()  # 80 % of the peak


def test_from_json_returns_the_same():
    at = limits(300)
    groups = Groups(np.repeat([0, 1], 150), ["a", "b"])
    fitted = CalibratedRoofline().fit(at, law(at, 0.01, 0.5, 0.5, 3.0), groups)
    loaded = CalibratedRoofline.from_json(json.loads(json.dumps(fitted.to_json())), TIME)
    np.testing.assert_array_equal(loaded.log_value(at, groups), fitted.log_value(at, groups))
