"""Measurements of the same run, and how they deviate: `models/repeats.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import newest_runs
from foretune.models import Predictor
from foretune.models.repeats import (
    MIN_REPEATS,
    NO_MATCH,
    Repeats,
    count_missing_runs,
    matching_rows,
)


def table(**columns):
    names = {k: k.replace("_", ".", 1) for k in columns}
    runs = pd.DataFrame({names[k]: v for k, v in columns.items()})
    return runs.assign(device="here", time_ms=1.0) if "device" not in runs else runs


def test_matching_rows_finds_every_row(toy_runs):
    order = np.random.default_rng(0).permutation(len(toy_runs))
    np.testing.assert_array_equal(matching_rows(toy_runs, toy_runs.iloc[order]), order)


def test_matching_rows_new_rows_have_no_match(toy_runs):
    known = toy_runs.head(100)
    new = toy_runs.tail(len(toy_runs) - 100)
    assert (matching_rows(known, new) == NO_MATCH).all()
    assert (matching_rows(known, known.assign(device="there")) == NO_MATCH).all()
    assert len(matching_rows(known, known.head(0))) == 0
    assert (matching_rows(known.head(0), new) == NO_MATCH).all()


@pytest.mark.parametrize(
    "values", [[1.0, 2.0, np.nan], np.array([1, 2, None], dtype=object), pd.array([1, 2, None])]
)
def test_matching_rows_ignores_gaps_elsewhere_in_the_column(values):
    known = table(problem_n=[1, 2, 3], config_x=["a", "b", "c"])
    runs = table(problem_n=values, config_x=["a", "b", "c"])
    assert matching_rows(known, runs).tolist() == [0, 1, NO_MATCH]
    assert matching_rows(runs, known).tolist() == [0, 1, NO_MATCH]


def test_matching_rows_gaps_are_equal():
    known = table(problem_n=[1.0, np.nan], config_x=[None, "a"])
    runs = table(problem_n=[np.nan, 1.0], config_x=["a", np.nan])
    assert matching_rows(known, runs).tolist() == [1, 0]


def test_matching_rows_categories_are_text():
    known = table(problem_n=[1, 2], config_x=["a", "b"])
    runs = known.assign(**{"config.x": pd.Categorical(["b", "b"], categories=["b", "z"])})
    assert matching_rows(known, runs).tolist() == [NO_MATCH, 1]


def test_matching_rows_missing_column_is_a_gap():
    known = table(problem_n=[1, 2])
    runs = table(problem_n=[1, 2], config_x=[np.nan, 4.0])
    assert matching_rows(known, runs).tolist() == [0, NO_MATCH]
    assert matching_rows(runs, known).tolist() == [0, NO_MATCH]


def test_matching_rows_last_match_counts():
    assert matching_rows(table(problem_n=[1, 1, 2]), table(problem_n=[1])).tolist() == [1]


def measured(times, environments="v1", status="ok"):
    """One measurement a row; the first of each pair is the run's number."""
    numbers, values = zip(*times, strict=True)
    runs = table(problem_n=list(numbers), environment=environments)
    return runs.assign(kernel="k", status=status, time_ms=values)


def deviations(runs, row, draws=200, target="time_ms"):
    repeats = Repeats.from_runs(newest_runs(runs).reset_index(drop=True), runs, target)
    drawn = repeats.draw(np.full(draws, row), np.random.default_rng(0))
    return sorted({round(float(np.exp(d)), 6) for d in drawn})


def test_draw_returns_any_measurement_of_a_row():
    runs = measured([(1, 2.0), (2, 5.0), (1, 3.0), (1, 4.0)])  # the last of a run is its newest
    assert deviations(runs, 0) == [1.0]
    assert deviations(runs, 1) == [0.5, 0.75, 1.0]


def test_repeats_exclude_other_environments_and_failures():
    runs = measured([(1, 2.0), (1, 3.0), (1, 4.0)], ["v1", "v2", "v2"])
    assert deviations(runs, 0) == [0.75, 1.0]
    failed = measured([(1, np.nan), (1, 3.0), (1, 4.0)], status=["timeout", "ok", "ok"])
    assert deviations(failed, 0) == [0.75, 1.0]


def test_repeats_exclude_runs_without_the_target():
    runs = measured([(1, 2.0), (1, 3.0), (1, 4.0)]).assign(power_w=[np.nan, 50.0, 100.0])
    assert deviations(runs, 0, target="power_w") == [0.5, 1.0]


def test_count_missing_runs_counts_by_kernel():
    runs = measured([(1, 2.0), (2, 3.0)])
    assert count_missing_runs(runs.head(1), runs) == 1
    assert count_missing_runs(runs.assign(kernel="other"), runs) == 2


def test_repeats_exclude_other_dates():
    runs = measured([(1, 2.0), (1, 3.0), (1, 4.0)])
    assert deviations(runs.assign(recorded_at=["2030-01-01", "2030-01-02", "2030-01-02"]), 0) == [
        0.75,
        1.0,
    ]
    assert deviations(runs.assign(recorded_at=[None, "2030-01-01", None]), 0) == [1.0]


def test_repeats_text_equal_to_number_is_harmless():
    runs = measured([(1, 2.0), (2, 2.0), (2, 2.0)])
    mixed = runs.assign(**{"problem.n": pd.Series(["1", 1, 1], dtype=object)})
    assert len(newest_runs(mixed)) == 2
    assert deviations(mixed, 0) == deviations(mixed, 1) == [1.0]


def test_draw_without_repeats_is_zero(toy_runs):
    ok = toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)
    drawn = Repeats.from_runs(ok, toy_runs, "time_ms").draw(
        np.arange(len(ok)), np.random.default_rng(0)
    )
    assert (drawn == 0).all()


def test_draw_rows_measured_once_take_deviations_of_repeated_rows():
    often = [(i, t) for i in range(MIN_REPEATS) for t in (1.5, 1.0)]
    assert deviations(measured([(-1, 1.0), *often]), 0) == [1.0, 1.5]
    assert deviations(measured([(-1, 1.0), *often[:10]]), 0) == [1.0]


def test_intervals_hold_for_what_a_newer_measurement_superseded(toy_runs):
    """What counts is smooth, what came before was 10 % off: prediction stays, interval grows."""
    rng = np.random.default_rng(0)
    days = [
        toy_runs.assign(time_ms=toy_runs["time_ms"] * np.exp(rng.normal(0, 0.1, len(toy_runs))))
        for _ in range(4)
    ]
    several = pd.concat([*days, toy_runs], ignore_index=True)
    quick = {"targets": ("time_ms",), "parameters": {"rounds": 60, "rate": 0.2}}
    once, repeated = (Predictor(**quick).fit(runs) for runs in (toy_runs, several))
    assert repeated.log_spread() > once.log_spread()
    assert len(repeated.runs_) == len(several)
    assert repeated.training_["rows"] == len(toy_runs)
    pd.testing.assert_series_equal(
        repeated.predict(toy_runs)["time_ms"], once.predict(toy_runs)["time_ms"]
    )
