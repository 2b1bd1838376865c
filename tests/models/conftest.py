"""What the tests of predictors share."""

import pytest

from foretune.models import Predictor


@pytest.fixture(scope="session")
def runs(_toy_table):
    """The toy measurements as a run table, which no test changes."""
    return _toy_table


@pytest.fixture(scope="session")
def predictor(runs):
    """A predictor of them as trained by default, which no test changes."""
    return Predictor().fit(runs)


@pytest.fixture
def short_fits(monkeypatch):
    """Few hold-outs and steps, where it does not matter how well a predictor predicts."""
    monkeypatch.setattr("foretune.models.gaussian_process.MAX_STEPS", 3)
    monkeypatch.setattr("foretune.models.target_model.MORE_HOLDOUTS", 2)
    monkeypatch.setattr("foretune.models.target_model.PROBLEM_FOLDS", 2)
