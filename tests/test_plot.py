"""Tests what the charts of `foretune.plot` draw."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy

pytest.importorskip("matplotlib")
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

from foretune import plot
from foretune.errors import UnknownName, UsageError
from foretune.models.validation.cross_validation import Validation
from foretune.objective import Objective
from foretune.tune import job, tune_pareto, tune_problem
from foretune.tune.campaign.observer import Campaign
from foretune.tune.functions.result import Best

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)


@pytest.fixture(scope="module")
def tuned():
    return tune_problem(
        KERNEL, PROBLEM, FakeRunner(), budget=24, searcher="random", store=False, seed=1
    )


@pytest.fixture
def ax():
    figure, ax = pyplot.subplots()
    yield ax
    pyplot.close(figure)


def test_history_draws_trace_best_default_and_failures(tuned, ax):
    assert plot.history(Best(KERNEL, tuned), ax=ax) is ax
    measured, best, default, failed = ax.get_lines()
    values = np.array([step.objective for step in tuned.trace])
    assert measured.get_ydata().tolist() == values.tolist()
    assert best.get_ydata()[-1] == values.min()
    assert set(default.get_ydata()) == {tuned.baseline.value}
    assert failed.get_xdata().tolist() == [i for i, v in enumerate(values, 1) if np.isinf(v)]


def test_predicted_measured_counts_points_in_interval(tuned, ax):
    steps = [
        dataclasses.replace(s, predicted_ms=1.0, low_ms=0.0, high_ms=s.time_ms * (0.5 + i % 2))
        for i, s in enumerate(tuned.trace)
    ]
    plot.predicted_measured(dataclasses.replace(tuned, trace=tuple(steps)), ax=ax)
    drawn = sum(s.status == "ok" for s in steps)
    inside = sum(s.status == "ok" and i % 2 for i, s in enumerate(steps))
    assert ax.get_title() == f"{inside / drawn:.0%} of {drawn} in the 90 % interval"
    with pytest.raises(UsageError, match="nothing was predicted"):
        plot.predicted_measured(tuned, ax=ax)
    with pytest.raises(UsageError, match="no problem was held out"):
        plot.predicted_measured(Validation(), ax=ax)


def test_importance_and_slice_draw_knobs(tuned, ax):
    plot.importance(tuned, ax=ax)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[-1] == "work", "the one that counts in the toy's law"
    plot.importance(pd.DataFrame({"parameter": ["a"], "factor": [3.0]}), ax=ax)
    assert ax.patches[-1].get_width() == 2.0
    ax.clear()
    plot.slice(tuned, "work", ax=ax)
    best = ax.get_lines()[1].get_ydata()
    table = tuned.to_frame().query("status == 'ok'")
    assert best.tolist() == table.groupby("config.work")["objective"].min().tolist()
    with pytest.raises(UnknownName, match="did you mean 'work'"):
        plot.slice(tuned, "wrok")
    ax.clear()
    plot.contour(tuned, ("work", "skew"), ax=ax)
    assert np.nanmin(ax.images[0].get_array()) == table["objective"].min()
    with pytest.raises(UsageError, match=r"two knobs: give knobs=\(X, Y\) out of .*work"):
        plot.contour(tuned, "n", ax=ax)


def test_ratios_draws_contenders(tuned, ax, tmp_path):
    plot.ratios(tuned, ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == [c.name for c in tuned.contenders[1:]]
    campaign = Campaign((tuned, tuned), None, tmp_path, 1.0)
    other = plot.ratios(campaign)
    assert other.containers[0][0].get_xdata().tolist() == [tuned.winner.ratio] * 2
    pyplot.close(other.figure)


def test_front_and_power_draw_measured_points(ax, monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())
    goals = (Objective.TIME, Objective.ENERGY)
    front = tune_pareto(
        KERNEL,
        PROBLEM,
        MeteredRunner(DEVICE),
        budget=12,
        objectives=goals,
        searcher="random",
        store=False,
    )
    plot.pareto_front(front, ax=ax)
    assert ax.get_lines()[1].get_xdata().tolist() == sorted(p.time_ms for p in front.front)
    with pytest.raises(UnknownName, match="power_w"):
        plot.pareto_front(front, y="power", ax=ax)
    ax.clear()
    plot.power(pd.DataFrame({"power_w": [1.0, 2.0]}), ax=ax)
    assert ax.get_lines()[0].get_ydata().tolist() == [1.0, 2.0]
    with pytest.raises(UsageError, match="not metered"):
        plot.power(pd.DataFrame({"power_w": [np.nan]}), ax=ax)


def test_learning_curve_draws_errors_in_percent(ax, tuned):
    with pytest.raises(UsageError, match=r"the table of foretune\.models\.learning_curve"):
        plot.learning_curve(tuned)
    plot.learning_curve(pd.DataFrame({"rows": [10, 100], "median_ape": [0.4, 0.1]}), ax=ax)
    assert ax.get_lines()[0].get_ydata().tolist() == [40.0, 10.0]


def test_history_of_gates_draws_a_line_per_benchmark(ax):
    rows = [("sort", "v1", 2.0), ("sum", "v1", 1.0), ("sort", "v2", 3.0), ("sort", "v2", 4.0)]
    runs = pd.DataFrame(rows, columns=["problem.benchmark", "config.revision", "time_ms"])
    plot.history(runs, ax=ax)
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    assert lines["sort"] == [1.0, 2.0], "the newest time of v2 over that of v1"
    assert lines["sum"] == [1.0]
