"""Objectives for ranking configurations: `models/objectives.py`."""

import math

import numpy as np
import pandas as pd
import pytest

from foretune.errors import PredictorError, UnknownName
from foretune.models import Predictor
from foretune.models.objectives import predicted_objective

PREDICTED = pd.DataFrame(
    {
        "time_ms": [2.0],
        "time_ms_low": [1.0],
        "time_ms_high": [4.0],
        "power_w": [100.0],
        "power_w_low": [80.0],
        "power_w_high": [300.0],
    },
    index=[7],
)


@pytest.mark.parametrize(
    ("objective", "value", "halves_of_time", "of_power"),
    [("time", 2, 1, 0), ("power", 100, 0, 1), ("energy", 200, 1, 1), ("edp", 400, 2, 1)],
)
def test_predicted_objective_adds_independent_errors(objective, value, halves_of_time, of_power):
    row = predicted_objective(PREDICTED, objective).loc[7]
    assert row["value"] == pytest.approx(value)
    low, high = (
        math.hypot(halves_of_time * math.log(2), of_power * math.log(factor))
        for factor in (100 / 80, 3)
    )
    assert row["low"] == pytest.approx(value / math.exp(low))
    assert row["high"] == pytest.approx(value * math.exp(high))


def test_predicted_objective_missing_target_is_refused():
    with pytest.raises(PredictorError, match=r"not learned power.*'edp'.*runs with power_w"):
        predicted_objective(PREDICTED[["time_ms", "time_ms_low", "time_ms_high"]], "edp")
    with pytest.raises(UnknownName, match="joules"):
        predicted_objective(PREDICTED, "joules")


def test_predicted_objective_energy_interval_covers(toy_runs):
    """Held-out launches are inside as often as an interval of 90 % says."""
    ok = toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)
    held_out = ok.index % 3 == 0
    predictor = Predictor(parameters={"rounds": 60}).fit(ok[~held_out])
    rows = ok[held_out]
    predicted = predictor.predict(rows)
    pd.testing.assert_frame_equal(
        predicted[["energy_mj", "energy_mj_low", "energy_mj_high"]],
        predicted_objective(predicted, "energy").set_axis(
            ["energy_mj", "energy_mj_low", "energy_mj_high"], axis=1
        ),
    )
    energy_mj = rows["power_w"] * rows["time_ms"]
    inside = energy_mj.between(predicted["energy_mj_low"], predicted["energy_mj_high"])
    assert inside.mean() >= 0.75
    assert np.isfinite(predicted).all(axis=None)
