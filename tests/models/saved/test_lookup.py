"""What a predictor may be called, and what is refused."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from foretune.errors import PredictorError, UsageError
from foretune.models.saved import lookup
from foretune.models.saved.lookup import read_predictor


@pytest.fixture
def place(predictor, tmp_path, monkeypatch):
    """A folder of campaigns, the first of which has a predictor."""
    monkeypatch.chdir(tmp_path)
    predictor.save(tmp_path / "campaigns" / "matmul-001" / "predictor")
    return tmp_path / "campaigns"


def test_an_object_is_itself(predictor):
    assert read_predictor(predictor) is predictor


@pytest.mark.parametrize("name", ["matmul-001/predictor", "matmul-001", ""])
def test_a_folder_of_one_or_of_a_campaign(place, predictor, runs, name):
    assert read_predictor(place / name).predict(runs).equals(predictor.predict(runs))
    assert read_predictor(str(place / name)).kernel_name_ == "matmul"


def test_of_several_one_is_to_be_named(place):
    shutil.copytree(place / "matmul-001", place / "matmul-002")
    with pytest.raises(PredictorError, match=r"holds 2 predictors: name one of .*matmul-001"):
        read_predictor(place)


def test_a_folder_without(tmp_path):
    with pytest.raises(PredictorError, match="holds no predictor"):
        read_predictor(tmp_path)


@pytest.mark.parametrize("name", ["models.py:forest", "forest.onnx", "forest.joblib"])
def test_a_users_own_model_only_guides(name):
    with pytest.raises(UsageError, match="which can only guide a search: name a"):
        read_predictor(name)


def test_a_users_own_model_in_mlflow_only_guides(tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "downloaded_model", lambda name: nullcontext(tmp_path))
    monkeypatch.setattr(lookup, "connect", lambda: None)
    monkeypatch.setattr(lookup, "mlflow_model", lambda *_: "a model")
    with pytest.raises(UsageError, match="models:/mine/1 is your own model"):
        read_predictor("models:/mine/1")


@pytest.mark.parametrize("name", ["auto", "none", None, 3, np.ones(2)])
def test_what_is_no_name_here(name):
    with pytest.raises(UsageError, match="models:/NAME@ALIAS"):
        read_predictor(name)
