"""Hard limits in tuning: what breaks one is kept as measured, learned from, and never wins."""

import dataclasses
import math

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy, config, power_w, time_ms

from foretune.collect import InProcessRunner, Timing
from foretune.datasets import RunLog, read_runs
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, UsageError
from foretune.objective import Limit, Objective
from foretune.search.prior import prior_from_predictor
from foretune.space import SearchSpace
from foretune.tune import job, tune_problem, tuner
from foretune.tune.results import REJECTED, TuneResult

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
SIZE = len(KERNEL.space(PROBLEM))


@pytest.fixture
def metered(monkeypatch):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())


def tune(runner, *limits, **how):
    how = {"budget": SIZE, "searcher": "exhaustive"} | how
    limits = [Limit.parse(text) for text in limits]
    return tune_problem(KERNEL, PROBLEM, runner, limits=limits, **how)


@pytest.mark.usefixtures("metered")
def test_tune_problem_winner_keeps_power_limit(tmp_path):
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        result = tune(MeteredRunner(), "power_w=50", log=log)
    assert result.winner.config == config(work=2)  # work 1 is faster, and takes 100 W
    assert result.verified
    assert result.summary()["verdict"] == "win"
    rejected = [s for s in result.trace if s.status == REJECTED]
    assert {s.config for s in rejected} == {
        config(skew=skew, order=order) for skew in (1, 2, 3) for order in ("ab", "ba")
    }
    assert all(s.objective == math.inf for s in rejected)
    assert [s.time_ms for s in rejected] == [time_ms(PROBLEM, s.config) for s in rejected]
    assert result.summary()["rejected"] == len(rejected) == 6
    assert result.summary()["limits"] == {"power_w": 50.0}
    kept = read_runs(tmp_path / "runs.parquet")  # as it was measured
    fastest = kept[(kept["config.work"] == 1) & (kept["config.behaviour"] == "ok")]
    assert set(fastest["status"]) == {"ok"}
    assert set(fastest["power_w"]) == {100.0}


@pytest.mark.usefixtures("metered")
def test_limited_result_survives_json():
    result = tune(MeteredRunner(), "power_w=50", "time_ms=10", budget=30)
    assert TuneResult.from_dict(result.to_dict()) == result


@pytest.mark.usefixtures("metered")
def test_tune_problem_default_above_limit_is_not_chosen():
    """The default takes 12.5 W; what keeps to 10 is slower, and wins all the same."""
    result = tune(MeteredRunner(), "power_w=10")
    assert result.default_breaks == "power_w 12.5 > 10"
    assert result.winner.config == config(work=8)
    assert result.verified
    assert result.explanation == "within limits that the default violates"
    slower = tune(MeteredRunner(), "power_w=2")
    assert slower.winner.ratio < 1
    assert slower.verified


@pytest.mark.usefixtures("metered")
def test_tune_problem_nothing_within_limits_raises():
    with pytest.raises(MeasurementError) as error:
        tune(MeteredRunner(), "power_w=1", "time_ms=1000", budget=10)
    assert str(error.value) == (
        "none of 10 measured configurations is within power_w ≤ 1, time_ms ≤ 1000, nor is the "
        "default (power_w 12.5 > 1): raise the limit or --budget"
    )


@pytest.mark.usefixtures("metered")
def test_finalist_above_limit_in_new_runs_is_rejected():
    """Every configuration is below the cap once, in the search, and above it afterwards."""

    class Lucky(MeteredRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            for c in configs:
                again = (problem, c) in self.measured
                (m,) = super().run(kernel, problem, [c], incumbent_ms)
                if c["work"] == 2:
                    m = dataclasses.replace(m, power_w=60.0 if again else 49.0)
                yield m

    result = tune(Lucky(), "power_w=50")
    assert result.winner.config == config(work=4)
    assert config(work=2) not in [c.config for c in result.contenders]


@pytest.mark.usefixtures("metered")
def test_run_without_power_is_rejected_by_limit():
    class Gaps(MeteredRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            for m in super().run(kernel, problem, configs, incumbent_ms):
                missed = m.config["work"] == 2
                yield dataclasses.replace(m, power_w=math.nan) if missed else m

    assert tune(Gaps(), "power_w=50").winner.config == config(work=4)


class ReportsMemory(FakeRunner):
    """A kernel's compiled code says what it takes; twice as much per step of work saved."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            yield dataclasses.replace(m, static={"shared_bytes": 65536.0 / m.config["work"]})


def test_limit_of_static_column_needs_no_meter():
    result = tune(ReportsMemory(), "static.shared_bytes=20000")
    assert result.winner.config == config(work=4)
    assert result.library is not None
    alone = tune_problem(KERNEL, PROBLEM, ReportsMemory(), limits="static.shared_bytes=20000")
    assert alone.winner.config == config(work=4), "one limit needs no list"


def test_limit_of_missing_column_raises_at_first_run():
    runner = ReportsMemory()
    with pytest.raises(UsageError, match=r"they have time_ms, static.shared_bytes"):
        tune(runner, "static.registers=64")
    assert len(runner.measured) == 1


def test_power_limit_without_meter_raises():
    with pytest.raises(MeterUnavailable, match="limit 'power_w' needs a power meter: no meter"):
        tune(FakeRunner(Device("x", "abacus")), "power_w=300")


def test_limit_of_relative_error():
    """Here one order of summation rounds, within the kernel's tolerance and beyond the limit."""

    class Rounds(Toy):
        def space(self, problem):
            return SearchSpace.from_configs([config(order="ab"), config(order="ba")])

        def build(self, problem, config, inputs):
            launch = super().build(problem, config, inputs)
            off = 1e-5 if config["order"] == "ab" else 1e-7
            return lambda: launch() * (1 + off)

    runner = InProcessRunner(DEVICE, Timing(max_seconds=0.01, warmup_s=0.001), power=False)
    runs = runner.run(Rounds(), PROBLEM, Rounds().space(PROBLEM))
    assert [m.relative_error for m in runs] == pytest.approx([1e-5, 1e-7], rel=1e-3)
    limits = [Limit("relative_error", 1e-6)]
    how = {"budget": 4, "searcher": "exhaustive", "verify_s": 0.1}
    result = tune_problem(Rounds(), PROBLEM, runner, limits=limits, **how)
    assert [s.status for s in result.trace] == [REJECTED, "ok"]
    assert result.default_breaks == "relative_error 1e-05 > 1e-06"
    assert result.winner.config == config(order="ba")


@pytest.mark.usefixtures("metered")
def test_stored_row_without_limited_column_is_measured_again(tmp_path):
    """Of what was logged without a meter, failures say enough."""
    first = FakeRunner()
    again = MeteredRunner()
    known = MeteredRunner()
    with RunLog(tmp_path / "runs.parquet", DEVICE) as log:
        for runner, limits in ((first, []), (again, ["power_w=50"]), (known, ["power_w=50"])):
            tune(runner, *limits, log=log, store=False, budget=10)
    worked = [(p, c) for p, c in first.measured if c["behaviour"] == "ok"]
    assert 0 < len(worked) < 10
    assert again.measured[: len(worked)] == worked
    assert known.measured == again.measured[len(worked) :]


def test_prior_includes_probability_of_limit(metered_predictor):
    space = KERNEL.space(PROBLEM)
    limits = [Limit("power_w", 50.0)]
    free, capped = (
        prior_from_predictor(metered_predictor, PROBLEM, space, DEVICE, Objective.TIME, limits=some)
        for some in ((), limits)
    )
    power = np.array([power_w(c) for c in space])
    assert (capped.log_mean == free.log_mean).all()
    assert (capped.p_valid <= free.p_valid).all()
    assert capped.p_valid[power > 50].max() < 0.01
    assert capped.p_valid[power < 50] == pytest.approx(free.p_valid[power < 50], abs=0.01)


@pytest.mark.usefixtures("metered")
def test_predicted_violations_are_not_measured(metered_predictor):
    how = {"budget": 3, "predictor": metered_predictor, "searcher": "surrogate", "store": False}
    result = tune(MeteredRunner(), "power_w=50", **how)
    assert result.winner.config == config(work=2) == result.trace[0].config
    assert REJECTED not in [s.status for s in result.trace]
    assert tune(MeteredRunner(), **how).trace[0].config == config()


@pytest.mark.usefixtures("metered")
def test_limits_are_checked_after_waiting_for_idle_machine(monkeypatch):
    events = []
    monkeypatch.setattr(job.TuningJob, "wait_until_idle", lambda self: events.append("wait"))

    class Noting(MeteredRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            is_limit_check = len(configs) == tuner.LIMIT_CHECK_RUNS
            events.append("limit check" if is_limit_check else "search")
            return super().run(kernel, problem, configs, incumbent_ms)

    tune(Noting(), "power_w=50", budget=2)

    assert events.index("limit check") > len(events) - 1 - events[::-1].index("wait")
