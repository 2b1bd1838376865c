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


@pytest.fixture(scope="module")
def short_fits():
    """Few hold-outs and steps, for tests in which it does not matter how good a predictor is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretune.models.feature_process.MAX_STEPS", 3)
        patch.setattr("foretune.models.regime.MORE_HOLDOUTS", 2)
        patch.setattr("foretune.models.holdouts.PROBLEM_FOLDS", 2)
        yield
