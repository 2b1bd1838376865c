"""When a new predictor becomes champion."""

import numpy as np
import pytest

from foretune.models import Predictor, Training, train_predictor
from foretune.models.validation.cross_validation import Validation
from foretune.tune.mlflow.promotion import CHALLENGER, CHAMPION, Champion, decide_promotion


@pytest.fixture(scope="module")
def trainings():
    return []


@pytest.fixture
def trained(toy_runs, trainings):
    """A training with held-out problems; all tests share one."""
    if not trainings:
        trainings.append(train_predictor(toy_runs, "xgboost", splits=("grouped",), validate="full"))
    return trainings[0]


def with_errors(training, own, baseline):
    """Return ``training`` with these typical errors of the model and of its best baseline."""
    scores = {"xgboost": {"median_ape": own}, "problem median": {"median_ape": baseline}}
    validation = Validation({"time_ms": {"grouped": scores}}, training.validation.held_out)
    return Training(training.predictor, validation)


def test_decide_promotion_refuses_what_a_baseline_beats(trained):
    decision = decide_promotion(with_errors(trained, own=0.2, baseline=0.1), champion=None)

    assert decision.alias == CHALLENGER
    assert decision.reason == (
        "typical error 20.0 % is no better than the 10.0 % of the baseline 'problem median'"
    )


def test_decide_promotion_refuses_without_held_out_problems(trained):
    not_validated = Training(trained.predictor, Validation({"time_ms": {}}))

    decision = decide_promotion(not_validated, champion=None)

    assert decision.alias == CHALLENGER
    assert decision.reason.startswith("no problem was held out")


def test_decide_promotion_takes_the_first_that_beats_its_baselines(trained):
    decision = decide_promotion(with_errors(trained, own=0.05, baseline=0.1), champion=None)

    assert decision.alias == CHAMPION
    assert decision.reason == (
        "the first champion: typical error 5.0 % is better than the 10.0 % of the best "
        "baseline, 'problem median'"
    )


@pytest.mark.parametrize(
    ("champion_error", "alias"), [(0.04, CHALLENGER), (0.06, CHAMPION), (np.nan, CHAMPION)]
)
def test_decide_promotion_on_the_same_problems_compares_held_out_errors(
    trained, champion_error, alias
):
    champion = Champion(trained.predictor, champion_error)
    decision = decide_promotion(with_errors(trained, own=0.05, baseline=0.1), champion)
    assert decision.alias == alias


def test_decide_promotion_compares_on_problems_new_to_both(trained, toy_runs):
    """A champion that learned two problems is worse on the other four than on its own."""
    few = toy_runs["problem.M"].isin([64, 256])
    narrow = Predictor(targets=("time_ms",)).fit(toy_runs[few])

    decision = decide_promotion(
        with_errors(trained, own=0.05, baseline=0.1), Champion(narrow, held_out_error=0.001)
    )

    assert decision.alias == CHAMPION
    assert decision.reason.endswith("of the champion on 4 problems new to both")
