"""The predictor: learns the toy law, says how sure it is, and comes back from disk the same."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from foretune.datasets import from_measurements
from foretune.device import Device
from foretune.errors import PredictorError, RunTableError, UnknownName
from foretune.features.candidates import candidate_rows, rows_of
from foretune.features.families.gemm import Gemm
from foretune.models import Predictor, train_predictor
from foretune.space import Configuration, SearchSpace

pytestmark = pytest.mark.usefixtures("short_fits")
MODELS = ["xgboost", "random_forest"]
FEW = {"xgboost": {"rounds": 40, "rate": 0.2}, "random_forest": {"trees": 20}}
"""Parameters for tests in which it does not matter how good a model is."""


@pytest.fixture(scope="module")
def runs(toy_measurements, toy_device):
    return from_measurements(toy_measurements, toy_device)


@pytest.fixture(scope="module", params=MODELS)
def predictor(request, runs):
    return Predictor(request.param).fit(runs)


@pytest.fixture(scope="module")
def boosted(runs):
    return Predictor(parameters=FEW["xgboost"]).fit(runs)


@pytest.fixture(scope="module")
def unseen(matmul, toy_device):
    """A problem training has not seen, and configurations it has not seen either."""
    problem = matmul.problem(M=384, N=384, K=256)
    return problem, matmul.space(problem).sample(200, np.random.default_rng(99))


def test_predict_columns_and_intervals(predictor, runs):
    predicted = predictor.predict(runs)
    assert list(predicted) == [
        "time_ms",
        "time_ms_low",
        "time_ms_high",
        "power_w",
        "power_w_low",
        "power_w_high",
        "energy_mj",
        "energy_mj_low",
        "energy_mj_high",
        "p_valid",
        "outside",
    ]
    assert len(predicted) == len(runs)
    assert (predicted["outside"] == 0).all()
    assert (predicted.dtypes == np.float64).all()
    assert np.isfinite(predicted).all(axis=None)
    for target in ("time_ms", "power_w", "energy_mj"):
        assert (predicted[f"{target}_low"] < predicted[target]).all()
        assert (predicted[target] < predicted[f"{target}_high"]).all()
    np.testing.assert_allclose(predicted["energy_mj"], predicted["power_w"] * predicted["time_ms"])
    assert predicted["p_valid"].between(0, 1).all()


def test_fit_keeps_runs_and_summary(predictor, runs):
    assert predictor.kernel_name_ == "matmul"
    assert predictor.training_ == {"rows": len(runs), "problems": 6, "devices": ["Toy CPU"]}
    assert len(predictor.runs_) == len(runs)
    assert set(predictor.targets_) == {"time_ms", "power_w"}


def test_predict_follows_the_toy_law(predictor, unseen, matmul, toy_device, toy_law):
    problem, configs = unseen
    predicted = predictor.predict(rows_of("matmul", problem, configs, toy_device))
    ok = np.array([not toy_law.fails(c) for c in configs])
    truth = np.array([toy_law.time_ms(matmul, problem, c, toy_device) for c in configs])
    error = np.abs(predicted["time_ms"] / truth - 1)[ok]
    assert error.median() < 0.15
    power = np.array([toy_law.power_w(c) for c in configs])
    assert np.abs(predicted["power_w"] / power - 1)[ok].median() < 0.05
    chosen = truth[ok][predicted["time_ms"][ok].to_numpy().argmin()]
    assert chosen < 1.25 * truth[ok].min()


def test_most_unseen_truths_lie_in_the_interval(predictor, unseen, matmul, toy_device, toy_law):
    problem, configs = unseen
    configs = [c for c in configs if not toy_law.fails(c)]
    predicted = predictor.predict(rows_of("matmul", problem, configs, toy_device))
    truth = np.array([toy_law.time_ms(matmul, problem, c, toy_device) for c in configs])
    inside = (predicted["time_ms_low"] <= truth) & (truth <= predicted["time_ms_high"])
    assert inside.mean() > 0.8
    width = (predicted["time_ms_high"] / predicted["time_ms_low"]).median()
    assert width < 4.0  # and yet the interval says something


def test_p_valid_is_low_for_configurations_that_fail(predictor, unseen, toy_device, toy_law):
    problem, configs = unseen
    rows = rows_of("matmul", problem, configs, toy_device)
    p_valid = predictor.predict(rows)["p_valid"].to_numpy()
    bad = np.array([toy_law.fails(c) for c in configs])
    assert 10 < bad.sum() < 190
    assert p_valid[~bad].mean() > 0.85
    assert p_valid[bad].mean() < 0.15
    np.testing.assert_array_equal(p_valid, predictor.predict(rows)["p_valid"])


@pytest.mark.parametrize("model", MODELS)
def test_predict_beats_calibrated_roofline_on_held_out_problems(runs, model):
    training = train_predictor(runs, model, splits=("grouped",))
    for target, splits in training.scores.items():
        grouped = splits["grouped"]
        ours = grouped[model]
        roofline = grouped["calibrated roofline"]
        if target == "time_ms":  # the toy's watts do not depend on its work: no law holds
            assert ours["median_ape"] < 0.6 * roofline["median_ape"]
            assert ours["r2_log"] > roofline["r2_log"]
    metrics = training.metrics()["time_ms"]["grouped"]
    assert metrics == training.scores["time_ms"]["grouped"][model]
    assert metrics["top1_regret"] < 0.2
    assert 0.8 <= metrics["coverage90"] <= 1.0


def test_predictor_can_be_pickled_after_predict(predictor, runs):
    expected = predictor.predict(runs)
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(predictor)).predict(runs), expected)


def test_fit_same_seed_predicts_the_same(predictor, runs):
    again = Predictor(predictor.model).fit(runs)
    pd.testing.assert_frame_equal(again.predict(runs), predictor.predict(runs))
    other = Predictor(predictor.model, seed=1).fit(runs)
    assert (other.predict(runs)["time_ms"] != predictor.predict(runs)["time_ms"]).any()


def test_predictor_follows_estimator_contract(predictor, runs):
    copy = clone(predictor)
    assert copy.get_params() == predictor.get_params()
    assert not hasattr(copy, "targets_")
    with pytest.raises(Exception, match="not fitted"):
        copy.predict(runs)


def test_load_predicts_as_the_saved_one(predictor, runs, tmp_path, matmul, toy_device):
    predictor.save(tmp_path / "deep" / "model")
    loaded = Predictor.load(tmp_path / "deep" / "model")
    pd.testing.assert_frame_equal(loaded.predict(runs), predictor.predict(runs))
    assert loaded.get_params()["model"] == predictor.model
    assert loaded.training_ == predictor.training_
    assert loaded.kernel_name_ == predictor.kernel_name_
    assert loaded.log_spread() == predictor.log_spread()
    pd.testing.assert_frame_equal(loaded.runs_, predictor.runs_)
    loaded.save(tmp_path / "again")
    pd.testing.assert_frame_equal(
        Predictor.load(tmp_path / "again").predict(runs), predictor.predict(runs)
    )


def test_save_writes_no_code(predictor, tmp_path):
    predictor.save(tmp_path)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} <= {".json", ".gz", ".txt", ".parquet", ".npz"}
    parts = {p.relative_to(tmp_path).parts[0] for p in files}
    card = {"predictor.json", "runs.parquet", "valid.json", "valid.boosted.npz"}
    assert parts == {*card, "time_ms", "power_w"}
    assert not any(p.read_bytes().startswith(b"\x80") for p in files)  # what pickles start with


def test_predicting_a_space_is_predicting_its_rows(predictor, matmul, toy_device):
    problem = matmul.problem(M=96, N=96, K=96)
    space = SearchSpace.from_configs(matmul.space(problem).sample(300, np.random.default_rng(0)))
    rows = candidate_rows("matmul", problem, space, toy_device)
    every = predictor.predict_space(problem, space, toy_device)
    pd.testing.assert_frame_equal(every, predictor.predict(rows))
    some = predictor.predict_space(problem, space, toy_device, np.array([7, 3]))
    pd.testing.assert_frame_equal(some, every.iloc[[7, 3]].reset_index(drop=True))
    by_row = rows_of("matmul", problem, list(space), toy_device)
    pd.testing.assert_frame_equal(predictor.predict(by_row), every)


def test_large_spaces_are_predicted_in_parts(boosted, matmul, toy_device, monkeypatch):
    problem = matmul.problem(M=96, N=96, K=96)
    space = SearchSpace.from_configs(matmul.space(problem).sample(50, np.random.default_rng(0)))
    whole = boosted.predict_space(problem, space, toy_device)
    monkeypatch.setattr("foretune.models.trees.regressor.CHUNK_ROWS", 7)
    pd.testing.assert_frame_equal(boosted.predict_space(problem, space, toy_device), whole)
    rows = candidate_rows("matmul", problem, space, toy_device)
    pd.testing.assert_frame_equal(boosted.predict(rows), whole)


@pytest.mark.parametrize("text", ["category", "string", object])
def test_predict_rows_alone_and_in_chunks_are_the_same(predictor, runs, monkeypatch, text):
    columns = ["kernel", "device", "status", "config.order", "config.split", "problem.dtype"]
    some = runs.sample(40, random_state=0).astype(dict.fromkeys(columns, text))
    together = predictor.predict(some)
    alone = pd.concat([predictor.predict(some.iloc[[i]]) for i in range(len(some))])
    pd.testing.assert_frame_equal(alone, together, rtol=1e-6, atol=0.0)
    monkeypatch.setattr("foretune.models.trees.regressor.CHUNK_ROWS", 3)
    for cores in (1, 4):
        monkeypatch.setattr("foretune.models.trees.regressor.available_cores", lambda n=cores: n)
        pd.testing.assert_frame_equal(predictor.predict(some), together, rtol=1e-6, atol=0.0)


def test_predict_error_in_a_chunk_is_raised(boosted, runs, monkeypatch):
    monkeypatch.setattr("foretune.models.trees.regressor.CHUNK_ROWS", 10)
    sizes = runs["problem.M"].astype(float).where(runs.index != 35, np.inf)
    with pytest.raises(PredictorError, match=r"'problem\.M' is infinite"):
        boosted.predict(runs.assign(**{"problem.M": sizes}))


def test_predict_one_row_and_none(predictor, runs):
    everything = predictor.predict(runs)
    one = predictor.predict(runs.iloc[[5]])
    pd.testing.assert_frame_equal(one, everything.iloc[[5]])  # the rows keep their index
    none = predictor.predict(runs.iloc[:0])
    assert none.shape == (0, everything.shape[1])


def test_fit_learns_newest_row_of_a_configuration(runs):
    stale = runs[runs["status"] == "ok"].head(40)
    stale = stale.assign(time_ms=stale["time_ms"] * 50, recorded_at="2000-01-01T00:00:00+00:00")
    doubled = pd.concat([runs, stale], ignore_index=True)
    one, other = (Predictor(targets=("time_ms",), parameters=FEW["xgboost"]) for _ in range(2))
    one.fit(runs)
    pd.testing.assert_frame_equal(other.fit(doubled).predict(runs), one.predict(runs))


def test_predict_without_power_has_no_energy(runs):
    bare = runs.drop(columns=["power_w", "energy_mj"])
    predicted = Predictor(parameters=FEW["xgboost"]).fit(bare).predict(bare)
    assert list(predicted) == ["time_ms", "time_ms_low", "time_ms_high", "p_valid", "outside"]
    with pytest.raises(PredictorError, match="no column 'power_w'"):
        Predictor(targets=("power_w",)).fit(bare)


def test_fit_several_kernels_is_refused(runs):
    both = pd.concat([runs, runs.assign(kernel="softmax")])
    with pytest.raises(PredictorError, match=r"2 kernels \(matmul, softmax\)"):
        Predictor().fit(both)


def test_fit_too_few_rows_is_refused(runs):
    good = runs[runs["status"] == "ok"]
    with pytest.raises(PredictorError, match="only 4 successful runs with time_ms: at least 5"):
        Predictor().fit(good.head(4))
    assert len(Predictor(parameters=FEW["xgboost"]).fit(good.head(5)).predict(good)) == len(good)
    with pytest.raises(PredictorError, match="no rows are left"):
        Predictor().fit(runs.head(0))


def test_fit_without_success_is_refused(runs):
    failed = runs.assign(status="timeout", time_ms=math.nan, power_w=math.nan, energy_mj=math.nan)
    with pytest.raises(PredictorError, match="only 0 successful runs"):
        Predictor().fit(failed)


def test_fit_impossible_rows_are_refused(runs):
    with pytest.raises(RunTableError, match="time_ms is -1"):
        Predictor().fit(runs.assign(time_ms=-1.0))


def theirs(n=40, **columns):
    """Runs of a kernel that is not registered, on a device without specs."""
    rng = np.random.default_rng(0)
    fixed = {
        "kernel": "theirs",
        "device": "d",
        "status": "ok",
        "config.x": rng.permutation(n) % 8 + 1,
        "config.y": range(n),
        "config.mode": rng.choice(["a", "b"], n),
    }
    runs = pd.DataFrame({**fixed, **columns}, index=range(n))
    return runs if "time_ms" in runs else runs.assign(time_ms=0.1 * runs["config.x"] ** 2)


@pytest.mark.parametrize("model", MODELS)
def test_predictor_of_unregistered_kernel(model, tmp_path):
    runs = theirs()
    predictor = Predictor(model).fit(runs)
    assert predictor.training_["problems"] == 1
    predictor.save(tmp_path)
    predicted = Predictor.load(tmp_path).predict(runs)
    assert np.median(np.abs(predicted["time_ms"] / runs["time_ms"] - 1)) < 0.15
    assert (predicted["p_valid"] == 1.0).all()


@pytest.mark.parametrize("model", MODELS)
def test_predict_constant_target(model):
    runs = theirs(time_ms=0.25)
    predicted = Predictor(model).fit(runs).predict(runs)
    np.testing.assert_allclose(predicted["time_ms"], 0.25, rtol=1e-5)
    done = train_predictor(runs, model, parameters=FEW[model], splits=("random",))
    assert math.isnan(done.scores["time_ms"]["random"][model]["r2"])


@pytest.mark.parametrize("model", MODELS)
def test_predict_gaps_that_training_had_not(model):
    runs = theirs(**{"problem.N": np.resize([1, 2, 4, 8], 40)})
    predictor = Predictor(model).fit(runs)
    holes = runs.assign(**{"config.x": np.nan}).head(3)
    assert np.isfinite(predictor.predict(holes)).all(axis=None)


@pytest.mark.parametrize("model", MODELS)
def test_predict_problems_without_a_parameter(model):
    runs = theirs(**{"problem.N": np.resize([1, np.nan, 4, 8], 40), "problem.kind": "x"})
    predictor = Predictor(model).fit(runs)
    assert predictor.training_["problems"] == 4
    assert np.isfinite(predictor.predict(runs)).all(axis=None)


def test_validity_of_few_failures_is_their_rate():
    runs = theirs()
    runs.loc[:2, ["status", "time_ms"]] = ["timeout", math.nan]
    p_valid = Predictor().fit(runs).predict(runs)["p_valid"]
    np.testing.assert_allclose(p_valid, 38 / 42)


def test_predictor_kernel_of_other_name_is_refused(toy_runs):
    with pytest.raises(PredictorError, match="of kernel 'matmul', not of 'gemm'"):
        Predictor(kernel=Gemm()).fit(toy_runs)


def test_predict_untimed_problems_are_outside(toy_runs):
    """Power is known of a device, time is not: predictions of time there are guesses."""
    elsewhere = toy_runs.assign(device="Metered CPU", time_ms=math.nan)
    runs = pd.concat([toy_runs.assign(power_w=math.nan), elsewhere], ignore_index=True)
    predictor = Predictor(parameters={"rounds": 5}).fit(runs)
    assert set(predictor.targets_) == {"time_ms", "power_w"}
    assert (predictor.predict(toy_runs)["outside"] == 0).all()
    ok = elsewhere[elsewhere["status"] == "ok"]
    assert (predictor.predict(ok)["outside"] == 1).all()
    assert set(predictor.explain_outside(ok)["column"]) == {"device"}


def test_devices_as_they_were_measured(toy_runs, toy_device):
    predictor = Predictor(parameters={"rounds": 5}).fit(toy_runs)
    assert predictor.device().specs == toy_device.specs
    with pytest.raises(UnknownName, match="unknown device 'Toy GPU'"):
        predictor.device("Toy GPU")
    runs = pd.concat([toy_runs, toy_runs.assign(device="Another")], ignore_index=True)
    with pytest.raises(PredictorError, match=r"name one \(--device\): Another, "):
        Predictor(parameters={"rounds": 5}).fit(runs).device()


def test_targets_are_several(toy_runs):
    with pytest.raises(PredictorError, match=r"write \('time_ms',\)"):
        Predictor(targets="time_ms").fit(toy_runs)


def test_predict_ranks_configurations_of_unseen_device(boosted, matmul, unseen):
    problem, configs = unseen
    twice = Device(
        "Twice",
        "cpu",
        "",
        {"cores": 4.0, "fp32_gflops": 400.0, "memory_gbps": 40.0, "power_limit_w": 90.0},
    )
    once = Device("Once", "cpu", "", {**twice.specs, "fp32_gflops": 200.0, "memory_gbps": 20.0})
    slow, fast = (
        boosted.predict(rows_of("matmul", problem, configs, d))["time_ms"] for d in (once, twice)
    )
    assert (slow / fast).median() == pytest.approx(2.0, rel=0.3)


def test_configurations_may_come_in_any_order_of_names(boosted, unseen, toy_device):
    problem, configs = unseen
    turned = [Configuration({name: c[name] for name in reversed(list(c))}) for c in configs[:5]]
    one, other = (
        boosted.predict(rows_of("matmul", problem, some, toy_device))
        for some in (configs[:5], turned)
    )
    pd.testing.assert_frame_equal(one, other)
