"""Results as objects: a line, a table, plain values, what notebooks show; equal after a journey."""

import json
import logging
import pickle
import xml.etree.ElementTree as ET

import pandas as pd
import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy

from foretune.collect.collection import CollectSummary
from foretune.models import Training, train_predictor
from foretune.objective import Objective
from foretune.search import run_search
from foretune.tune import job, tune_pareto, tune_problem, tune_workload
from foretune.tune.campaign.observer import Campaign
from foretune.tune.functions.result import Best
from foretune.tune.results import Comparison, NoiseEstimate, TuneResult
from foretune.tune.verdict import Verdict
from foretune.tune.workload import Calls

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tune_problem(
        KERNEL, PROBLEM, FakeRunner(), budget=12, searcher="random", store=False, seed=1
    )


def found(config):
    return float(config["n"])


def to_runs():
    return pd.DataFrame({"n": range(1, 41), "time_ms": [0.1 + n % 7 for n in range(1, 41)]})


@pytest.fixture
def every(tuned, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    goals = (Objective.TIME, Objective.ENERGY)
    front = tune_pareto(
        KERNEL,
        PROBLEM,
        MeteredRunner(DEVICE),
        budget=8,
        objectives=goals,
        searcher="random",
        store=False,
    )
    calls = [Calls(KERNEL, PROBLEM, 3), Calls(KERNEL, KERNEL.problem(n=200), 1)]
    workload = tune_workload(calls, FakeRunner(), budget=8, store=False)
    training = Training.__new__(Training)  # a campaign's results do not depend on it
    campaign = Campaign((tuned,), training, tmp_path_factory.getbasetemp(), 1.0)
    return [
        train_predictor(to_runs()),
        run_search("random", {"n": [1, 2]}, found, budget=2),
        Verdict("n=1: the output is wrong"),
        tuned,
        Best(KERNEL, tuned),
        front,
        *front.front,
        workload,
        campaign,
        NoiseEstimate(),
        CollectSummary(3, 2, 1, 0, 1.5),
        *tuned.trace[:1],
        *tuned.contenders,
    ]


def test_result_has_line_table_and_view(every):
    for result in every:
        assert "\n" not in repr(result)
        assert repr(result).startswith(f"{type(result).__name__}(")
        assert len(result.to_frame()) >= 1
        assert result.headline.split(",")[0] in repr(result)
        assert "<table" in result._repr_html_()


def test_result_survives_pickling(every):
    for result in every:
        if not isinstance(result, Campaign):  # its predictor is no part of what is compared
            assert pickle.loads(pickle.dumps(result)) == result
        assert result == result
        assert hash(result) == hash(result)
    assert len({type(result) for result in every}) == 13
    assert Comparison("a", None, 1.0, 1.0, 1.0, 1.0) != Comparison("b", None, 1.0, 1.0, 1.0, 1.0)
    assert NoiseEstimate(again_low=1.0) != NoiseEstimate()


def test_plain_values_make_the_result_again(tuned):
    content = json.loads(json.dumps(tuned.to_dict()))
    assert TuneResult.from_dict(content) == tuned
    best = Best(KERNEL, tuned)
    assert best.to_dict().items() >= tuned.to_dict().items()
    assert best.to_dict()["config"] == best.config
    assert best.to_dict()["interval"] == list(best.interval)


def test_result_table_has_row_per_measurement(tuned):
    table = tuned.to_frame()
    assert table["objective"].tolist() == [step.objective for step in tuned.trace]
    assert table["best"].min() == table["best"].iloc[-1] == min(s.objective for s in tuned.trace)
    assert table["config.work"].tolist() == [step.config["work"] for step in tuned.trace]


def test_result_notebook_view_has_verdict_configuration_and_chart(tuned):
    view = ET.fromstring(tuned._repr_html_().split("#}")[-1].strip())
    said = " ".join(view.itertext())
    low = tuned.winner.ratio_low
    high = tuned.winner.ratio_high
    assert f"({low:.2f}–{high:.2f})" in said
    assert [cell.text for cell in view.findall(".//th")][:2] == [None, "work"]
    measured = sum(step.status == "ok" for step in tuned.trace)
    assert len(view.findall(".//circle/title")) == measured


def test_library_prints_nothing_by_default(capfd, caplog):
    tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=2, searcher="random", store=False)
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, logger="foretune"):
        tune_problem(KERNEL, PROBLEM, FakeRunner(), budget=2, searcher="random", store=False)
    assert any("tuning n=100" in record.getMessage() for record in caplog.records)
