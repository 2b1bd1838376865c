"""Interpolating measured operators: exact at measurements, close between, bounded beyond."""

import numpy as np
import pytest

from foretune.plan.cost.interpolation import Interpolation


def power_law(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places, limits and log times of products that reach half of a roofline."""
    rng = np.random.default_rng(seed)
    places = rng.integers(4, 13, (rows, 3)).astype(float)
    compute = places.sum(axis=1) * np.log(2) - 18.0
    memory = places[:, :2].sum(axis=1) * np.log(2) - 12.0
    limits = np.column_stack([compute, memory])
    log_ms = np.log(0.004 + 2.0 * np.exp(limits).max(axis=1)) + 0.05 * np.sin(places[:, 0])
    return places, limits, log_ms


def test_measurements_are_given_back():
    places, limits, log_ms = power_law(400, 0)
    grid = Interpolation.of_distinct(places, limits, log_ms)
    reading = grid.read(places, limits)
    assert reading.log_ms == pytest.approx(log_ms, abs=1e-9)
    assert (reading.distance == 0).all()


def test_between_measurements_the_error_is_a_few_percent():
    places, limits, log_ms = power_law(800, 1)
    seen = Interpolation.of_distinct(places[:600], limits[:600], log_ms[:600])
    reading = seen.read(places[600:], limits[600:])
    assert np.median(np.abs(reading.log_ms - log_ms[600:])) < 0.03


def test_far_beyond_them_the_roofline_carries_and_the_interval_is_wider():
    places, limits, log_ms = power_law(400, 2)
    grid = Interpolation.of_distinct(places, limits, log_ms)
    far = np.array([[16.0, 16.0, 16.0]])
    far_limits = np.array([[48 * np.log(2) - 18.0, 32 * np.log(2) - 12.0]])
    reading = grid.read(far, far_limits)
    assert reading.log_ms[0] == pytest.approx(np.log(2.0) + far_limits.max(), abs=0.5)
    assert reading.width[0] > 2 * grid.read(places[:1], limits[:1]).width[0]


def test_of_several_implementations_the_fastest_counts():
    places, limits, log_ms = power_law(200, 3)
    twice = np.r_[places, places], np.r_[limits, limits], np.r_[log_ms + 0.7, log_ms]
    assert Interpolation.of_distinct(*twice).read(places, limits).log_ms == pytest.approx(
        log_ms, abs=1e-9
    )


def test_few_measurements_are_enough():
    places, limits, log_ms = power_law(9, 4)
    assert np.isfinite(
        Interpolation.of_distinct(places, limits, log_ms).read(places, limits).width
    ).all()
