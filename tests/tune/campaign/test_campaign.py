"""Campaigns, with MLflow for real: what is tracked, what survives a kill, what is refused."""

import dataclasses
import json
import re
import subprocess
import sys

import mlflow
import pytest
from toy_kernel import DEVICE, FakeRunner, Toy, config

from foretune import registry
from foretune.collect.collection import FEWEST_PROBLEMS
from foretune.datasets import read_runs
from foretune.errors import OutputError, ProblemError, TrackingError, UnknownName, UsageError
from foretune.models import Predictor
from foretune.registry import get_kernel
from foretune.space import SearchSpace
from foretune.tune.campaign.campaign import Preset, run_campaign
from foretune.tune.campaign.finished import load_campaign, notify_observers
from foretune.tune.campaign.observer import CampaignObserver

TINY = Preset(
    train_problems=5,
    random_configs=8,
    guided_configs=2,
    tune_problems=2,
    budget=4,
    profile_s=60.0,
    box_s=0.01,
    verify_s=0.1,
)
KERNEL = Toy()


@pytest.fixture
def place(tmp_path, template, monkeypatch, toy_registered):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(template.read_bytes())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def campaign(*arguments, **options):
    """Run one that holds out nothing: to validate the predictor is most of its time."""
    return run_campaign(*arguments, **{"validate": "none", **options})


def test_campaign_is_tracked_completely(place):
    done = run_campaign(KERNEL, FakeRunner(), TINY)
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    parent = client.get_run(done.mlflow_run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.params["kernel"] == "toy"
    assert parent.data.params["preset.budget"] == "4"
    assert 0 < parent.data.metrics["time_ms.grouped.mape"] < 1
    assert parent.data.metrics["speedup_geomean"] > 1
    assert parent.data.tags["mlflow.note.content"] == done.headline
    (dataset,) = parent.inputs.dataset_inputs
    assert dataset.dataset.name == "toy runs"
    assert json.loads(dataset.dataset.profile)["num_rows"] == 5 * (8 + 2)

    nested = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{done.mlflow_run_id}'"
    )
    assert len(nested) == 2
    for run in nested:
        history = client.get_metric_history(run.info.run_id, "best_so_far")
        values = [m.value for m in history]
        assert [m.step for m in history] == [1, 2, 3, 4]
        assert values == sorted(values, reverse=True)
        assert run.data.params["best.behaviour"] == "ok"
        assert run.data.metrics["verified"] == 1
        assert run.data.tags["mlflow.note.content"].startswith("**better than the default**")
        drawn = {a.path for a in client.list_artifacts(run.info.run_id, "charts")}
        assert drawn == {"charts/history.png", "charts/ratios.png"}

    names = {a.path for a in client.list_artifacts(done.mlflow_run_id)}
    assert {"report.html", "best.json", "runs.parquet"} <= names
    (drawn,) = client.list_artifacts(done.mlflow_run_id, "charts")
    assert drawn.path == "charts/predicted_measured.png"
    (version,) = client.search_model_versions(f"run_id = '{done.mlflow_run_id}'")
    assert version.name == "foretune-toy"
    alias = parent.data.tags["foretune.alias"]
    assert client.get_model_version_by_alias("foretune-toy", alias).version == version.version
    info = mlflow.models.get_model_info(f"models:/foretune-toy/{version.version}")
    assert {"problem.n", "config.work"} <= set(info.signature.inputs.input_names())
    assert info.saved_input_example_info is not None

    assert done.report.exists()
    loaded = Predictor.load(done.folder / "predictor")
    assert loaded.training_["problems"] == 5
    summary = json.loads(json.dumps(done.summary()))
    assert {"best", "predictor", "mlflow_run_id", "report"} <= summary.keys()
    assert {"config", "time_ms", "baseline_time_ms", "speedup", "verified", "measurements"} <= (
        summary["best"][0].keys()
    )


@pytest.fixture(scope="module")
def never_killed():
    """The results of a campaign that ran through; the first test that needs them fills it."""
    return []


@pytest.mark.parametrize(("after", "observers"), [(0, []), (45, []), (53, ["mlflow"])])
def test_killed_and_started_again(place, never_killed, after, observers):
    """Killed while profiling or tuning, it goes on, and learns nothing of the problems tuned."""
    first = FakeRunner(interrupt_after=after)
    with pytest.raises(KeyboardInterrupt):
        campaign(KERNEL, first, TINY, observers=observers)
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    before = json.loads((place / "campaigns/toy-001/campaign.json").read_text())
    run_id = before.get("mlflow_run_id")
    assert run_id is None or client.get_run(run_id).info.status == "KILLED"
    second, said = FakeRunner(), Said()
    done = campaign(KERNEL, second, TINY, observers=observers, progress=said)
    assert "continues campaigns/toy-001" in said.lines
    assert run_id is None or client.get_run(run_id).info.status == "FINISHED"
    assert (done.folder.name, done.mlflow_run_id) == ("toy-001", run_id)
    assert (run_id is not None) == bool(observers)
    assert len(set(second.measured)) == len(second.measured)
    assert not set(first.measured) & set(second.measured)
    rows = read_runs(done.folder / "runs.parquet")
    assert len(rows) == len(first.measured) + len(second.measured) == 5 * 10 + 2 * 4
    assert done.training.predictor.training_["rows"] == 50
    state = json.loads((done.folder / "campaign.json").read_text())
    assert len(state.get("tracked", ())) == 2 * len(observers)

    if not never_killed:
        never_killed += campaign(
            KERNEL, FakeRunner(), TINY, out=place / "whole", store=False, observers=[]
        ).results
    assert [r.winner for r in never_killed] == [r.winner for r in done.results]
    assert [s.config for r in never_killed for s in r.trace] == [
        s.config for r in done.results for s in r.trace
    ]


def test_campaign_reuses_stored_measurements(place):
    first = campaign(KERNEL, FakeRunner(), TINY, observers=[])
    state = json.loads((first.folder / "campaign.json").read_text())
    assert state["device"]["name"] == DEVICE.name
    runner = FakeRunner()
    again = campaign(KERNEL, runner, TINY, observers=["report"])
    assert again.folder.name == "toy-002"  # a finished one is not gone on with
    assert runner.measured == []
    assert [r.winner.config for r in again.results] == [r.winner.config for r in first.results]
    assert len(read_runs(again.folder / "runs.parquet")) == 5 * 10
    assert "came from the store" in again.report.read_text()
    alone = FakeRunner()
    campaign(KERNEL, alone, TINY, store=False, observers=[])
    assert len(alone.measured) == 5 * 10 + 2 * 4


def test_another_request_does_not_take_over_an_unfinished_campaign(place):
    with pytest.raises(KeyboardInterrupt):
        campaign(KERNEL, FakeRunner(interrupt_after=3), TINY, observers=[])
    other = campaign(KERNEL, FakeRunner(), TINY, seed=1, observers=[])
    assert other.folder.name == "toy-002"


def test_campaign_given_problems_are_tuned_not_profiled(place):
    wanted = KERNEL.training_problems(2)
    runner = FakeRunner()
    done = campaign(KERNEL, runner, TINY, problems=wanted, observers=[])
    assert [r.problem for r in done.results] == wanted
    profiled = {p for p, _ in runner.measured[:50]}
    assert not profiled & set(wanted)


def test_campaign_unreachable_server_fails_first(place, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    runner = FakeRunner()
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:9 does not work .*refused"):
        campaign(KERNEL, runner, TINY)
    assert runner.measured == []


def test_campaign_unwritable_folder_is_one_line(place):
    (place / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write into .*file"):
        campaign(KERNEL, FakeRunner(), TINY, out=place / "file")


def test_too_few_problems(place):
    class OneProblem(Toy):
        def training_problems(self, n, seed=0):
            return [self.problem(n=10)]

    with pytest.raises(ProblemError, match="too few different problems"):
        campaign(OneProblem(), FakeRunner(), TINY)


def test_campaign_report_can_be_rewritten(place):
    done = campaign(KERNEL, FakeRunner(), TINY, observers=["report"])
    (said,) = re.findall(r'<p class="headline">(.*)</p>', done.report.read_text("utf-8"))
    done.report.unlink()
    assert notify_observers(done.folder, ["report"]).report == done.report
    assert said in done.report.read_text("utf-8")


def test_campaign_kernel_of_file_is_found_again(place):
    (place / "mine.py").write_text(
        "from toy_kernel import Toy\n\n\nclass Mine(Toy):\n    name = 'mine'\n"
    )
    done = campaign(get_kernel("mine.py:Mine"), FakeRunner(), TINY, observers=["report"])
    assert f"foretune tune {place / 'mine.py'}:Mine --problem" in done.report.read_text("utf-8")
    registry.reset()  # as in another process
    assert notify_observers(done.folder, ["report"]).report == done.report


def test_campaign_unfinished_has_no_report(place):
    with pytest.raises(UsageError, match="not a campaign's folder"):
        notify_observers(place, ["report"])
    with pytest.raises(KeyboardInterrupt):
        campaign(KERNEL, FakeRunner(interrupt_after=3), TINY, observers=[])
    with pytest.raises(UsageError, match="not finished"):
        notify_observers(place / "campaigns" / "toy-001", ["report"])


class Said:
    """Keeps the lines that stay."""

    def __init__(self):
        self.lines = []

    def start(self, stage, total):
        pass

    def advance(self, note=""):
        pass

    def say(self, text):
        self.lines.append(text)


def test_finished_campaign_of_unregistered_kernel_keeps_its_cost_model(place):
    """Kernels made of functions have knobs, and are not registered under their names."""
    (place / "knobbed.py").write_text(
        "from toy_kernel import Toy\n\n\n"
        "class Knobbed(Toy):\n    name = 'knobbed'\n    knobs = ('work',)\n"
    )
    done = campaign(get_kernel("knobbed.py:Knobbed"), FakeRunner(), TINY, observers=[])

    again = load_campaign(done.folder).campaign

    kernel = again.training.predictor.kernel
    assert kernel.name == "knobbed"
    assert again.training.predictor.features_.columns_ == done.training.predictor.features_.columns_


def test_campaign_without_time_counts_configurations_that_exist(place):
    class Few(Toy):
        """Five configurations, where the preset asks for ten."""

        def space(self, problem):
            return SearchSpace.from_configs(config(work=work) for work in (1, 2, 4, 8, 16))

        def default(self, problem):
            return config(work=4)

    hurried = dataclasses.replace(
        TINY, train_problems=FEWEST_PROBLEMS + 3, guided_configs=0, profile_s=1e-9
    )
    said = Said()
    campaign(Few(), FakeRunner(), hurried, observers=[], progress=said)

    n_profiled = 5 * FEWEST_PROBLEMS
    n_planned = 5 * hurried.train_problems
    assert any(
        f"profiled {n_profiled} of {n_planned} configurations" in line for line in said.lines
    )


class TestWithoutMlflow:
    def test_campaign_without_mlflow_is_tracked_later(self, place, monkeypatch):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "mlflow", None)
            said = Said()
            done = campaign(KERNEL, FakeRunner(), TINY, progress=said)
        assert done.report.exists()
        (line,) = (line for line in said.lines if "MLflow" in line)
        assert line.startswith("MLflow is not installed: the campaign is not tracked.")
        assert "pip install '.[track]'" in line
        assert line.endswith(f"'foretune campaign --track {done.folder}'")
        summary = done.summary()
        assert summary["mlflow_run_id"] is summary["mlflow_uri"] is None
        tracked = notify_observers(done.folder, ["mlflow"])
        client = mlflow.MlflowClient("sqlite:///mlflow.db")
        run = client.get_run(tracked.mlflow_run_id)
        assert run.info.status == "FINISHED"
        assert run.data.params["preset.budget"] == "4"
        assert run.data.metrics["verified_wins"] == 2
        children = client.search_runs(
            [run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'"
        )
        assert {c.data.params["problem.n"] for c in children} == {
            str(r.problem["n"]) for r in done.results
        }
        names = {a.path for a in client.list_artifacts(run.info.run_id)}
        assert {"report.html", "best.json", "runs.parquet"} <= names
        again = notify_observers(done.folder, ["mlflow"])
        assert again.mlflow_run_id == run.info.run_id
        assert len(client.search_model_versions(f"run_id = '{again.mlflow_run_id}'")) == 1
        assert client.get_run(run.info.run_id).info.status == "FINISHED"

    def test_campaign_unfinished_is_not_tracked(self, place):
        with pytest.raises(UsageError, match="not a campaign's folder"):
            notify_observers(place, ["mlflow"])


class Counting(CampaignObserver):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_start(self, start):
        self.told.append(("start", start.kernel.name))

    def on_result(self, result):
        self.told.append(("result", result.problem))

    def on_finish(self, campaign):
        self.told.append(("finish", len(campaign.results)))

    def on_failure(self, error):
        self.told.append(("failure", type(error)))


class TestObservers:
    def test_observers_get_all_events_in_order(self, place):
        observer = Counting()
        done = campaign(KERNEL, FakeRunner(), TINY, observers=[observer])
        results = [("result", r.problem) for r in done.results]
        assert observer.told == [("start", "toy"), *results, ("finish", 2)]
        assert not done.report.exists()
        assert done.mlflow_run_id is None

    def test_observers_get_failed_end(self, place):
        observer = Counting()
        with pytest.raises(KeyboardInterrupt):
            campaign(KERNEL, FakeRunner(interrupt_after=3), TINY, observers=[observer])
        assert observer.told == [("start", "toy"), ("failure", KeyboardInterrupt)]

    def test_observers_unknown_name_is_refused(self, place):
        with pytest.raises(UnknownName, match=r"unknown observer 'raport'.*did you mean 'report'"):
            campaign(KERNEL, FakeRunner(), TINY, observers=["raport"])

    def test_campaign_imports_neither_mlflow_nor_report(self):
        code = "import sys, foretune.tune.campaign.campaign; print(*sys.modules, sep='\\n')"
        run = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
        )
        loaded = set(run.stdout.split())
        assert "foretune.tune.campaign.observer" in loaded
        assert not loaded & {"mlflow", "foretune.tune.mlflow", "foretune.tune.report"}
