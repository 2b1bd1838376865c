"""Sums of power laws, fitted to times."""

import numpy as np
import pytest

from foretune.models.power_laws import PowerLaws


def products(n, largest_octave, seed=0):
    """Octaves of M, N and K, and the log of overhead + operations + traffic in ms."""
    octaves = np.random.default_rng(seed).uniform(5, largest_octave, (n, 3))
    m, n_columns, k = 2.0**octaves.T
    operations = m * n_columns * k * 1e-8
    traffic = (m * k + k * n_columns + m * n_columns) * 3e-6
    return octaves, np.log(0.01 + operations + traffic)


def test_power_laws_extrapolate_where_one_power_law_does_not():
    octaves, log_ms = products(400, largest_octave=10)
    larger, larger_log_ms = products(200, largest_octave=13, seed=1)
    errors = {}

    for terms in (1, 3):
        laws = PowerLaws.fit(octaves - 8, log_ms, np.ones(400), terms=terms, starts=3)
        errors[terms] = np.abs(laws.log_value(larger - 8) - larger_log_ms).mean()

    assert errors[3] < 0.1
    assert errors[3] < 0.5 * errors[1]


def test_power_laws_recover_exponents_of_one_term():
    octaves, _ = products(300, largest_octave=10)
    log_ms = np.log(0.02 + np.exp(np.log(2.0) * (octaves - 8) @ [1.0, 0.5, 2.0]))

    laws = PowerLaws.fit(octaves - 8, log_ms, np.ones(300), terms=1)

    exponents = laws.coefficients[0, 1:] / np.log(2.0)
    np.testing.assert_allclose(exponents, [1.0, 0.5, 2.0], atol=0.02)
    assert np.exp(laws.log_overhead) == pytest.approx(0.02, rel=0.1)


def test_power_laws_extrapolate_work_that_hides_behind_the_overhead():
    # Most launches are shorter than their overhead, and the others not longer than twice as much.
    octaves = np.random.default_rng(0).uniform(0, 10, (300, 2))
    work_ms = 2.0 ** octaves.sum(axis=1) * 0.03 / 2**16
    is_known = work_ms < 0.06
    log_ms = np.log(np.maximum(0.03, work_ms))

    laws = PowerLaws.fit(octaves[is_known] - 5, log_ms[is_known], np.ones(is_known.sum()), terms=1)

    errors = laws.log_value(octaves[~is_known] - 5) - log_ms[~is_known]
    assert np.abs(errors).max() < 0.3


def test_power_laws_outliers_hardly_count():
    octaves, log_ms = products(300, largest_octave=10)
    spoiled = log_ms + np.where(np.arange(300) % 20 == 0, 3.0, 0.0)

    laws = PowerLaws.fit(octaves - 8, spoiled, np.ones(300), terms=3, starts=3)

    assert np.median(np.abs(laws.log_value(octaves - 8) - log_ms)) < 0.05


def test_power_laws_round_trip_predicts_the_same():
    octaves, log_ms = products(50, largest_octave=10)
    laws = PowerLaws.fit(octaves - 8, log_ms, np.ones(50), terms=2)

    loaded = PowerLaws.from_json(laws.to_json())

    np.testing.assert_array_equal(loaded.log_value(octaves), laws.log_value(octaves))
