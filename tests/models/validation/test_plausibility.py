"""Times in the wrong unit are refused; kernels that are merely good or bad are not."""

import numpy as np
import pytest

from foretune.errors import PredictorError
from foretune.features import row_roofline_ms
from foretune.models import Predictor
from foretune.models.validation.plausibility import check_times


@pytest.fixture
def runs(matmul, toy_runs):
    """Long products, three to six times slower than their roofline."""
    ok = toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)
    ok = ok.assign(**{f"problem.{size}": 2048 + 64 * (ok.index % 5) for size in "MNK"})
    slower = np.linspace(3.1, 6.0, len(ok))
    return ok.assign(time_ms=row_roofline_ms(matmul, ok) * slower, energy_mj=np.nan)


@pytest.mark.parametrize("factor", [1.0, 0.2, 100.0])
def test_fast_and_slow_kernels_are_believed(matmul, runs, factor):
    check_times(matmul, runs.assign(time_ms=runs["time_ms"] * factor))


def test_seconds_are_refused(matmul, runs):
    seconds = runs.assign(time_ms=runs["time_ms"] / 1000)
    with pytest.raises(PredictorError, match=r"row 0: .* ms\): are these milliseconds") as caught:
        check_times(matmul, seconds)
    assert "\n" not in str(caught.value)
    with pytest.raises(PredictorError, match="100 times faster than their device allows"):
        Predictor().fit(seconds)


def test_microseconds_are_refused(matmul, runs):
    microseconds = runs.assign(time_ms=runs["time_ms"] * 1000)
    with pytest.raises(PredictorError, match="slower than their roofline: are these milliseconds"):
        check_times(matmul, microseconds)
    with pytest.raises(PredictorError, match="slower than their roofline"):
        Predictor().fit(microseconds)


def test_the_row_is_named(matmul, runs):
    one = runs.assign(time_ms=runs["time_ms"].where(runs.index != 7, runs["time_ms"] / 1000))
    with pytest.raises(PredictorError, match=r"1 of \d+ runs .*\(row 7: "):
        check_times(matmul, one)


def test_some_slow_runs_do_not_make_a_wrong_unit(matmul, runs):
    few = runs.assign(time_ms=runs["time_ms"] * np.where(runs.index % 3, 1, 5000))
    check_times(matmul, few)


def test_short_runs_may_be_all_overhead(matmul, toy_runs):
    ok = toy_runs[toy_runs["status"] == "ok"]
    check_times(matmul, ok.assign(**{f"problem.{s}": 8 for s in "MNK"}, time_ms=0.5))


def test_where_no_roofline_is_known_anything_goes(matmul, runs):
    check_times(None, runs.assign(time_ms=1e-9))
    unknown = runs.drop(columns=[c for c in runs if c.startswith("device.")])
    check_times(matmul, unknown.assign(time_ms=1e-9))
    check_times(matmul, runs.drop(columns="time_ms"))
    check_times(matmul, runs.assign(status="timeout"))
    check_times(matmul, runs.iloc[:0])
