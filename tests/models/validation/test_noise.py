"""The noise floor, from repeats: `models/validation/metrics.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.models import noise_floor


def repeats(deviation, n=300, samples=16):
    rng = np.random.default_rng(0)
    times = rng.lognormal(0, 2, (n, 1)) * (1 + rng.normal(0, deviation, (n, samples)))
    return pd.DataFrame({"status": "ok", "time_ms_samples": list(times)})


def test_noise_floor_is_error_of_perfect_prediction():
    deviation = 0.04
    samples = 16
    # A median of n normal samples errs by 1.2533 deviation / sqrt(n), 0.798 of that on average.
    expected = 0.798 * 1.2533 * deviation / np.sqrt(samples)
    assert noise_floor(repeats(deviation, 3000, samples)) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "runs",
    [
        pd.DataFrame({"status": ["ok"] * 9}),
        pd.DataFrame({"status": ["ok"] * 9, "time_ms_samples": [None] * 9}),
        pd.DataFrame({"status": ["ok"] * 9, "time_ms_samples": [[1.0, 1.1]] * 9}),
        repeats(0.1, 3),
        repeats(0.1).assign(status="timeout"),
    ],
    ids=["no samples", "none", "two", "three rows", "failures"],
)
def test_noise_floor_without_repeats_is_nan(runs):
    assert np.isnan(noise_floor(runs))
