"""Names of predictors, and what is refused: `models/saved/lookup.py`."""

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


def test_read_predictor_object_is_returned(predictor):
    assert read_predictor(predictor) is predictor


@pytest.mark.parametrize("name", ["matmul-001/predictor", "matmul-001", ""])
def test_read_predictor_from_folder_or_campaign(place, predictor, runs, name):
    assert read_predictor(place / name).predict(runs).equals(predictor.predict(runs))
    assert read_predictor(str(place / name)).kernel_name_ == "matmul"


def test_read_predictor_several_in_folder_is_refused(place):
    shutil.copytree(place / "matmul-001", place / "matmul-002")
    with pytest.raises(PredictorError, match=r"holds 2 predictors: name one of .*matmul-001"):
        read_predictor(place)


def test_read_predictor_folder_without_one_is_refused(tmp_path):
    with pytest.raises(PredictorError, match="holds no predictor"):
        read_predictor(tmp_path)


@pytest.mark.parametrize("name", ["models.py:forest", "forest.onnx", "forest.joblib"])
def test_read_predictor_users_model_is_refused(name):
    with pytest.raises(UsageError, match="which can only guide a search: name a"):
        read_predictor(name)


def test_read_predictor_users_model_in_mlflow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "downloaded_model", lambda name: nullcontext(tmp_path))
    monkeypatch.setattr(lookup, "connect", lambda: None)
    monkeypatch.setattr(lookup, "mlflow_model", lambda *_: "a model")
    with pytest.raises(UsageError, match="models:/mine/1 is your own model"):
        read_predictor("models:/mine/1")


@pytest.mark.parametrize("name", ["auto", "none", None, 3, np.ones(2)])
def test_read_predictor_other_names_are_refused(name):
    with pytest.raises(UsageError, match="models:/NAME@ALIAS"):
        read_predictor(name)
