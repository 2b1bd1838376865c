"""Keeping to limits: probabilities from intervals, and choices that seldom miss."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan.serve.deployments.probability import (
    DEFAULT_MIN_PROBABILITY,
    PROBABILITY_LEVELS,
    CalibrationChoice,
    calibration_choices,
    choose,
    probability_within,
    required_probability,
)


def interval(values, factor) -> pd.DataFrame:
    values = np.asarray(values, dtype=float)
    return pd.DataFrame({"tpot_ms": values, "tpot_ms_high": values * factor})


def test_a_limit_at_the_end_of_the_interval_is_kept_nineteen_times_in_twenty():
    # A 90 % interval leaves a twentieth above its upper end.
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 15.0)[0] == pytest.approx(
        0.95, abs=1e-4
    )
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 10.0)[0] == pytest.approx(0.5)
    assert probability_within(interval([10.0], 1.5), "tpot_ms", 10.0 / 1.5)[0] == pytest.approx(
        0.05, abs=1e-4
    )


def test_without_a_limit_all_keep_to_it():
    assert probability_within(interval([10.0, 1e6], 3.0), "tpot_ms", np.inf).tolist() == [1.0, 1.0]


@given(
    value=st.floats(0.1, 1e4), factor=st.floats(1.01, 10.0), limit=st.floats(0.1, 1e4),
    more=st.floats(1.0, 10.0),
)  # fmt: skip
def test_a_looser_limit_is_kept_at_least_as_surely(value, factor, limit, more):
    latencies = interval([value], factor)
    tight, loose = (probability_within(latencies, "tpot_ms", x)[0] for x in (limit, limit * more))
    assert 0.0 <= tight <= loose <= 1.0


def test_the_fastest_of_the_sure_is_chosen():
    speed, chance = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.99, 0.9, 0.6, 0.2])
    assert choose(speed, chance) == 2
    assert choose(speed, chance, 0.8) == 1
    assert choose(speed, chance, 0.95) == 0
    assert choose(speed, chance, 0.999) == 0  # none is: the surest


def test_as_sure_as_it_takes_to_miss_seldom():
    # The fastest is said to keep to its limit with 0.72, and does so in half of the choices.
    picks = [
        CalibrationChoice(
            np.array([1.0, 2.0]), np.array([0.99, 0.72]), np.array([True, i % 2 == 0])
        )
        for i in range(10)
    ]
    assert required_probability(picks, max_violation_rate=0.5) == DEFAULT_MIN_PROBABILITY
    assert required_probability(picks, max_violation_rate=0.05) == pytest.approx(0.75)


def test_what_never_keeps_asks_for_the_most():
    picks = [CalibrationChoice(np.array([1.0]), np.array([0.9]), np.array([False]))]
    assert required_probability(picks, max_violation_rate=0.05) == PROBABILITY_LEVELS[-1]
    assert required_probability([], max_violation_rate=0.05) == PROBABILITY_LEVELS[0]


def test_choices_are_made_where_one_workload_has_several_deployments():
    rows = pd.DataFrame(
        {"model": list("aaab"), "system": "s", "isl": 10.0, "osl": 100.0, "gpus": [1.0, 2, 1, 1],
         "concurrency": 8.0, "apart": [0.0, 0.0, 1.0, 0.0]}
    )  # fmt: skip
    measured = pd.DataFrame({"tpot_ms": [30.0, 90.0, 1.0, 1.0]})
    predicted = interval([25.0, 25.0, 1.0, 1.0], 2.0).assign(ttft_ms=0.0)
    found = calibration_choices(rows, measured, predicted)
    # The two of one pool; nothing keeps to 20 ms.
    assert [choice.within_limit.tolist() for choice in found] == [[True, False], [True, False]]
    assert found[0].tokens_per_s[0] == pytest.approx(2 * found[0].tokens_per_s[1])
    assert (found[0].probability < found[1].probability).all()
