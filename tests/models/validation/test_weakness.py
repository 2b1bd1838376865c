"""When a predictor is not worth having."""

import pytest

from foretune.models.validation.cross_validation import Validation
from foretune.models.validation.weakness import best_baseline, weakness_of

MODEL = {"mape": 0.10, "median_ape": 0.08}
MEDIAN = {"mape": 3.0, "median_ape": 0.6}


def test_a_predictor_that_beats_all_has_no_weakness():
    scores = {"xgboost": MODEL, "log-linear law": {"mape": 0.11}, "median": MEDIAN}
    assert weakness_of("time_ms", scores) == ""


def test_the_best_simple_model_is_named():
    scores = {
        "xgboost": MODEL,
        "law + XGBoost": {"mape": 0.09},
        "log-linear law": {"mape": 0.095},
        "roofline": {"mape": float("nan")},
        "median": MEDIAN,
    }
    assert weakness_of("time_ms", scores) == (
        "This predictor of time_ms is no better than law + XGBoost on held-out problems: mean "
        "error 10.0 % against 9.0 %. Train it on more problems."
    )


@pytest.mark.parametrize("typical_of_median", [0.08, 0.05])
def test_useless_is_no_better_than_the_median(typical_of_median):
    scores = {"xgboost": MODEL, "median": {"mape": 0.5, "median_ape": typical_of_median}}
    assert "time_ms is useless: its typical error" in weakness_of("time_ms", scores)


def test_nothing_held_out_says_nothing():
    assert weakness_of("time_ms", {}) == ""
    assert weakness_of("time_ms", {"xgboost": MODEL}) == ""


def test_every_target_is_judged():
    weak = {"xgboost": MODEL, "median": MODEL}
    validation = Validation({"time_ms": {"grouped": weak}, "power_w": {"grouped": weak}})
    assert validation.weakness.count("is useless") == 2


def test_best_baseline_has_the_smallest_known_error():
    scores = {
        "xgboost": {"mape": 0.01},
        "roofline": {"mape": float("nan")},
        "nearest row": {"mape": 0.3},
        "median": {"mape": 0.5},
    }
    assert best_baseline(scores) == "nearest row"


@pytest.mark.parametrize("baselines", [{}, {"roofline": {"mape": float("nan")}}])
def test_best_baseline_without_errors_is_none(baselines):
    assert best_baseline({"xgboost": MODEL, **baselines}) is None
