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
