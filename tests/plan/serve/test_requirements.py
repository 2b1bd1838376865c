"""Limits and goals: `plan/serve/requirements.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import UnknownName, UsageError
from foretune.plan import Requirements

TABLE = pd.DataFrame(
    {
        "ttft_ms": [100.0, 300.0],
        "tpot_ms": [10.0, 20.0],
        "accuracy": [np.nan, 0.98],
        "power_w": [np.nan, 500.0],
        "memory_gib": [40.0, 70.0],
        "usd_per_million_tokens": [np.nan, 2.0],
        "tokens_per_s_per_gpu": [100.0, 300.0],
        "energy_mj_per_token": [np.nan, 900.0],
    }
)


@pytest.mark.parametrize(
    ("limits", "keeping"),
    [
        ({}, [True, True]),
        ({"ttft_ms": 200}, [True, False]),
        ({"tpot_ms": 10}, [True, False]),
        ({"memory_gib": 50}, [True, False]),
        ({"power_w": 400}, [True, False]),
        ({"usd_per_million_tokens": 1}, [True, False]),
        ({"accuracy": 0.99}, [False, False]),
        ({"accuracy": 0.98}, [False, True]),
    ],
)
def test_feasible_checks_each_limit(limits, keeping):
    assert Requirements(**limits).feasible(TABLE).tolist() == keeping


@pytest.mark.parametrize(
    ("goal", "best"), [("throughput", 1), ("latency", 0), ("cost", 1), ("energy", 1)]
)
def test_score_follows_goal(goal, best):
    assert Requirements(goal=goal).score(TABLE).idxmax() == best


def test_violations_name_nearest_value():
    assert Requirements(tpot_ms=5).violations(TABLE) == ["10 ms per further token instead of 5"]
    assert "0.980 of the quality" in Requirements(accuracy=0.999).violations(TABLE)[0]


def test_requirements_invalid_limit_is_refused():
    with pytest.raises(UsageError, match="must be positive"):
        Requirements(ttft_ms=0)
    with pytest.raises(UsageError, match="accuracy"):
        Requirements(accuracy=95)
    with pytest.raises(UnknownName, match="throughput"):
        Requirements(goal="thruput")
