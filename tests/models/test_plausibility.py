"""Times in the wrong unit are asked about; kernels that are merely good or bad are not."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretune.errors import DataWarning
from foretune.features.roofline import row_roofline_ms
from foretune.models import Predictor, evaluate_predictor
from foretune.models.plausibility import MAX_DROPPED_SHARE, drop_implausible


@pytest.fixture
def runs(matmul, toy_runs):
    """Long products, three to six times slower than their roofline."""
    ok = toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)
    ok = ok.assign(**{f"problem.{size}": 2048 + 64 * (ok.index % 5) for size in "MNK"})
    slower = np.linspace(3.1, 6.0, len(ok))
    return ok.assign(time_ms=row_roofline_ms(matmul, ok) * slower, energy_mj=np.nan)


@pytest.mark.parametrize("factor", [1.0, 0.2, 100.0])
def test_fast_and_slow_kernels_are_believed(matmul, runs, factor):
    drop_implausible(matmul, runs.assign(time_ms=runs["time_ms"] * factor))


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (0.001, r"rows 0, .* more of .* 30 times faster .*are these milliseconds"),
        (1000, "slower than the roofline: are these milliseconds"),
    ],
)
def test_another_unit_is_asked_about_and_learned_as_it_is(matmul, runs, factor, says):
    other = runs.assign(time_ms=runs["time_ms"] * factor)
    with pytest.warns(DataWarning, match=says) as caught:
        assert drop_implausible(matmul, other).equals(other)
    assert "\n" not in str(caught[0].message)
    with pytest.warns(DataWarning, match=says):
        fitted = Predictor(parameters={"rounds": 10}).fit(other)
    off = np.log(fitted.predict(other)["time_ms"] / other["time_ms"])
    assert np.median(np.abs(off)) < 0.5


def test_fit_few_impossible_rows_are_named_and_dropped(matmul, runs):
    one = runs.assign(time_ms=runs["time_ms"].where(runs.index != 7, runs["time_ms"] / 1000))
    with pytest.warns(DataWarning, match=r"^row 7 of \d+ runs: .*: left out$"):
        kept = drop_implausible(matmul, one)
    assert kept.index.tolist() == [i for i in runs.index if i != 7]
    with pytest.warns(DataWarning, match="row 7 of"):
        assert len(Predictor().fit(one).runs_) == len(runs) - 1


@given(share=st.floats(0.0, 1.0), seed=st.integers(0, 99))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drop_implausible_drops_few_and_keeps_many(matmul, runs, share, seed):
    wrong = np.random.default_rng(seed).random(len(runs)) < share
    mixed = runs.assign(time_ms=runs["time_ms"] / np.where(wrong, 1000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        kept = drop_implausible(matmul, mixed)
    assert kept.equals(mixed if wrong.sum() >= MAX_DROPPED_SHARE * len(runs) else mixed[~wrong])


def test_drop_implausible_some_slow_runs_cause_no_warning(matmul, runs):
    few = runs.assign(time_ms=runs["time_ms"] * np.where(runs.index % 3, 1, 5000))
    drop_implausible(matmul, few)


def test_short_runs_may_be_all_overhead(matmul, toy_runs):
    ok = toy_runs[toy_runs["status"] == "ok"]
    drop_implausible(matmul, ok.assign(**{f"problem.{s}": 8 for s in "MNK"}, time_ms=0.5))


def test_drop_implausible_without_roofline_keeps_all(matmul, runs):
    drop_implausible(None, runs.assign(time_ms=1e-9))
    unknown = runs.drop(columns=[c for c in runs if c.startswith("device.")])
    drop_implausible(matmul, unknown.assign(time_ms=1e-9))
    drop_implausible(matmul, runs.assign(status="timeout"))
    drop_implausible(matmul, runs.iloc[:0])


def test_impossible_row_is_neither_learned_nor_scored(runs):
    """Predictions, corrections and scores are those of the runs without it."""
    runs = runs.head(60).drop(columns="energy_mj")
    wrong = runs.assign(time_ms=runs["time_ms"].where(runs.index != 7, runs["time_ms"] / 1000))
    right = runs.drop(index=7)
    small = {"targets": ("time_ms",), "parameters": {"rounds": 10}}
    with pytest.warns(DataWarning, match="row 7 of"):
        learned = Predictor(**small).fit(wrong)
    without = Predictor(**small).fit(right)
    pd.testing.assert_frame_equal(learned.predict(right), without.predict(right))
    there = {"device": "Other CPU"}
    with pytest.warns(DataWarning, match="row 7 of"):
        corrected = without.calibrate(wrong.assign(**there))
    pd.testing.assert_frame_equal(
        corrected.predict(right.assign(**there)),
        without.calibrate(right.assign(**there)).predict(right.assign(**there)),
    )
    with pytest.warns(DataWarning, match="row 7 of"):
        scores = evaluate_predictor(without, wrong)
    assert scores == evaluate_predictor(without, right)
