"""Guides of a search: what a trained one and a user's model answer: `models/guides/guide.py`."""

import dataclasses

import numpy as np
import pytest
import toy_models
from toy_kernel import DEVICE
from toy_models import PROBLEM, SPACE

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.models.guides.guide import make_guide
from foretune.models.guides.request import PredictorRequest
from foretune.models.guides.user_guide import DEFAULT_LOG_SPREAD
from foretune.problem import Problem

ELSEWHERE = Device("Other GPU", "cuda", specs=DEVICE.specs)


@pytest.fixture(scope="module")
def trained(runs):
    predictor = Predictor(parameters={"rounds": 5}).fit(runs)
    return make_guide(predictor, predictor.device())


@pytest.fixture
def users():
    return make_guide(toy_models.by_table, DEVICE)


@pytest.fixture
def learned(toy_measurements):
    """A successful run of the training table."""
    return next(m for m in toy_measurements if m.ok)


def test_make_guide_returns_guides_unchanged(trained, users):
    assert make_guide(trained) is trained
    assert make_guide(users) is users


def test_make_guide_without_device_takes_the_only_training_device(runs, trained):
    guide = make_guide(trained.predictor)

    assert guide.device.name == runs["device"].iloc[0]
    assert not guide.mismatch


def test_make_guide_other_device_is_a_mismatch(trained):
    guide = make_guide(trained.predictor, ELSEWHERE)

    assert guide.mismatch.endswith("this is Other GPU")
    assert not guide.has_valid_interval


def test_make_guide_users_model_is_a_mismatch(users):
    assert users.mismatch == "by_table is your own model"
    assert not users.shipped


def test_prediction_of_has_interval_where_it_is_valid(trained, learned):
    here = trained.prediction_of(learned)
    there = make_guide(trained.predictor, ELSEWHERE).prediction_of(learned)

    assert set(here) == {"predicted_ms", "low_ms", "high_ms"}
    assert set(there) == {"predicted_ms"}


def test_prediction_of_users_model_is_empty(users, learned):
    assert users.prediction_of(learned) == {}


def test_log_spread_of_users_model_comes_from_predictions(users):
    predicted = users.predict_space(PROBLEM, SPACE).assign(time_ms_low=1.0, time_ms_high=np.e)

    assert users.log_spread() == DEFAULT_LOG_SPREAD
    assert users.log_spread(predicted) == pytest.approx(1 / (2 * 1.645))


def test_not_trained_on_leaves_training_runs_out(trained, learned):
    new = dataclasses.replace(learned, problem=Problem({**learned.problem, "M": 7}))

    assert trained.not_trained_on([learned, new]) == [new]


def test_not_trained_on_users_model_is_everything(users, learned):
    assert users.not_trained_on([learned]) == [learned]


def test_training_runs_of_users_model_are_none(users, trained, runs):
    assert len(trained.training_runs()) == len(runs)
    assert users.training_runs().empty


def test_require_other_kernel_is_refused(trained):
    request = PredictorRequest("other", source_hash="", device=DEVICE)
    with pytest.raises(PredictorError, match="not 'other': name one that was trained on runs of"):
        trained.require(request)


def test_require_missing_target_is_refused(runs):
    predictor = Predictor(targets=("time_ms",), parameters={"rounds": 5}).fit(runs)
    request = PredictorRequest(predictor.kernel_name_, "", DEVICE, needs_power=True)
    with pytest.raises(PredictorError, match="has not learned power_w"):
        make_guide(predictor, DEVICE).require(request)


def test_check_prediction_refuses_users_model_that_ranks_nothing(users, trained):
    same_everywhere = np.zeros(3)

    trained.check_prediction(same_everywhere)
    with pytest.raises(PredictorError, match="by_table predicts the same for all 3 config"):
        users.check_prediction(same_everywhere)


def test_predict_runs_is_in_the_order_of_runs(users):
    problems = [Problem(M=1), Problem(M=2), Problem(M=1)]
    configs = [SPACE[5], SPACE[9], SPACE[7]]

    together = users.predict_runs(problems, configs)

    for number, (problem, configuration) in enumerate(zip(problems, configs, strict=True)):
        alone = users.predict_runs([problem], [configuration])
        assert together["time_ms"][number] == alone["time_ms"][0]
