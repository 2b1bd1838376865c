"""Joining a model with measured rows."""

import numpy as np
import pytest

from foretune.plan.operators.correction import MAX_NEIGHBORS, Correction, nearest_rows


def grid(count: int) -> np.ndarray:
    return np.linspace(0.0, 10.0, count)[:, None]


def test_correction_takes_error_of_whole_device_far_from_rows():
    points = grid(32)
    correction = Correction(points, np.zeros(32, dtype=int), np.full(32, 0.4))

    far = correction.at(np.array([20.0]), 0)

    assert far.log_ratio == pytest.approx(0.4, abs=0.02)


def test_correction_is_less_sure_far_from_rows():
    rng = np.random.default_rng(0)
    correction = Correction(grid(32), np.zeros(32, dtype=int), rng.normal(0.0, 0.1, 32))

    near = correction.at(np.array([5.0]), 0)
    far = correction.at(np.array([20.0]), 0)

    assert far.half_width > near.half_width
    assert near.nearest < 0.2 < far.nearest


def test_correction_interval_holds_on_rows_that_it_did_not_see():
    rng = np.random.default_rng(1)
    points = rng.uniform(0.0, 10.0, (400, 1))
    error = 0.3 + 0.2 * np.sin(points[:, 0]) + rng.normal(0.0, 0.05, 400)
    known = Correction(points[:64], np.zeros(64, dtype=int), error[:64])

    answers = [known.at(point, 0) for point in points[64:]]

    pairs = zip(answers, error[64:], strict=True)
    inside = [abs(a.log_ratio - e) <= a.half_width for a, e in pairs]
    assert 0.8 <= np.mean(inside) <= 1.0


def test_nearest_rows_prefer_the_same_group():
    points = np.zeros((200, 1))
    groups = np.repeat([0, 1], 100)

    assert set(groups[nearest_rows(points, groups, np.zeros(1), 1)]) == {1}
    assert len(nearest_rows(points, groups, np.zeros(1), 1)) == MAX_NEIGHBORS
