"""A predictor's life on the command line: explained, tracked, gone on with, checked for drift."""

import shutil
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from commands import fails, run_json
from toy_kernel import DEVICE, FakeRunner, Toy

from foretune import registry
from foretune.cli import main
from foretune.collect import plan_configurations
from foretune.datasets import from_measurements, read_runs, write_runs
from foretune.models import Predictor
from foretune.models.bottlenecks import KINDS

FIT_ONLY = ("--validate", "none")
A = "work=8,skew=2,order=ba,behaviour=ok"
B = "work=1,skew=2,order=ba,behaviour=ok"


@pytest.fixture(autouse=True)
def place(toy_place, template, monkeypatch):
    """`toy_place`, with no MLflow set from outside."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow sets it, this takes it back
    (toy_place / "mlflow.db").write_bytes(template.read_bytes())
    return toy_place


def measured(problems, seed=0, configs=20):
    """Run configurations of the toy kernel on the fake runner."""
    plan = plan_configurations(Toy(), problems, configs, seed)
    rows = [m for p, cs in plan.items() for m in FakeRunner().run(Toy(), p, cs)]
    return from_measurements(rows, DEVICE)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of half of the problems in ``old``, of the others in ``new``, a predictor of ``old``."""
    folder = tmp_path_factory.mktemp("made")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setitem(registry._BUILTIN["kernels"], "toy", "toy_kernel:Toy")
    registry.reset()
    problems = Toy().training_problems(8)
    write_runs(folder / "old.parquet", measured(problems[:4]))
    write_runs(folder / "new.parquet", measured(problems[4:], seed=1))
    arguments = ["train", str(folder / "old.parquet"), "--out", str(folder / "predictor")]
    assert main([*arguments, "--seed", "3", *FIT_ONLY]) == 0
    monkeypatch.undo()
    registry.reset()
    return folder


@pytest.fixture(autouse=True)
def files(made, place):
    shutil.copytree(made, place, dirs_exist_ok=True)


def test_explain_gives_importance_of_features(capsys):
    said = run_json(capsys, "predict", "predictor", "--explain")
    assert said["rows"] == (read_runs("old.parquet")["status"] == "ok").sum()
    assert said["features"][0]["feature"] == "config.work"
    assert said["features"][0]["group"] == "config"
    assert said["groups"][0]["group"] == "config"
    assert said["groups"][0]["factor"] > 1.5
    assert sum(said["bottlenecks"].values()) == pytest.approx(1)


def test_explain_prints_importance_of_features(capsys):
    assert main(["predict", "predictor", "--explain", "--kernel", "toy"]) == 0
    out = capsys.readouterr().out
    assert "what determines predicted time_ms" in out
    assert "sizes of the problem" in out
    assert "what limits the training runs" in out


def test_explain_compares_two_configurations(capsys):
    said = run_json(
        capsys,
        "predict",
        "predictor",
        "--explain",
        "--problem",
        "n=50",
        "--config",
        A,
        "--config",
        B,
    )
    assert said["factors"][0]["feature"] == "config.work"
    assert (said["factors"][0]["a"], said["factors"][0]["b"]) == (8, 1)
    assert np.prod([f["factor"] for f in said["factors"]]) == pytest.approx(said["tree_ratio"])
    assert said["predicted_ratio"] == pytest.approx(1 / 8, rel=0.5)
    assert said["problem"] == {"n": 50, "dtype": "fp32"}
    assert said["device"] == "Toy CPU"
    assert set(said["bottleneck"].values()) <= set(KINDS)


def test_explain_compares_best_with_default(capsys):
    arguments = ["predict", "predictor", "--explain", "--problem", "n=50", "--config", "default"]
    said = run_json(capsys, *arguments, "--config", "best")
    assert said["a"] == dict(Toy().default(None))
    assert said["predicted_ratio"] < 1
    assert main([*arguments, "--config", "work=16"]) == 0  # the rest as in the default
    out = capsys.readouterr().out
    assert "A: work=4\nB: work=16" in out
    assert "product, which the trees predict" in out


def test_train_extra_columns_learns_counters(capsys):
    runs = read_runs("old.parquet")
    counter = {"counter.dram__bytes_read.sum": 1.0 + np.arange(len(runs)) % 7}
    write_runs("counted.parquet", runs.assign(**counter))
    arguments = ["train", "counted.parquet", "--out", "counted", *FIT_ONLY]
    assert main([*arguments, "--extra-columns", "counter"]) == 0
    loaded = Predictor.load("counted")
    assert "counter.dram__bytes_read.sum" in loaded.features_.columns_
    capsys.readouterr()
    wanted = ["predict", "counted", "--kernel", "toy", "--problem", "n=50"]
    assert "without --extra-columns counter" in fails(capsys, 1, *wanted)


def test_explain_names_values_outside_training_range(capsys):
    arguments = [
        "predict",
        "predictor",
        "--explain",
        "--problem",
        "n=5000",
        "--config",
        A,
        "--config",
        B,
    ]
    assert main(arguments) == 0
    assert "A: problem.n=5000: " in (said := capsys.readouterr().out)
    assert "octaves outside" in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--config", A, "--config", B], 2, "give --problem and two --config"),
        (["--problem", "n=9"], 2, "give --problem and two --config"),
        (["--problem", "n=9", "--config", A], 2, "give --problem and two --config"),
        (["--problem", "n=9", "--config", A, "--config", "wrk=3"], 2, "did you mean 'work'?"),
        (["--kernel", "matmul"], 1, "knows 'toy', not 'matmul'"),
    ],
)
def test_explain_wrong_use_is_one_line(capsys, arguments, code, says):
    assert says in fails(capsys, code, "predict", "predictor", "--explain", *arguments)


def test_explain_kernel_known_only_from_runs(capsys):
    write_runs("theirs.parquet", read_runs("old.parquet").assign(kernel="theirs"))
    assert main(["train", "theirs.parquet", "--out", "theirs", *FIT_ONLY]) == 0
    capsys.readouterr()
    arguments = [
        "predict",
        "theirs",
        "--explain",
        "--problem",
        "n=50,dtype=fp32",
        "--config",
        A,
        "--config",
    ]
    assert run_json(capsys, *arguments, B)["factors"][0]["feature"] == "config.work"
    assert "write NAME=VALUE" in fails(capsys, 2, *arguments, "best")
    assert "lacks skew, order, behaviour" in fails(capsys, 2, *arguments, "work=1")


def test_explain_refuses_random_forest(capsys):
    assert (
        main(["train", "old.parquet", "--out", "forest", "--model", "random_forest", *FIT_ONLY])
        == 0
    )
    capsys.readouterr()
    assert "train one with --model xgboost" in fails(capsys, 1, "predict", "forest", "--explain")


def test_resume_adds_new_rows(capsys):
    old = Predictor.load("predictor")
    # Measured again, later: this row must replace the old one.
    again = (
        old.runs_[old.runs_["status"] == "ok"]
        .head(1)
        .assign(time_ms=0.5, recorded_at="2999-01-01T00:00:00+00:00")
    )
    write_runs("again.parquet", again)
    said = run_json(
        capsys,
        "train",
        "new.parquet",
        "again.parquet",
        "--resume",
        "predictor",
        *FIT_ONLY,
        "--out",
        "both",
    )
    both = Predictor.load("both")
    assert said["training"]["rows"] == len(old.runs_) + len(read_runs("new.parquet"))
    assert said["training"]["problems"] == 8
    assert (both.runs_["time_ms"] == 0.5).sum() == 1
    assert (both.model, both.seed, both.targets) == (old.model, 3, old.targets)
    assert len(old.runs_) == len(Predictor.load("predictor").runs_)


def test_resume_equals_training_on_all_rows(capsys):
    everything = ["old.parquet", "new.parquet", "--seed", "3"]
    assert main(["train", *everything, *FIT_ONLY, "--out", "whole"]) == 0
    resumed = ["new.parquet", "--resume", "predictor", *FIT_ONLY, "--out", "resumed"]
    assert main(["train", *resumed]) == 0
    rows = read_runs("new.parquet")
    whole, gone_on = (Predictor.load(d).predict(rows) for d in ("whole", "resumed"))
    pd.testing.assert_frame_equal(whole, gone_on)


def test_resume_in_place_keeps_model(capsys):
    assert main(["train", "old.parquet", "--model", "random_forest", *FIT_ONLY, "--out", "f"]) == 0
    assert main(["train", "new.parquet", "--resume", "f", *FIT_ONLY, "--out", "f"]) == 0
    assert Predictor.load("f").model == "random_forest"
    assert Predictor.load("f").training_["problems"] == 8


def test_resume_wrong_use_is_one_line(capsys):
    write_runs("other.parquet", read_runs("new.parquet").assign(kernel="other"))
    for arguments, code, says in [
        (["other.parquet", "--resume", "predictor"], 1, "the new runs are of other"),
        (["new.parquet", "--resume", "nowhere"], 1, "holds no predictor"),
        (["new.parquet", "--resume", "predictor", "--model", "xgboost"], 2, "leave --model out"),
        (["new.parquet", "--resume", "predictor", "--seed", "1"], 2, "leave --seed out"),
    ]:
        assert says in fails(capsys, code, "train", *arguments, "--out", "x")
    assert not Path("x").exists()


def test_train_work_is_kept_in_predictor(capsys):
    """Of a kernel that nobody knows: operations and bytes as expressions over its columns."""
    runs = read_runs("new.parquet").assign(kernel="other").head(30)
    write_runs("other.parquet", runs)
    sizes = [c.removeprefix("problem.") for c in runs if c.startswith("problem.")]
    size = next(s for s in sizes if pd.api.types.is_numeric_dtype(runs[f"problem.{s}"]))
    work = ["--work", f"flops=2 * {size}", "--work", f"bytes=8 * {size}"]
    assert main(["train", "other.parquet", *work, "--validate", "time", "--out", "given"]) == 0
    capsys.readouterr()
    known = Predictor.load("given")
    assert known.kernel.to_json()["flops"] == f"2 * {size}"
    for arguments, code, says in [
        (work[:2], 2, "operations and bytes: give both"),
        (["--work", "flops=2 *", "--work", f"bytes={size}"], 2, "is not an expression"),
        ([*work, "--resume", "given"], 2, "leave --work out"),
    ]:
        assert says in fails(capsys, code, "train", "other.parquet", *arguments, "--out", "x")


def test_resume_refuses_calibrated_predictor(capsys):
    elsewhere = read_runs("new.parquet").assign(device="Other CPU")
    write_runs("other.parquet", elsewhere)
    Predictor.load("predictor").calibrate(elsewhere).save("calibrated")
    arguments = ["train", "new.parquet", "--resume", "calibrated", "--out", "x"]
    assert "resume the predictor it was made from" in fails(capsys, 1, *arguments)
    assert run_json(capsys, "evaluate", "calibrated", "other.parquet", "--drift")["verdict"] == "ok"


def test_calibrate_choose_then_collect_then_calibrate(capsys):
    """What to measure elsewhere is chosen, its times are filled in, and correct the predictor."""
    said = run_json(
        capsys, "calibrate", "predictor", "--choose", "12", "--device", "cpu", "--out", "chosen.csv"
    )
    assert said["rows"] == 12
    chosen = pd.read_csv("chosen.csv")
    assert not {"time_ms", "status"} & set(chosen.columns)
    chosen.assign(time_ms=0.5, device="Other CPU").to_csv("chosen.csv", index=False)
    run_json(capsys, "import", "chosen.csv", "--format", "generic", "--out", "there.parquet")
    run_json(capsys, "calibrate", "predictor", "there.parquet", "--out", "calibrated")
    corrected = Predictor.load("calibrated").predict(read_runs("there.parquet"))
    assert abs(np.log(corrected["time_ms"] / 0.5)).mean() < 0.2


def test_calibrate_choose_refuses_folder(capsys):
    Path("chosen.csv").mkdir()
    choose = ("calibrate", "predictor", "--choose", "5", "--device", "cpu", "--out", "chosen.csv")
    assert "chosen.csv is not a list of runs" in fails(capsys, 2, *choose)


def test_calibrate_choose_keeps_filled_times(capsys):
    choose = ("calibrate", "predictor", "--choose", "5", "--device", "cpu", "--out")
    run_json(capsys, *choose, "chosen.csv")
    run_json(capsys, *choose, "chosen.csv")  # nothing was
    pd.read_csv("chosen.csv").assign(time_ms=0.5).to_csv("chosen.csv", index=False)
    assert "already has time_ms: give another --out" in fails(capsys, 2, *choose, "chosen.csv")
    assert "use a name that ends in .csv" in fails(capsys, 2, *choose, "chosen.parquet")
    imports = ("import", "chosen.csv", "--format", "generic", "--out")
    assert "is an input file" in fails(capsys, 2, *imports, "./chosen.csv")
    run_json(capsys, *imports, "there.parquet")
    run_json(capsys, *imports, "there.parquet")
    assert "holds 80 runs that are not among these" in fails(capsys, 2, *imports, "new.parquet")


def test_train_names_splits_that_cannot_be_held_out(capsys):
    write_runs("now.parquet", read_runs("old.parquet").assign(recorded_at="2030"))
    assert main(["train", "now.parquet", "--validate", "device,time", "--out", "p"]) == 0
    said = capsys.readouterr().out
    assert "not held out: device: there is only one device" in said
    assert "not held out: time: the runs have no recorded_at" in said
    (Path("mine") / "folder").mkdir(parents=True)
    assert "it contains other files" in fails(capsys, 1, "train", "old.parquet", "--out", "mine")


def test_train_explains_missing_roofline(capsys):
    rng = np.random.default_rng(0)
    sizes = {f"problem.{c}": 2 ** rng.integers(5, 12, 40) for c in "MN"}
    runs = pd.DataFrame({"kernel": "gemm", "device": "d", "status": "ok", "time_ms": 1.0, **sizes})
    write_runs("gemm.parquet", runs.assign(time_ms=rng.uniform(1, 2, 40)))
    assert main(["train", "gemm.parquet", *FIT_ONLY, "--out", "p"]) == 0
    assert "no roofline: gemm is described by its sizes, and the runs lack problem.K" in (
        capsys.readouterr().out
    )
    predict = ("predict", "p", "--kernel", "gemm", "--problem")
    assert "lacks N (such as " in fails(capsys, 2, *predict, "M=64")
    assert "unknown size 'Q'" in fails(capsys, 2, *predict, "M=64,N=64,Q=3")
    assert len(run_json(capsys, *predict, "M=64,N=64")["configs"]) == 1


def test_predict_ranks_by_objective(capsys):
    runs = read_runs("old.parquet")
    watts = (40.0 + runs["config.work"] % 7).where(runs["status"] == "ok")
    write_runs("metered.parquet", runs.assign(power_w=watts))
    assert main(["train", "metered.parquet", *FIT_ONLY, "--out", "p"]) == 0
    capsys.readouterr()
    predict = ("predict", "p", "--kernel", "toy", "--problem", "n=30", "--top", "1000")
    values = {
        "time": lambda c: c["time_ms"],
        "power": lambda c: c["power_w"],
        "energy": lambda c: c["energy_mj"],
        "edp": lambda c: c["energy_mj"] * c["time_ms"],
    }
    for objective, value in values.items():
        found = run_json(capsys, *predict, "--objective", objective)
        assert found["objective"] == objective
        ranked = [c["value"] for c in found["configs"]]
        assert ranked == sorted(ranked)
        assert ranked == pytest.approx([value(c) for c in found["configs"]])
        for c in found["configs"]:
            assert c["low"] < c["value"] < c["high"]
            assert c["energy_mj_low"] < c["energy_mj"] < c["energy_mj_high"]
    assert main([*predict, "--objective", "edp"]) == 0
    assert "mJ·ms" in capsys.readouterr().out
    assert "unknown objective 'joules'" in fails(capsys, 2, *predict, "--objective", "joules")
    said = fails(capsys, 2, "predict", "p", "--explain", "--objective", "power")
    assert "leave out --objective or --explain" in said


def test_predict_unlearned_objective_is_one_line(capsys):
    said = fails(
        capsys,
        1,
        "predict",
        "predictor",
        "--kernel",
        "toy",
        "--problem",
        "n=30",
        "--objective",
        "energy",
    )
    assert "has not learned power" in said
    assert "train it on runs with power_w" in said


def test_predict_predictor_of_power_only(capsys):
    watts = read_runs("old.parquet").assign(time_ms=np.nan, power_w=50.0)
    watts.loc[watts["status"] != "ok", "power_w"] = np.nan
    watts["power_w"] += np.arange(len(watts)) % 7
    write_runs("watts.parquet", watts)
    assert main(["train", "watts.parquet", *FIT_ONLY, "--out", "p"]) == 0
    capsys.readouterr()
    found = run_json(capsys, "predict", "p", "--kernel", "toy", "--problem", "n=30")
    assert [c["time_ms"] for c in found["configs"]] == [None] * 10
    assert all(c["low"] < c["power_w"] < c["high"] for c in found["configs"])
    compared = ("predict", "p", "--explain", "--problem", "n=30", "--config", "default")
    assert run_json(capsys, *compared, "--config", "best")["target"] == "power_w"


def test_evaluate_names_rows_outside_training_range(capsys):
    far = read_runs("new.parquet").assign(device="Other CPU")
    write_runs("far.parquet", far)
    assert main(["evaluate", "predictor", "far.parquet"]) == 0
    said = capsys.readouterr().out
    assert f"{len(far):,} of these {len(far):,} runs are outside the training range:" in said
    assert "device=Other CPU: never seen" in said


def test_calibrate_choose_needs_device(capsys):
    choose = ("calibrate", "predictor", "--choose", "5")
    assert "give --device" in fails(capsys, 2, *choose, "--out", "chosen.csv")
    run_json(capsys, *choose, "new.parquet", "--out", "chosen.csv")
    there = set(pd.read_csv("chosen.csv")["device"])
    assert there == set(read_runs("new.parquet")["device"])


def test_train_is_tracked_in_mlflow(capsys, place):
    uri = f"sqlite:///{place / 'mlflow.db'}"
    said = run_json(
        capsys, "train", "old.parquet", "--out", "p", "--mlflow", uri, "--validate", "grouped"
    )
    mlflow.set_tracking_uri(uri)
    rows = read_runs("new.parquet")
    predicted = mlflow.pyfunc.load_model("models:/foretune-toy@champion").predict(rows)
    pd.testing.assert_frame_equal(predicted, Predictor.load("p").predict(rows))
    (run,) = mlflow.MlflowClient(uri).search_runs(
        [e.experiment_id for e in mlflow.MlflowClient(uri).search_experiments()]
    )
    assert run.info.status == "FINISHED"
    assert run.data.metrics["time_ms.grouped.mape"] == pytest.approx(
        said["time_ms"]["grouped"]["mape"]
    )


def test_train_unreachable_server_fails_before_training(capsys):
    arguments = ["train", "old.parquet", "--out", "p", "--mlflow", "http://127.0.0.1:9"]
    assert "start it, or set" in fails(capsys, 1, *arguments)
    assert not Path("p").exists()


def test_evaluate_drift_is_exit_code_1(capsys):
    steady = run_json(capsys, "evaluate", "predictor", "new.parquet", "--drift")
    assert steady["verdict"] == steady["targets"]["time_ms"]["verdict"] == "ok"
    assert steady["targets"]["time_ms"]["reasons"] == []
    fresh = read_runs("new.parquet")
    write_runs("slow.parquet", fresh.assign(time_ms=3 * fresh["time_ms"]))
    slow = run_json(capsys, "evaluate", "predictor", "slow.parquet", "--drift", code=1)
    assert slow["verdict"] == "drifted"
    shift = (1 + slow["targets"]["time_ms"]["bias"]) / (1 + steady["targets"]["time_ms"]["bias"])
    assert shift == pytest.approx(3)
    assert main(["evaluate", "predictor", "slow.parquet", "--drift"]) == 1
    captured = capsys.readouterr()
    assert "time_ms: drifted" in captured.out
    assert captured.err == ""


def test_evaluate_drift_names_runs_of_training(capsys):
    main(["evaluate", "predictor", "old.parquet", "--drift"])
    printed = capsys.readouterr().out
    assert "were in training: their errors say nothing about new runs" in printed
    assert printed.count("new runs") == 1


def test_evaluate_drift_refuses_other_kernel(capsys):
    write_runs("other.parquet", read_runs("new.parquet").assign(kernel="other"))
    assert "knows 'toy', not 'other'" in fails(
        capsys, 1, "evaluate", "predictor", "other.parquet", "--drift"
    )
