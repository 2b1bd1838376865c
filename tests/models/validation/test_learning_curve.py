"""Learning curves: more runs, less error."""

import pytest

from foretune.datasets import from_measurements
from foretune.errors import PredictorError
from foretune.models import Predictor, learning_curve


@pytest.fixture(scope="module")
def runs(toy_measurements, toy_device):
    return from_measurements(toy_measurements, toy_device)


def test_more_runs_are_better(runs):
    curve = learning_curve(Predictor(parameters={"rounds": 60}), runs, shares=(0.01, 0.3, 1.0))
    assert curve["rows"].is_monotonic_increasing
    assert len(curve) == 2, "three rows are too few to learn from"
    assert curve["mape"].iloc[-1] < curve["mape"].iloc[0]
    assert list(curve) == ["rows", "mape", "median_ape", "coverage90"]


def test_learning_curve_of_one_group_is_refused(runs):
    with pytest.raises(PredictorError, match="one group"):
        learning_curve(Predictor(), runs.assign(where="here"), group="where")
