"""Few or many problems: `models/regime.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.features.featureset import FeatureSet
from foretune.models.distinct_problems import MIN_PROBLEMS, distinct_problems
from foretune.models.expert_predictions import ExpertPredictions
from foretune.models.interval import RuleInterval
from foretune.models.regime import FewProblems, ManyProblems, choose_regime
from foretune.models.stack import ConvexStack, StackByRow
from foretune.models.target_model import TargetModel
from foretune.models.trees.boosting import BoostingModel

pytestmark = pytest.mark.usefixtures("short_fits")


def runs_of(n_problems, rows_per_problem=6):
    """Return runs whose problems differ by more than 5 %, in one size."""
    n = n_problems * rows_per_problem
    size = np.repeat(1.1 ** np.arange(n_problems), rows_per_problem) * 64
    setting = np.resize(np.arange(rows_per_problem, dtype=float), n)
    time_ms = size * (1.0 + setting) * np.exp(0.1 * np.random.default_rng(0).standard_normal(n))
    return pd.DataFrame(
        {
            "kernel": "k",
            "device": "d",
            "status": "ok",
            "problem.n": size,
            "config.x": setting,
            "time_ms": time_ms,
        }
    )


@pytest.mark.parametrize(
    ("n_problems", "regime"),
    [(1, ManyProblems(7)), (MIN_PROBLEMS - 1, FewProblems()), (MIN_PROBLEMS, ManyProblems(7))],
)
def test_choose_regime_depends_on_number_of_problems(n_problems, regime):
    runs = runs_of(n_problems)
    assert choose_regime(runs, distinct_problems(runs), seed=7) == regime


@pytest.mark.parametrize(("n_problems", "stack"), [(10, ConvexStack), (100, StackByRow)])
def test_regime_decides_weights_and_interval_of_model(n_problems, stack):
    runs = runs_of(n_problems)
    features = FeatureSet().fit(runs)

    model = TargetModel("time_ms", lambda: BoostingModel(rounds=10, rate=0.5))
    model.fit(features, runs, features.matrix(runs))

    assert type(model.stack) is stack
    assert isinstance(model.interval, RuleInterval) == (stack is ConvexStack)


def test_few_problems_weigh_problems_equally():
    """Expert 0 is right on a problem of 90 rows, expert 1 on one of 10 rows.

    Sum of absolute errors: by rows 10 × 1.0 against 90 × 0.2, by problems 1.0 against 0.2.
    """
    problems = np.repeat([0, 1], [90, 10])
    errors = np.where((problems == 0)[:, None], (0.0, 0.2), (1.0, 0.0))
    predictions = ExpertPredictions(errors, np.zeros((100, 1)), np.zeros(100, dtype=int))

    stack = FewProblems().fit_stack(predictions, np.zeros(100), problems)

    assert stack.fixed[1] > 0.7
