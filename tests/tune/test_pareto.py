"""Tuning for several objectives: a front that was measured again, and its volume."""

import dataclasses
import json
import math

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy, config, power_w, time_ms

from foretune.datasets import RunLog
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, UsageError
from foretune.objective import Limit, Objective
from foretune.tune import job, tune_pareto
from foretune.tune.pareto import PARETO_PROCESSES
from foretune.tune.results import REJECTED

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
SIZE = len(KERNEL.space(PROBLEM))
EVERY = {"budget": SIZE, "searcher": "exhaustive"}
BEST = [config(work=work) for work in (1, 2, 4, 8, 16)]
"""The front: less work is faster, more work takes less energy."""


@pytest.fixture(autouse=True)
def _metered(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())


def test_tune_pareto_finds_and_remeasures_front():
    runner = MeteredRunner()
    result = tune_pareto(KERNEL, PROBLEM, runner, **EVERY)
    assert [t.config for t in result.front] == BEST
    for t in result.front:
        assert t.time_ms == time_ms(PROBLEM, t.config)
        assert t.power_w == pytest.approx(power_w(t.config))
        assert t.energy_mj == pytest.approx(t.time_ms * t.power_w)
        assert t.values == [t.time_ms, t.energy_mj]
    assert result.processes == PARETO_PROCESSES
    assert len(runner.measured) == SIZE + (2 + len(BEST)) * result.processes


def test_tune_pareto_default_competes():
    """On its own front it stays; beaten in both, as here by skew 1, it goes."""
    result = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), **EVERY)
    assert result.default.config == KERNEL.default(PROBLEM)
    assert result.default.config not in [t.config for t in result.front]
    assert all(c.ratio == 1 for c in result.default.against_default)
    best = result.front[2].against_default
    assert [c.ratio for c in best] == pytest.approx([2.0, 2.0])  # half the skew, as many watts
    assert all(c.wins for c in best)
    few = tune_pareto(KERNEL, PROBLEM, OnlyDefaultWorks(), budget=4)
    assert [t.config for t in few.front] == [KERNEL.default(PROBLEM)]


class OnlyDefaultWorks(MeteredRunner):
    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        default = kernel.default(problem)
        return super().run(
            kernel, problem, [c if c == default else config("no run") for c in configs]
        )


def test_tune_pareto_hypervolume_and_reference():
    result = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), **EVERY)
    default = KERNEL.default(PROBLEM)
    reference = 2 * np.array([1, power_w(default)]) * time_ms(PROBLEM, default)
    assert result.reference == pytest.approx(tuple(reference))
    values = sorted((time_ms(PROBLEM, c), power_w(c) * time_ms(PROBLEM, c)) for c in BEST)
    inside = [v for v in values if v[0] < reference[0] and v[1] < reference[1]]
    ends = [t for t, _ in inside[1:]] + [reference[0]]
    area = sum((end - t) * (reference[1] - e) for (t, e), end in zip(inside, ends, strict=True))
    assert result.hypervolume == pytest.approx(area / np.prod(reference))
    assert 0 < result.hypervolume < 1


def test_tune_pareto_default_alone_has_hypervolume_of_a_quarter():
    few = tune_pareto(KERNEL, PROBLEM, OnlyDefaultWorks(), budget=4)
    assert few.hypervolume == pytest.approx(0.25)


def test_tune_pareto_finds_front_with_few_measurements():
    result = tune_pareto(KERNEL, PROBLEM, MeteredRunner(noise=0.01), budget=25)
    everything = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), **EVERY)
    assert len(result.trace) == 25 < SIZE
    assert result.hypervolume > 0.75 * everything.hypervolume


def test_tune_pareto_predictor_needs_fewer_measurements(metered_predictor):
    result = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), metered_predictor, budget=10)
    everything = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), **EVERY)
    assert result.trace[0].config in BEST
    assert result.hypervolume > 0.75 * everything.hypervolume


def test_tune_pareto_remeasures_lucky_values():
    """Skew 2 is better than skew 1 in the search, and worse when measured again."""

    class Lucky(MeteredRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            for c in configs:
                again = (problem, c) in self.measured
                (m,) = super().run(kernel, problem, [c], incumbent_ms)
                lucky = c == config(skew=2) and not again
                yield dataclasses.replace(m, time_ms=0.4 * m.time_ms) if lucky else m

    result = tune_pareto(KERNEL, PROBLEM, Lucky(), **EVERY)
    assert config(skew=2) in [t.config for t in result.candidates]
    assert config(skew=2) not in [t.config for t in result.front]


def test_limits_cut_the_front():
    limits = [Limit("power_w", 50.0), Limit("time_ms", 1.0)]
    result = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), limits=limits, **EVERY)
    assert [t.config for t in result.front] == [config(work=2), config(work=4), config(work=8)]
    summary = result.summary()
    assert summary["rejected"] == sum(s["status"] == REJECTED for s in summary["trace"]) > 10
    assert summary["limits"] == {"power_w": 50.0, "time_ms": 1.0}


def test_tune_pareto_nothing_within_limits_is_error():
    with pytest.raises(MeasurementError, match=r"nor is the default \(power_w 12.5 > 1\)"):
        tune_pareto(KERNEL, PROBLEM, MeteredRunner(), limits=[Limit("power_w", 1.0)], budget=9)


def test_tune_pareto_summary_is_plain():
    summary = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), **EVERY).summary()
    assert json.loads(json.dumps(summary))["pareto"] == summary["pareto"]
    assert set(summary["reference"]) == {"time", "energy"}
    assert [p["config"]["work"] for p in summary["pareto"]] == [1, 2, 4, 8, 16]
    assert set(summary["pareto"][0]["against_default"]) == {"time", "energy"}
    assert len(summary["trace"]) == SIZE


def test_any_objectives():
    result = tune_pareto(
        KERNEL, PROBLEM, MeteredRunner(), objectives=(Objective.ENERGY, Objective.EDP), **EVERY
    )
    assert [t.config["work"] for t in result.front] == [16, 8, 4, 2, 1]


def test_tune_pareto_one_objective_is_refused():
    twice = (Objective.TIME, Objective.TIME)
    with pytest.raises(UsageError, match="needs two objectives: use tune_problem"):
        tune_pareto(KERNEL, PROBLEM, MeteredRunner(), objectives=twice)


def test_tune_pareto_without_meter_is_error(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: None)
    with pytest.raises(MeterUnavailable, match="objective 'energy' needs a power meter"):
        tune_pareto(KERNEL, PROBLEM, FakeRunner(Device("x", "abacus")))


def test_tune_pareto_unmetered_default_is_error():
    with pytest.raises(MeasurementError, match="default configuration of toy does not run"):
        tune_pareto(KERNEL, PROBLEM, FakeRunner(), budget=3)


def test_tune_pareto_reuses_log(tmp_path):
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        first = tune_pareto(KERNEL, PROBLEM, MeteredRunner(), budget=10, store=False, log=log)
        again = MeteredRunner()
        second = tune_pareto(KERNEL, PROBLEM, again, budget=10, store=False, log=log)
    assert [m.config for m in first.trace] == [m.config for m in second.trace]
    assert len(again.measured) == (2 + len(second.candidates)) * second.processes
