"""`Predictor.predict_one` predicts a row as in a table, whatever its cells hold."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.family import Cost, Family
from foretune.models import Predictor

QUICK = {"rounds": 10, "rate": 0.5}
SPECS = {"memory_gbps": 2000.0, "bf16_gflops": 8e5, "fp8_gflops": 1.6e6, "cores": 108.0}
DEVICE = Device("d", "gpu", specs=SPECS)
SIZES = [2**i for i in range(2, 13)]


def made_up(runs, seed=0):
    """Add times and watts that depend on sizes and format."""
    rng = np.random.default_rng(seed)
    m = np.log2(runs["problem.M"])
    n = np.log2(runs["problem.N"])
    slow = np.where(runs["config.format"] == "bf16", 0.7, 0.0)
    time_ms = np.exp(0.6 * m + 0.4 * n + slow - 8 + rng.normal(0, 0.02, len(runs)))
    specs = {f"device.{name}": value for name, value in SPECS.items()}
    runs = runs.assign(kernel="gemm", device="d", status="ok", time_ms=time_ms, **specs)
    return runs.assign(power_w=(200.0 + 30.0 * n) * np.exp(rng.normal(0, 0.02, len(runs))))


def on_a_grid():
    cells = [(m, n, 256, f) for m in SIZES for n in SIZES for f in ("bf16", "fp8")]
    return made_up(pd.DataFrame(cells, columns=["problem.M", "problem.N", "problem.K", FORMAT]))


def scattered():
    """Sizes that no two runs share; some runs fail."""
    rng = np.random.default_rng(1)
    sizes = {f"problem.{s}": rng.integers(8, 3000, 300) for s in "MNK"}
    runs = pd.DataFrame({**sizes, FORMAT: rng.choice(["bf16", "fp8"], 300)})
    runs = made_up(runs.assign(**{"config.block_size_x": 2 ** rng.integers(4, 9, 300)}))
    failed = (runs["config.block_size_x"] > 100) & (rng.random(300) < 0.5)
    runs.loc[failed, ["status", "time_ms", "power_w"]] = ["timeout", np.nan, np.nan]
    return runs


FORMAT = "config.format"
RUNS = {"on a grid": on_a_grid(), "scattered": scattered()}


@pytest.fixture(scope="module")
def predictors(short_fits):
    fitted = {name: Predictor(parameters=QUICK).fit(runs) for name, runs in RUNS.items()}
    assert fitted["on a grid"].targets_["time_ms"].neighbor_index is not None
    assert fitted["scattered"].targets_["time_ms"].neighbor_index is None
    assert fitted["scattered"].validity_.classifier is not None
    few = RUNS["on a grid"].iloc[::7].assign(device="new")
    few["time_ms"] *= 1.4
    fitted["calibrated"] = fitted["on a grid"].calibrate(few)
    return fitted


sizes = st.one_of(
    st.sampled_from([*SIZES, 0, True, None, 1e30]), st.integers(1, 9000), st.floats(0.1, 9000.0)
)
values = st.fixed_dictionaries(
    {
        "M": sizes,
        "N": sizes,
        "K": st.one_of(st.just(256), sizes),
        "format": st.sampled_from(["bf16", "fp8", "int4_wo", "what?", "", None]),
        "block_size_x": st.sampled_from([16, 64, 256, 77, 0.5]),
        "device": st.sampled_from(["d", "new"]),
        "spec": st.sampled_from([None, 2000.0, 900.0]),
    }
)


def asked(cells):
    problem = {axis: cells[axis] for axis in "MNK"}
    config = {name: cells[name] for name in ("format", "block_size_x")}
    specs = SPECS | ({"power_limit_w": cells["spec"]} if cells["spec"] else {})
    return problem, config, Device(cells["device"], "gpu", specs=specs)


def in_company(predictor, problem, config, device):
    """What `predict` says of the same row of a table, among others that training had."""
    known = RUNS["scattered"].iloc[0]
    row = {f"problem.{k}": v for k, v in problem.items()}
    row |= {f"config.{k}": v for k, v in config.items()}
    row |= {f"device.{k}": v for k, v in device.specs.items()}
    row |= {"kernel": "gemm", "device": device.name}
    first = {c: known.get(c, 1.0) for c in row} | {"config.format": "bf16"}
    table = pd.DataFrame([first] * 3 + [row])
    numbers = [c for c in row if c.startswith("problem.")]
    table[numbers] = table[numbers].astype(float)
    return predictor.predict(table).iloc[-1].to_dict()


def said(call):
    """What is predicted, or why it is not."""
    try:
        return call()
    except PredictorError as e:
        return str(e).replace("row 3", "row 0")


@pytest.mark.parametrize("name", ["on a grid", "scattered", "calibrated"])
@pytest.mark.filterwarnings("ignore:(divide by zero|overflow|invalid value):RuntimeWarning")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(cells=values)
def test_predict_one_equals_predict(predictors, name, cells):
    question = asked(cells)
    expected = said(lambda: in_company(predictors[name], *question))
    one = said(lambda: predictors[name].predict_one(*question))
    if isinstance(expected, str):
        assert one == expected
    else:
        assert list(one) == list(expected)
        assert all(type(value) is float for value in one.values())
        assert one == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_predict_one_row_of_training_table(predictors):
    for name, runs in RUNS.items():
        everything = predictors[name].predict(runs)
        for i in (0, 17, len(runs) - 1):
            alone = predictors[name].predict(runs.iloc[[i]])
            pd.testing.assert_frame_equal(alone, everything.iloc[[i]])


def test_predict_one_missing_column_is_named(predictors):
    for problem, match in (
        ({"M": 1}, r"problem\.N"),
        ({"M": "many", "N": 1}, "holds text"),
        ({"M": np.inf, "N": 1}, "infinite in row 0"),
        ({"M": 10**400, "N": 1}, "too large to compute with"),
    ):
        with pytest.raises(PredictorError, match=match):
            predictors["on a grid"].predict_one(problem | {"K": 256}, {"format": "fp8"}, DEVICE)


class Theirs(Family):
    """Written for arrays: masks, methods, a table of texts."""

    name = "theirs"

    def cost(self, problem, config):
        wide = np.where(~(config["format"] == "fp8"), 2.0, 1.0)
        return Cost(flops=problem["M"] * 1e6, bytes_moved=problem["M"] * 1e6 * wide)

    def derived(self, problem, config, device):
        capped = problem["M"].copy()
        capped[capped > 100] = 100.0
        known = {"fp8": 1.0, "bf16": 2.0}
        return {
            "capped": capped,
            "bytes": np.array([known[text] for text in config["format"]]),
            "wide": (config["format"] == "bf16").astype(float),
        }


def test_predict_one_with_family_of_arrays():
    runs = RUNS["scattered"].drop(columns="power_w").assign(kernel="theirs")
    runs = runs[runs["status"] == "ok"].reset_index(drop=True)
    predictor = Predictor(kernel=Theirs(), parameters=QUICK).fit(runs)
    assert {"capped", "bytes"} <= set(predictor.features_.columns_)
    together = predictor.predict(runs)
    for i in (0, 7, 40):
        pd.testing.assert_frame_equal(predictor.predict(runs.iloc[[i]]), together.iloc[[i]])
        row = runs.iloc[i]
        problem = {axis: row[f"problem.{axis}"] for axis in "MNK"}
        config = {name: row[f"config.{name}"] for name in ("format", "block_size_x")}
        one = predictor.predict_one(problem, config, DEVICE)
        assert one["time_ms"] == pytest.approx(together["time_ms"][i], rel=1e-6)


def test_predict_one_before_fit_is_refused():
    with pytest.raises(NotFittedError):
        Predictor().predict_one({"M": 1}, {}, DEVICE)
