"""The command line as its users meet it: JSON, tables, one line for everything that is wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import fails, run_json
from toy_kernel import DEVICE, FakeRunner, Toy

from foretune.cli import main
from foretune.collect import machine_load, runner
from foretune.datasets import read_runs, write_runs
from foretune.models import Predictor
from foretune.tune.campaign.campaign import PRESETS, Preset

PROBLEM = "n=30"


@pytest.fixture(autouse=True)
def place(toy_place, monkeypatch):
    """`toy_place`, whose kernel other processes find, and where they hang for a second."""
    toy = str(Path(__file__).parents[1] / "toy")
    path = [toy, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    quick = runner.IsolatedRunner

    class Quick(quick):
        def __init__(self, device, timing=None, limit_s=10.0, power=True):
            super().__init__(device, timing, min(limit_s, 1.0), power)

    monkeypatch.setattr(runner, "IsolatedRunner", Quick)
    return toy_place


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Runs of the toy kernel, and a predictor trained on them."""
    from foretune.collect import plan_configurations
    from foretune.datasets import from_measurements

    folder = tmp_path_factory.mktemp("collected")
    runner = FakeRunner()
    plan = plan_configurations(Toy(), Toy().training_problems(4), 20)
    rows = [m for p, configs in plan.items() for m in runner.run(Toy(), p, configs)]
    write_runs(folder / "runs.parquet", from_measurements(rows, DEVICE))
    return folder


@pytest.fixture
def runs(collected, place):
    shutil.copy(collected / "runs.parquet", place / "runs.parquet")
    return place / "runs.parquet"


@pytest.fixture
def predictor(runs, capsys):
    assert main(["train", str(runs), "--validate", "none", "--out", "predictor"]) == 0
    capsys.readouterr()
    return "predictor"


def test_collect_again_measures_only_what_is_missing(capsys):
    arguments = [
        "collect",
        "toy",
        "--problems",
        "n=20;n=40",
        "--configs",
        "4",
        "--out",
        "r.parquet",
    ]
    first = run_json(capsys, *arguments)
    assert (first["rows"], first["ok"] + first["failed"], first["reused"]) == (8, 8, 0)
    again = run_json(capsys, *arguments)
    assert (again["rows"], again["reused"]) == (0, 8)
    assert set(read_runs("r.parquet")["problem.n"]) == {20, 40}


def test_collect_kernel_in_file_continues_its_table(capsys):
    kernel = f"{Path(__file__).parents[1] / 'toy' / 'toy_kernel.py'}:Toy"
    arguments = ["collect", kernel, "--problems", "n=20", "--configs", "2", "--out", "r.parquet"]
    assert run_json(capsys, *arguments)["rows"] == 2
    assert run_json(capsys, *arguments)["reused"] == 2


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors with sh: run it on Linux")
def test_output_closed_stderr_keeps_messages_out_of_stdout():
    words = ["sh", "-c", 'exec "$@" 2>&-', "", sys.executable, "-m", "foretune", "nonsense"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")  # the message is for stderr alone


def test_collect_busy_machine_prints_disturbance(capsys, monkeypatch):
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", -1.0)
    several_clock_ticks_s = 0.05
    monkeypatch.setattr(machine_load, "OBSERVE_S", several_clock_ticks_s)
    arguments = ["collect", "toy", "--problems", "n=20", "--configs", "2", "--out", "r.parquet"]
    assert main([*arguments, "--wait-quiet", "0.001", "--json"]) == 0
    captured = capsys.readouterr()
    assert "kept the CPU busy" in json.loads(captured.out)["disturbed"]
    assert "times may be off: other processes" in captured.err
    assert "not idle after 0.001 s: other processes" in captured.err


def test_collect_table_of_other_kernel_is_refused(capsys, runs):
    write_runs(runs, read_runs(runs).assign(kernel="other"))
    before = read_runs(runs)
    arguments = ["collect", "toy", "--problems", "1", "--configs", "1", "--out", str(runs)]
    assert "holds runs of other: give another --out" in fails(capsys, 2, *arguments)
    assert read_runs(runs).equals(before)


def test_collect_file_that_is_no_run_table_stays_unchanged(capsys, place):
    (place / "notes.md").write_text("mine")
    fails(capsys, 1, "collect", "toy", "--problems", "1", "--configs", "1", "--out", "notes.md")
    assert [p.name for p in place.iterdir()] == ["notes.md"]
    assert (place / "notes.md").read_text() == "mine"


def test_train_evaluate_predict(capsys, runs):
    trained = run_json(capsys, "train", str(runs), "--out", "p", "--model", "random_forest")
    assert (set(trained["time_ms"]), trained["validate"]) == ({"grouped"}, "quick")
    metrics = {"r2", "r2_log", "mape", "median_ape", "p95_ape", "spearman", "top1_regret"}
    assert metrics | {"coverage90"} <= trained["time_ms"]["grouped"].keys()
    scores = run_json(capsys, "evaluate", "p", str(runs))
    assert 0 <= scores["time_ms"]["mape"] < 0.5
    ranked = run_json(capsys, "predict", "p", "--kernel", "toy", "--problem", PROBLEM, "--top", "3")
    assert len(ranked["configs"]) == 3
    best = ranked["configs"][0]
    assert best["low"] <= best["time_ms"] <= best["high"]
    assert best["power_w"] is None
    assert best["config"]["behaviour"] == "ok"


def test_train_validates_chosen_splits(capsys, runs):
    arguments = ["train", str(runs), "--out", "p", "--model", "random_forest"]
    trained = run_json(capsys, *arguments, "--group", "config.work", "--validate", "grouped")
    assert set(trained["time_ms"]) == {"grouped"}
    says = fails(capsys, 2, *arguments, "--group", "config.wrok")
    assert "unknown group 'config.wrok': did you mean 'config.work'?" in says


def test_predict_far_problem_names_training_range(runs, predictor):
    loaded = Predictor.load(predictor)
    far = read_runs(runs).head(3).assign(**{"problem.n": 100_000})
    assert (loaded.predict(far)["outside"] > 5).all()


def test_tune(capsys, predictor):
    tuned = run_json(
        capsys,
        "tune",
        "toy",
        "--problem",
        PROBLEM,
        "--budget",
        "3",
        "--predictor",
        predictor,
        "--runs",
        "tuned.parquet",
    )
    assert tuned["best"]["measurements"] == 3
    if tuned["verified"] == "win":  # the launches are real, and other tests run beside them
        assert tuned["best"]["config"]["work"] == 1
    assert len(tuned["trace"]) == 3
    assert len(read_runs("tuned.parquet")) == 3


def test_tune_prints_table_and_winner(capsys, predictor):
    assert main(["tune", "toy", "--problem", PROBLEM, "--predictor", predictor]) == 0
    out = capsys.readouterr().out
    assert "toy on Toy CPU" in out
    assert re.search("(winner|the default stays): work=", out)
    assert max(map(len, out.splitlines())) <= 80


def test_campaign_and_report(capsys, monkeypatch, place, template):
    (place / "mlflow.db").write_bytes(template.read_bytes())
    monkeypatch.setitem(
        PRESETS,
        "quick",
        Preset(
            train_problems=3,
            random_configs=6,
            guided_configs=2,
            tune_problems=1,
            budget=3,
            profile_s=60.0,
            box_s=0.01,
            verify_s=0.05,
        ),
    )
    monkeypatch.setattr("foretune.models.validation.cross_validation.DEFAULT_SPLITS", ("grouped",))
    line = ["campaign", "toy", "--problem", PROBLEM, "--preset", "quick", "--carbon", "380"]
    done = run_json(capsys, *line)
    assert done["carbon"]["source"] == "380 g/kWh, as given"
    assert list(done["carbon"]["g_per_million_launches"].values()) in ([None], [None, None])
    assert done["best"][0]["problem"]["n"] == 30
    assert Path(done["report"]).exists()
    assert "time_ms" in done["predictor"]
    again = run_json(capsys, "campaign", "--report", done["folder"])
    assert again["report"] == done["report"]


def test_tune_changed_kernel_refuses_old_predictor(capsys, predictor):
    card = Path(predictor) / "predictor.json"
    card.write_text(card.read_text().replace('"kernel_source": "', '"kernel_source": "0'))
    arguments = ["predict", predictor, "--kernel", "toy", "--problem", PROBLEM]
    assert "the code of toy has changed" in fails(capsys, 1, *arguments)


def test_help_without_arguments(capsys):
    assert main([]) == 0
    assert "campaign" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["campain"], "Did you mean 'campaign'?"),
        (["collect", "toy"], "Missing option '--out'"),
        (["collect", "tpy", "--out", "x"], "did you mean 'toy'?"),
        (["collect", "toy", "--out", "x", "--configs", "0"], "give at least 1"),
        (["collect", "toy", "--out", "x", "--problems", "0"], "give at least 1"),
        (["collect", "toy", "--out", "x", "--max-seconds", "-1"], "give more than 0"),
        (["collect", "toy", "--out", "x", "--runner", "rey"], "did you mean 'ray'?"),
        (["collect", "toy", "--out", "x", "--ray-address", "a:1"], "needs --runner ray"),
        (["tune", "toy", "--problem", "N=3"], "did you mean 'n'?"),
        (["tune", "toy", "--problem", "n=9 dtype=fp32"], "write NAME=VALUE,NAME=VALUE"),
        (["collect", "toy", "--out", "x", "--problems", "n"], "write NAME=VALUE"),
        (["collect", "toy", "--out", "x", "--device", "cuda:9"], ""),
        (["tune", "toy", "--problem", "m=3"], "known: dtype, n"),
        (["tune", "toy", "--problem", "dtype=fp32"], "toy needs n"),
        (["tune", "toy", "--problem", "n=0"], "between 1 and"),
        (["tune", "toy", "--problem", "n=-4"], "between 1 and"),
        (["tune", "toy", "--problem", "n=2.5"], "whole number"),
        (["tune", "toy", "--problem", "n=many"], "not a number"),
        (["tune", "toy", "--problem", "n=9,n=8"], "given twice"),
        (["tune", "toy", "--problem", "n=9,dtype=fp4"], "choose one of fp32, fp64"),
        (["tune", "toy", "--problem", f"n={2**40}"], "use a smaller problem"),
        (["tune", "toy", "--problem", PROBLEM, "--budget", "-1"], "give at least 1"),
        (["tune", "toy", "--problem", PROBLEM, "--searcher", "magic"], "unknown searcher"),
        (["tune", "toy", "--problem", PROBLEM, "--objective", "joy"], "known: edp, energy, time"),
        (["campaign", "toy", "--preset", "hughe"], "known: full, quick"),
        (["campaign", "toy", "--model", "oracle"], "unknown model"),
        (["train", "runs.parquet", "--out", "p", "--target", "beauty"], "unknown target"),
        (["train", "runs.parquet", "--out", "p", "--work", "flop=2"], "did you mean 'flops'?"),
        (
            ["train", "runs.parquet", "--out", "p", "--validate", "half"],
            "unknown validation 'half'",
        ),
        (["train", "runs.parquet", "--out", "p", "--model", "oracle"], "known: random_f"),
        (["campaign", "--report", "nowhere"], "not a campaign's folder"),
        (["campaign"], "give a kernel"),
        (["predict", "p"], "give --problem"),
        (["predict", "p", "--kernel", "toy", "--config", "default"], "--config needs --explain"),
        (["tune", "toy", "--seed"], "--seed needs a value"),
        (["tune", "toy", "--regret", "0.1"], "No such option: --regret"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(capsys, monkeypatch, arguments, says):
    if "cuda:9" in arguments:
        monkeypatch.undo()
        arguments = [a.replace("toy", "matmul") for a in arguments]
        says = "unknown device 'cuda:9'"
    if arguments[0] == "train":
        Path("runs.parquet").touch()
    assert says in fails(capsys, 2, *arguments)


def test_ray_missing_names_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    printed = fails(capsys, 1, "collect", "toy", "--out", "x", "--runner", "ray")
    assert printed == (
        "measuring on Ray needs ray, which is not installed: in Foretune's checkout, "
        "pip install '.[ray]'"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["collect", "toy", "--problems", PROBLEM, "--configs", "2", "--out", "r.parquet"],
        ["tune", "toy", "--problem", PROBLEM, "--budget", "2", "--predictor", "none"],
    ],
)
def test_collect_on_ray_measures_on_workers(command, capsys, monkeypatch):
    asked = []

    class OnRay(FakeRunner):
        parallelism = 2
        devices = 3

        def __init__(self, kernel, device, timing=None, limit_s=0.0, address=None):
            super().__init__()
            asked.append((kernel.name, device, address))

    monkeypatch.setattr("foretune.collect.distributed.ray_runner.RayRunner", OnRay)
    run_json(capsys, *command, "--runner", "ray", "--ray-address", "head:6379")
    assert asked == [("toy", DEVICE, "head:6379")]


def test_doctor_ray_prints_resources(capsys):
    assert main(["doctor", "--ray"]) == 0
    offered = json.loads(capsys.readouterr().out)
    assert all(name.startswith("foretune:") and count >= 1 for name, count in offered.items())


def test_failures_are_one_line_and_exit_code_1(capsys, place, runs, predictor):
    (place / "half.parquet").write_bytes(runs.read_bytes()[:500])
    (place / "file").write_text("")
    table = read_runs(runs)
    write_runs("other.parquet", table.assign(kernel="other"))
    table.drop(columns="time_ms").to_parquet("untimed.parquet")
    table.assign(time_ms=-1.0).to_parquet("negative.parquet")
    table.assign(time_ms="fast").to_parquet("text.parquet")
    for arguments, says in [
        (["train", "none.parquet", "--out", "p"], "there is no such file"),
        (["train", "half.parquet", "--out", "p"], "not a readable Parquet file"),
        (["train", "untimed.parquet", "--out", "p"], "column 'time_ms' is missing"),
        (["train", "negative.parquet", "--out", "p"], "row 0"),
        (["train", "text.parquet", "--out", "p"], "must hold numbers"),
        (["train", "runs.parquet", "other.parquet", "--out", "p"], "choose with --kernel"),
        (["train", "runs.parquet", "--out", "p", "--target", "power_w"], "power_w"),
        (["train", "runs.parquet", "--out", "file/p"], "cannot write"),
        (["evaluate", predictor, "other.parquet"], "knows 'toy', not 'other'"),
        (["evaluate", "nowhere", "runs.parquet"], "holds no predictor"),
        (["predict", predictor, "--kernel", "matmul", "--problem", "M=8,N=8,K=8"], "knows 'toy'"),
        (["collect", "toy", "--out", "file/x.parquet"], "cannot write"),
        (["tune", "toy", "--problem", PROBLEM, "--objective", "energy"], "power meter"),
        (["campaign", "toy", "--out", "file"], "cannot write"),
    ]:
        assert says in fails(capsys, 1, *arguments)


def test_campaign_unreachable_mlflow_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "start it, or set" in fails(capsys, 1, "campaign", "toy")


def test_root_options_may_stand_anywhere(capsys, runs):
    arguments = ["--out", "p", "--validate", "none", str(runs)]
    assert main(["train", "--json", "--seed=7", *arguments]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["--seed", "7", "train", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"] == first["training"]
    assert Predictor.load("p").seed == 7


def test_debug_shows_where(capsys):
    assert main(["--debug", "campaign", "--report", "nowhere"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["campaign", "--report", "nowhere", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interruption_is_one_line(capsys, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("foretune.collect.collection.collect_runs", interrupted)
    assert main(["collect", "toy", "--out", "r.parquet"]) == 130
    assert "run the same command to continue" in capsys.readouterr().err


def test_evaluate_names_rows_of_training(capsys, predictor, runs):
    assert main(["evaluate", predictor, str(runs)]) == 0
    assert "were in training" in capsys.readouterr().out


def test_train_learning_curve_needs_groups(capsys, runs):
    command = ("train", str(runs), "--validate", "curve", "--group", "kernel", "--out", "p")
    assert "these runs are of one group" in fails(capsys, 2, *command)


def test_learning_curve(capsys, runs):
    done = run_json(capsys, "train", str(runs), "--validate", "none,curve", "--out", "predictor")
    assert {"rows", "mape"} <= done["curves"]["time_ms"][0].keys()


def test_foretune_runs_as_module():
    command = [sys.executable, "-m", "foretune", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "foretune [OPTIONS] COMMAND" in done.stdout


def test_interruption_during_imports_is_one_line(monkeypatch, capsys):
    class Importing:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "foretune.cli.app", Importing())
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "foretune: interrupted before it started\n"


def test_files_that_cannot_be_written_are_refused_before_measuring(capsys):
    Path("file").touch()
    line = ("tune", "toy", "--problem", PROBLEM, "--export", "file/best.json")
    assert "cannot write into file" in fails(capsys, 1, *line)
    assert "cannot write into file" in fails(capsys, 1, "campaign", "toy", "--out", "file")
    assert not Path("mlflow.db").exists()


def test_tune_without_win_says_default_stays(capsys):
    line = ("tune", "toy", "--problem", PROBLEM, "--budget", "1", "--predictor", "none")
    assert main([*line]) == 0
    assert "the default stays: work=" in capsys.readouterr().out


def test_evaluate_scores_simulator_beside_predictor(capsys, runs, predictor):
    table = read_runs(runs)
    write_runs(runs, table.assign(**{"simulated.cycles": table["time_ms"] * 3e6}))
    scores = run_json(capsys, "evaluate", predictor, str(runs))
    assert scores["simulated.cycles"]["mape"] == pytest.approx(0, abs=1e-9)
    assert scores["time_ms"]["mape"] > 0
