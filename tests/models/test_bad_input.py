"""Predictors refuse bad runs in one line, and flag strange ones."""

import math

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import from_measurements
from foretune.datasets.runs import with_specs
from foretune.errors import DataWarning, ForetuneError, PredictorError, RunTableError
from foretune.models import Predictor, train_predictor

pytestmark = pytest.mark.usefixtures("short_fits")
QUICK = {"rounds": 30}


@pytest.fixture(scope="module")
def runs(toy_measurements, toy_device):
    table = from_measurements(toy_measurements, toy_device)
    return table[table["status"] == "ok"].reset_index(drop=True)


@pytest.fixture(scope="module")
def predictor(runs):
    return Predictor(parameters=QUICK).fit(runs)


def gemms(n=60, **columns):
    """Half-precision matrix products as another tool measured them."""
    rng = np.random.default_rng(0)
    sizes = {f"problem.{s}": 2 ** rng.integers(6, 13, n) for s in "MNK"}
    fixed = {"kernel": "gemm", "device": "NVIDIA H200", "status": "ok"}
    runs = pd.DataFrame({**fixed, **sizes, "config.format": rng.choice(["bf16", "fp8"], n)})
    work = runs["problem.M"] * runs["problem.N"] * runs["problem.K"]
    return with_specs(runs.assign(time_ms=0.01 + work * 4e-12)).assign(**columns)


@pytest.fixture(scope="module")
def gemm():
    return Predictor(parameters=QUICK).fit(gemms())


def one_line(caught):
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert isinstance(caught.value, ForetuneError)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop(columns="time_ms"), "column 'time_ms' is missing"),
        (lambda t: t.drop(columns="device"), "column 'device' is missing"),
        (lambda t: t.drop(columns="kernel"), "column 'kernel' is missing"),
        (lambda t: t[["kernel", "device", "status", "time_ms"]], "what was run is unknown"),
        (lambda t: t.drop(columns="problem.K"), "lack 'K', which kernel 'matmul' needs"),
        (lambda t: t.assign(**{"problem.K": "many"}), "hold text where 'matmul' needs a number"),
        (lambda t: t.assign(**{"config.micro_m": [[1]] * len(t)}), "must hold numbers, booleans"),
        (lambda t: t.assign(time_ms="fast"), "must hold numbers"),
        (lambda t: t.assign(time_ms=math.inf), "time_ms is inf"),
        (lambda t: t.assign(time_ms=0.0), "status is ok but time_ms is 0.0"),
        (lambda t: t.assign(power_w=math.inf), "power_w is inf"),
        (lambda t: t.assign(status="fine"), "status 'fine' is not one of"),
        (lambda t: t.assign(device=""), "device is empty"),
        (lambda t: t.assign(**{"problem.M": np.inf}), "column 'problem.M' is infinite in row 0"),
        (lambda t: t.assign(**{"device.cores": -np.inf}), "'device.cores' is infinite in row 0"),
        (lambda t: t.head(4), "only 4 successful runs with time_ms: at least 5"),
        (lambda t: t.head(0), "no rows are left"),
        (lambda t: pd.concat([t, t.assign(kernel="softmax")]), "2 kernels"),
    ],
)
def test_fit_bad_runs_are_refused(runs, change, says):
    with pytest.raises((PredictorError, RunTableError), match=says) as caught:
        Predictor(parameters=QUICK).fit(change(runs))
    one_line(caught)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop(columns="problem.M"), "lack column 'problem.M', which the predictor"),
        (lambda t: t.drop(columns="config.order"), "lack column 'config.order'"),
        (lambda t: t.assign(**{"config.micro_m": "four"}), "'config.micro_m' holds text"),
        (lambda t: t.assign(**{"problem.M": np.inf}), "'problem.M' is infinite in row 0"),
        (lambda t: t.assign(kernel="softmax"), "the predictor knows 'matmul', not 'softmax'"),
        (lambda t: t.assign(kernel=["softmax", *t["kernel"][1:]]), "hold 2 kernels"),
    ],
)
def test_predict_bad_runs_are_refused(predictor, runs, change, says):
    with pytest.raises(PredictorError, match=says) as caught:
        predictor.predict(change(runs.head(3)))
    one_line(caught)


def test_predict_needs_no_measured_columns(predictor, runs):
    """Measured columns, the kernel's name, and what never varied."""
    bare = runs.drop(columns=["kernel", "status", "time_ms", "power_w", "energy_mj"])
    columns = ["time_ms", "power_w", "p_valid"]
    pd.testing.assert_frame_equal(
        predictor.predict(bare)[columns], predictor.predict(runs)[columns]
    )


@pytest.mark.parametrize(
    ("change", "octaves"),
    [
        ({"config.order": "zzz"}, 1.0),
        ({"problem.M": 4096}, 2.0),
        ({"problem.M": -8}, 64.0),
        ({"problem.dtype": "fp7"}, 1.0),
        ({"device": "another"}, 1.0),
        ({"device.memory_gbps": 80.0}, 2.0),
    ],
)
def test_predict_outside_rows_are_flagged_with_wider_interval(predictor, runs, change, octaves):
    row = runs[(runs["problem.M"] == 1024)].head(1)
    inside = predictor.predict(row)
    outside = predictor.predict(row.assign(**change))
    assert inside["outside"].iloc[0] == 0
    assert outside["outside"].iloc[0] == octaves
    assert np.isfinite(outside).all(axis=None)
    reasons = predictor.range_.explain(row.assign(**change))
    assert reasons["column"].tolist() == list(change)

    def relative_width(predicted):
        return float(np.log(predicted["time_ms_high"] / predicted["time_ms_low"]).iloc[0])

    assert relative_width(outside) > 1.2 * relative_width(inside)


def test_predict_unseen_format_is_flagged(gemm):
    strange = gemms(5, **{"config.format": "fp3"})
    predicted = gemm.predict(strange)
    assert (predicted["outside"] == 1).all()
    assert np.isfinite(predicted).all(axis=None)
    assert gemm.range_.explain(strange)["reason"].unique().tolist() == [
        "never seen: training had bf16, fp8"
    ]


@pytest.mark.parametrize("size", [0, -1])
def test_predict_meaningless_sizes_are_flagged(gemm, size):
    assert (gemm.predict(gemms(5, **{"problem.M": size}))["outside"] > 10).all()


def test_predict_missing_size_is_refused(gemm):
    with pytest.raises(PredictorError, match=r"row 0 lacks a size"):
        gemm.predict(gemms(5, **{"problem.M": np.nan}))


def test_fit_gaps_in_sizes_warns_and_predicts(runs):
    gaps = runs.assign(**{"problem.M": runs["problem.M"].where(runs.index % 7 > 0)})
    with pytest.warns(DataWarning, match="rows 0, 7, 14, .* have no roofline"):
        fitted = Predictor(parameters=QUICK).fit(gaps)
    assert np.isfinite(fitted.predict(gaps)).all(axis=None)


def test_fit_family_kernel_without_its_columns():
    """Then nothing is known of its cost, and it is learned from its own columns."""
    bare = gemms().drop(columns="problem.K")
    fitted = Predictor(parameters=QUICK).fit(bare)
    assert fitted.features_.family is None
    assert np.isfinite(fitted.predict(bare)).all(axis=None)


@pytest.mark.parametrize("columns", [{}, {"problem.M": 64}], ids=["five problems", "one problem"])
def test_fit_five_rows(columns):
    five = gemms(5, **columns)
    fitted = Predictor(parameters=QUICK).fit(five)
    predicted = fitted.predict(gemms(20))
    assert np.isfinite(predicted).all(axis=None)
    assert (predicted["time_ms_low"] < predicted["time_ms"]).all()
    training = train_predictor(
        gemms(6, **columns), parameters=QUICK, splits=("random",), validate="full"
    )
    # without two of six too few would be left to learn from, without one there are enough
    assert training.scores["time_ms"]["random"]["xgboost"]["rows"] == 4


def test_fit_one_group_only(runs):
    one = runs[runs["problem.M"] == 96].reset_index(drop=True)
    assert len(one) >= 5
    training = train_predictor(one, parameters=QUICK)
    assert set(training.scores["time_ms"]) == {"random"}
    predicted = training.predictor.predict(runs)
    assert np.isfinite(predicted).all(axis=None)
    elsewhere = (runs["problem.M"] != 96).to_numpy()
    assert (predicted["outside"][elsewhere] > 0).all()


def test_fit_constant_target():
    constant = gemms(time_ms=0.25)
    predicted = Predictor(parameters=QUICK).fit(constant).predict(constant)
    np.testing.assert_allclose(predicted["time_ms"], 0.25, rtol=0.3)
    unknown = constant.assign(kernel="theirs")  # without a roofline to hold against
    predicted = Predictor(parameters=QUICK).fit(unknown).predict(unknown)
    np.testing.assert_allclose(predicted["time_ms"], 0.25, rtol=1e-3)
    assert (predicted["time_ms_low"] <= predicted["time_ms"]).all()


def test_fit_repeated_rows_count_once(runs):
    doubled = pd.concat([runs, runs], ignore_index=True)
    fitted = Predictor(parameters=QUICK).fit(doubled)
    assert fitted.training_["rows"] == len(runs)


def test_predict_keeps_index(predictor, runs):
    shuffled = runs.sample(frac=1.0, random_state=0)
    predicted = predictor.predict(shuffled)
    pd.testing.assert_index_equal(predicted.index, shuffled.index)
    pd.testing.assert_frame_equal(predicted.sort_index(), predictor.predict(runs))
