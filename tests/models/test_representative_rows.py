"""The rows to measure for a calibration: `models/representative_rows.py`, `Predictor.choose`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_products import HERE, THERE, products

from foretune.device import find_device
from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.models.representative_rows import representative_points


def test_representative_points_include_rare_kind():
    rng = np.random.default_rng(0)
    points = np.vstack([rng.normal(0, 0.1, (990, 2)), rng.normal(5, 0.1, (10, 2))])
    assert (representative_points(points, 5) >= 990).any()


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_representative_points_are_distinct(rows, count, distinct):
    points = (np.arange(rows) % distinct).astype(float)[:, None]
    chosen = representative_points(points, count)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == min(rows, count)


@pytest.fixture(scope="module")
def predictor():
    return Predictor(parameters={"rounds": 40, "rate": 0.2}).fit(products(HERE, 300, 0))


def test_choose_gives_training_settings_for_another_device(predictor):
    device = find_device(THERE)
    chosen = predictor.choose(20, device=device)
    assert len(chosen) == 20
    assert set(chosen["device"]) == {THERE}
    assert set(chosen["device.fp16_gflops"]) == {device.specs["fp16_gflops"]}
    assert "time_ms" not in chosen
    sizes = ["problem.M", "problem.N", "problem.K"]
    learned = set(map(tuple, products(HERE, 300, 0)[sizes].to_numpy()))
    assert set(map(tuple, chosen[sizes].to_numpy())) <= learned
    assert predictor.choose(20, device=device).equals(chosen)


def test_choose_from_given_rows_by_device(predictor):
    wanted = [products(name, 50, 3) for name in (HERE, THERE)]
    both = pd.concat(wanted, ignore_index=True)
    chosen = predictor.choose(10, both)
    assert chosen["device"].value_counts().to_dict() == {HERE: 10, THERE: 10}
    assert len(predictor.choose(1000, both)) == len(
        both.drop_duplicates(["device", "problem.M", "problem.N", "problem.K"])
    )


def test_choose_too_few_or_no_rows_is_refused(predictor):
    with pytest.raises(PredictorError, match="use at least 5"):
        predictor.choose(4)
    with pytest.raises(PredictorError, match="no rows to choose from"):
        predictor.choose(10, products(HERE, 0, 0))
