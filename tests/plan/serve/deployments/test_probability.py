"""Probabilities of meeting a limit: `plan/serve/deployments/probability.py`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan.serve.deployments.probability import probability_within


def interval(values, factor) -> pd.DataFrame:
    values = np.asarray(values, dtype=float)
    return pd.DataFrame({"tpot_ms": values, "tpot_ms_high": values * factor})


def test_probability_within_limit_at_interval_end_is_95_percent():
    # A 90 % interval leaves a twentieth above its upper end.
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 15.0)[0] == pytest.approx(
        0.95, abs=1e-4
    )
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 10.0)[0] == pytest.approx(0.5)
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 10.0 / 1.5)[0] == pytest.approx(
        0.05, abs=1e-4
    )


def test_probability_within_without_limit_is_one():
    assert probability_within(interval([10.0, 1e6], 3.0), "tpot_ms", np.inf).tolist() == [1.0, 1.0]


@given(
    value=st.floats(0.1, 1e4),
    factor=st.floats(1.01, 10.0),
    limit=st.floats(0.1, 1e4),
    more=st.floats(1.0, 10.0),
)
def test_probability_within_grows_with_limit(value, factor, limit, more):
    latencies = interval([value], factor)
    tight, loose = (probability_within(latencies, "tpot_ms", x)[0] for x in (limit, limit * more))
    assert 0.0 <= tight <= loose <= 1.0
