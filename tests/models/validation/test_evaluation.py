"""Evaluation: honest splits, baselines beside every model, numbers that mean what they say."""

import copy
import functools
import math

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import from_measurements
from foretune.errors import DataWarning, PredictorError, RunTableError, UnknownName
from foretune.models import Predictor, evaluate_predictor, train_predictor
from foretune.models.splits import fold_of_rows, task_numbers
from foretune.models.validation.baselines import BASELINES
from foretune.models.validation.cross_validation import cross_validate
from foretune.models.validation.evaluation import count_seen_before
from foretune.models.validation.metrics import METRICS

QUICK = {"rounds": 10, "rate": 0.5}


@pytest.fixture(autouse=True, scope="module")
def three_folds(short_fits):
    """More take longer, and show no more."""
    seed, group, _ = fold_of_rows.__defaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold_of_rows, "__defaults__", (seed, group, 3))
        yield


@pytest.fixture(scope="module")
def training(toy_measurements, toy_device):
    return train_predictor(
        from_measurements(toy_measurements, toy_device), parameters=QUICK, validate="full"
    )


@pytest.fixture(scope="module")
def validate(training):
    """Validates predictors of time that were fitted as the predictor of ``training``."""
    predictor = copy.copy(training.predictor)
    predictor.targets_ = {"time_ms": predictor.targets_["time_ms"]}
    return functools.partial(cross_validate, predictor)


def test_cross_validate_scores_baselines_in_every_split(training):
    assert set(training.scores) == {"time_ms", "power_w"}
    for target, splits in training.scores.items():
        assert set(splits) == {"random", "grouped"}
        for models in splits.values():
            unknown = {"roofline"} if target == "power_w" else set()
            assert set(models) == {"xgboost", *BASELINES} - unknown
            for metrics in models.values():
                assert set(METRICS) <= set(metrics)


def test_cross_validate_judges_the_choice_of_the_least_energy(training):
    choice = training.validation.energy_choice
    assert choice.problems == 6
    assert 0.0 <= choice.by_energy < 0.2
    assert str(choice).startswith("least energy: chosen by predicted energy, ")


def test_without_power_there_is_no_choice_of_the_least_energy(validate, toy_runs):
    assert validate(toy_runs, level="quick").energy_choice is None


def test_cross_validate_scores_every_successful_row_once(training, toy_runs):
    ok = (toy_runs["status"] == "ok").sum()
    for models in training.scores["time_ms"].values():
        assert {m["rows"] for m in models.values()} == {ok}
        assert {m["groups"] for m in models.values()} == {6}


def test_cross_validate_keeps_rows_of_held_out_problems(training, toy_runs):
    held_out = training.validation.held_out
    assert set(held_out) == {"time_ms", "power_w"}
    ok = toy_runs[toy_runs["status"] == "ok"]
    for target, table in held_out.items():
        assert list(table) == ["problem", "truth", "prediction", "low", "high"]
        assert sorted(table["truth"]) == sorted(ok[target])
        assert (table["low"] < table["prediction"]).all()
        assert (table["prediction"] < table["high"]).all()
        assert table["problem"].nunique() == 6
    inside = held_out["time_ms"].eval("low <= truth <= high").mean()
    assert inside == training.scores["time_ms"]["grouped"]["xgboost"]["coverage90"]


def test_cross_validate_random_split_shares_problems(training):
    assert training.validation.seen_problem_share == {"time_ms": 1.0, "power_w": 1.0}


def test_cross_validate_one_problem_is_not_held_out(toy_runs, validate):
    one = toy_runs[toy_runs["problem.M"] == 96]
    assert set(validate(one).scores["time_ms"]) == {"random"}


def test_cross_validate_uses_given_splits(toy_runs, validate):
    times = [f"2030-01-{1 + i % 28:02}T00:00:00+00:00" for i in range(len(toy_runs))]
    found = validate(toy_runs.assign(recorded_at=times), splits=("random", "device", "time"))
    assert set(found.scores["time_ms"]) == {"random", "time"}  # there is one device only
    rows = {split: models["xgboost"]["rows"] for split, models in found.scores["time_ms"].items()}
    assert rows["time"] < 0.4 * rows["random"]
    assert set(validate(toy_runs, splits=("random",)).held_out) == set()


def test_devices_can_be_held_out(toy_runs, validate):
    other = toy_runs.assign(device="Other", time_ms=toy_runs["time_ms"] * 2)
    both = pd.concat([toy_runs, other], ignore_index=True)
    for options in ({"splits": ("device",)}, {"splits": ("grouped",), "group": "device"}):
        (scores,) = validate(both, **options).scores["time_ms"].values()
        # each device is predicted with the times of the other: by 2, or by one half
        assert scores["nearest neighbor"]["median_ape"] == pytest.approx(0.75, abs=0.25)


def test_cross_validate_holds_problem_out_on_all_devices(toy_runs, validate):
    """On another device it would tell the answer."""
    ok = toy_runs[toy_runs["status"] == "ok"]
    law = np.random.default_rng(0).normal(0, 1, 6)[task_numbers(ok)]
    on_device = [
        ok.assign(device=name, time_ms=np.exp(law) * factor)
        for name, factor in (("a", 1.0), ("b", 1.1), ("c", 1.2))
    ]
    runs = pd.concat(on_device, ignore_index=True)
    scores = validate(runs, splits=("grouped", "device")).scores["time_ms"]
    assert scores["device"]["xgboost"]["mape"] < 0.3 < scores["grouped"]["xgboost"]["mape"]


def test_repeats_are_learned_from_and_no_twin_of_a_row_that_is_held_out(toy_runs, validate):
    """Every run measured four times: what is held out is not there, what is learned is noisy."""
    rng = np.random.default_rng(0)
    ok = toy_runs[toy_runs["status"] == "ok"]
    times = [ok.assign(time_ms=np.exp(rng.normal(0, 0.3, len(ok)))) for _ in range(4)]
    found = validate(pd.concat(times, ignore_index=True), splits=("random",))
    metrics = found.scores["time_ms"]["random"]["xgboost"]
    assert metrics["rows"] == len(ok)
    assert metrics["width90"] > 0.3
    assert metrics["coverage90"] > 0.8  # of few problems, intervals are made for unseen ones


def test_cross_validate_holds_out_undescribed_device(toy_runs, validate):
    bare = toy_runs.assign(device="Bare")
    bare[[c for c in bare if c.startswith("device.")]] = math.nan
    runs = pd.concat([toy_runs, toy_runs.assign(device="Known"), bare], ignore_index=True)
    with pytest.warns(DataWarning, match="the rates of 'Bare' are unknown"):
        scores = validate(runs, splits=("device",)).scores["time_ms"]["device"]
    assert scores["xgboost"]["rows"] == 3 * (toy_runs["status"] == "ok").sum()


def test_cross_validate_target_of_few_rows_is_scored(training, toy_runs):
    few = toy_runs[toy_runs["status"] == "ok"].head(20).copy()
    few.loc[few.index[3:], "power_w"] = math.nan
    scores = evaluate_predictor(training.predictor, few)
    assert (scores["time_ms"]["rows"], scores["power_w"]["rows"]) == (20, 3)


def test_columns_can_be_held_out(toy_runs, validate):
    found = validate(toy_runs, group="problem.N,problem.K", splits=("grouped",))
    assert (
        found.scores["time_ms"]["grouped"]["xgboost"]["rows"] == (toy_runs["status"] == "ok").sum()
    )


def test_large_tables_are_tested_on_one_fold(toy_runs, monkeypatch, validate):
    monkeypatch.setattr("foretune.models.validation.cross_validation.MANY_ROWS", 100)
    found = validate(toy_runs, splits=("random",))
    assert found.scores["time_ms"]["random"]["xgboost"]["rows"] < 0.4 * len(toy_runs)
    assert str(found) == (
        "full validation: a third held out once in every way, as there are over 100 rows"
    )


def test_validation_says_how_much_was_held_out(toy_runs, validate):
    two = toy_runs[toy_runs["problem.M"].isin(toy_runs["problem.M"].unique()[:2])]
    two = two.assign(**{"problem.N": 1, "problem.K": 1})
    assert str(validate(two, level="quick")).startswith("quick validation: a half held out once")
    assert str(validate(two)) == "full validation: every row held out in turn"
    assert str(validate(two.head(5), level="quick")).startswith("not validated")


def test_headline_is_error_on_held_out_problems(toy_runs):
    both = pd.concat([toy_runs, toy_runs.assign(device="Other")], ignore_index=True)
    training = train_predictor(both, parameters=QUICK, validate="full")
    error = training.metrics()["time_ms"]["grouped"]["median_ape"]
    assert training.headline == f"time_ms: median error {error:.1%} (grouped)"


def test_cross_validation_leaves_the_predictor_alone(toy_runs):
    predictor = Predictor(parameters=QUICK).fit(toy_runs)
    before = predictor.predict(toy_runs)
    cross_validate(predictor, toy_runs, level="quick")
    assert predictor.targets is None
    pd.testing.assert_frame_equal(predictor.predict(toy_runs), before)


def test_scores_on_training_rows_flatter(training, toy_runs):
    scores = evaluate_predictor(training.predictor, toy_runs)
    assert set(scores) == {"time_ms", "power_w"}
    assert scores["time_ms"]["rows"] == (toy_runs["status"] == "ok").sum()
    honest = training.scores["time_ms"]["grouped"]["xgboost"]
    assert scores["time_ms"]["median_ape"] < honest["median_ape"]
    assert scores["time_ms"]["coverage90"] > 0.9


def test_rows_of_several_tables_may_share_their_index(training, toy_runs):
    ok = toy_runs[toy_runs["status"] == "ok"]
    odd = ok.assign(time_ms=ok["time_ms"].mask(np.arange(len(ok)) == 3, 1e-9))
    with pytest.warns(DataWarning, match="row 3 of .* left out"):
        scores = evaluate_predictor(training.predictor, odd.set_axis([0] * len(odd), axis=0))
    assert scores["time_ms"]["rows"] == len(ok) - 1


def test_evaluation_notices_a_wrong_scale(training, toy_runs):
    right = evaluate_predictor(training.predictor, toy_runs)["time_ms"]
    doubled = toy_runs.assign(time_ms=toy_runs["time_ms"] * 2)
    wrong = evaluate_predictor(training.predictor, doubled)["time_ms"]
    assert wrong["median_ape"] == pytest.approx(0.5, abs=0.05)
    assert wrong["spearman"] == pytest.approx(right["spearman"])
    assert wrong["top1_regret"] == pytest.approx(right["top1_regret"])
    assert wrong["coverage90"] < 0.25


def test_evaluate_predictor_without_power_scores_time(training, toy_runs):
    bare = toy_runs.drop(columns=["power_w", "energy_mj"])
    assert set(evaluate_predictor(training.predictor, bare)) == {"time_ms"}


def test_another_kernel(training, toy_runs):
    with pytest.raises(PredictorError, match="knows 'matmul', not 'softmax'"):
        evaluate_predictor(training.predictor, toy_runs.assign(kernel="softmax"))


def test_nothing_succeeded(training, toy_runs):
    failed = toy_runs.assign(
        status="timeout", time_ms=math.nan, power_w=math.nan, energy_mj=math.nan
    )
    with pytest.raises(PredictorError, match="none of the runs succeeded"):
        evaluate_predictor(training.predictor, failed)


def test_impossible_rows(training, toy_runs):
    with pytest.raises(RunTableError):
        evaluate_predictor(training.predictor, toy_runs.assign(time_ms=0.0))


def test_rows_that_were_in_training_are_counted(toy_runs):
    runs = toy_runs
    predictor = Predictor(parameters={"rounds": 20}).fit(runs.head(60))
    assert count_seen_before(predictor, runs.head(70).tail(30)) == 20
    assert count_seen_before(predictor, runs.tail(30)) == 0


def test_quick_validation_holds_out_some_problems_once(toy_runs, monkeypatch, validate):
    fits = []
    fit = Predictor.fit
    monkeypatch.setattr(Predictor, "fit", lambda self, X: fits.append(len(X)) or fit(self, X))
    quick = train_predictor(toy_runs, parameters=QUICK)
    assert len(fits) == 2
    for splits in quick.scores.values():
        assert set(splits) == {"grouped"}
    assert quick.validation.held_out["time_ms"]["problem"].nunique() == 2  # of 6, in three folds
    assert str(quick.validation).startswith("quick")
    one = toy_runs[toy_runs["problem.M"] == 96]
    assert set(validate(one, level="quick").scores["time_ms"]) == {"random"}
    both = validate(toy_runs, level="quick", splits=("random", "grouped")).scores["time_ms"]
    assert set(both) == {"random", "grouped"}


def test_validation_can_be_left_out(toy_runs):
    done = train_predictor(toy_runs, parameters=QUICK, validate="none")
    assert done.scores == {"time_ms": {}, "power_w": {}}
    assert str(done.validation).startswith("not validated")
    with pytest.raises(UnknownName, match="half"):
        train_predictor(toy_runs, parameters=QUICK, validate="half")
