"""Tuning all that a program calls, in Python and from the command line."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from commands import fails, run_json
from toy_kernel import DEVICE, FakeRunner, Toy, config

from foretune.cli import main
from foretune.collect import InProcessRunner, Timing
from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import UsageError
from foretune.tune import Calls, tune_workload, verifier
from foretune.tune.job import TuningJob
from foretune.tune.store import Store

KERNEL = Toy()


def test_tune_workload_verifies_every_problem_within_budget():
    workload = [Calls(KERNEL, KERNEL.problem(n=n), calls) for n, calls in ((100, 5.0), (400, 1.0))]
    runner = FakeRunner()
    result = tune_workload(workload, runner, budget=40, store=False)
    assert len(runner.measured) <= 40 + len(workload)
    assert all(r.verified and r.winner.config == config() for r in result.results)
    assert result.default == pytest.approx(8 * result.best)
    assert result.calls == (5.0, 1.0)


def test_tune_workload_repeated_problem_is_refused():
    calls = Calls(KERNEL, KERNEL.problem(n=100), 1.0)
    for workload in ([], [calls, calls]):
        with pytest.raises(UsageError, match="at least one problem, each of them once"):
            tune_workload(workload, FakeRunner(), store=False)


def test_tune_workload_idle_wait_is_not_search_time(monkeypatch, tmp_path):
    """By default, the verification of one problem may take as long as the search: two runs."""
    clock = SimpleNamespace(now=0.0)

    def wait(self):
        clock.now += 1000.0

    class SlowRunner(FakeRunner):
        def run(self, kernel, problem, configs, incumbent_ms=math.inf):
            for m in super().run(kernel, problem, configs, incumbent_ms):
                clock.now += 7.0
                yield m

    fake_time = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr("foretune.tune.workload.time", fake_time)
    monkeypatch.setattr(TuningJob, "wait_until_idle", wait)
    store = Store(tmp_path / "store.db")
    problem = KERNEL.problem(n=100)

    tune_workload([Calls(KERNEL, problem, 1.0)], SlowRunner(), budget=2, store=store)

    (subject,) = store.subjects()
    verification = store.choice(subject, problem).verification
    assert verification["allowed_s"] == 2 * 7.0


def test_functions_of_one_name_get_their_own_arguments(monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {2: 1.0})
    sizes = set()

    def total(x, block=1):
        sizes.add(len(x))
        return x.sum()

    kernels = [FunctionKernel(total, {"block": [1, 2]}, (np.ones(n),)) for n in (10, 20)]
    runner = InProcessRunner(DEVICE, Timing(max_seconds=0.01))
    workload = [Calls(kernel, kernel.problem(), 1.0) for kernel in kernels]
    result = tune_workload(workload, runner, budget=2, store=False, verify_s=0.01)
    assert sizes == {10, 20}
    assert all(step.status == "ok" for r in result.results for step in r.trace)


@pytest.mark.usefixtures("toy_place")
class TestCommand:
    @pytest.fixture(autouse=True)
    def _fake(self, monkeypatch, toy_place):
        monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda d, *_: FakeRunner(d))

    def test_read_calls(self, capsys, tmp_path):
        calls = tmp_path / "calls.csv"
        calls.write_text('kernel,problem,calls\ntoy,n=100,7\ntoy,"n=200,dtype=fp64",2\n')
        out = run_json(
            capsys, "tune", "--workload", str(calls), "--budget", "30", "--store", "none"
        )
        assert out["speedup"] == pytest.approx(out["default"] / out["best"])
        assert [p["calls"] for p in out["problems"]] == [7.0, 2.0]
        assert out["problems"][1]["problem"] == {"n": 200, "dtype": "fp64"}
        assert out["measurements"] <= 32

    def test_totals_have_a_unit(self, capsys, tmp_path):
        (tmp_path / "calls.csv").write_text("kernel,problem,calls\ntoy,n=100,7\n")
        arguments = ["tune", "--workload", str(tmp_path / "calls.csv"), "--budget", "3"]
        assert main([*arguments, "--store", "none"]) == 0
        assert " ms by default, " in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("kernel,problem\ntoy,n=100\n", "lacks calls"),
            ("", "lacks all lines"),
            ("kernel,problem,calls\ntoy,n=100,often\n", "line 2: give a kernel, and calls above 0"),
            ("kernel,problem,calls\n,n=100,3\n", "line 2: give a kernel"),
            ("kernel,problem,calls\nnone,n=100,3\n", "unknown kernel 'none'"),
        ],
    )
    def test_read_calls_damaged_file_is_one_line(self, capsys, tmp_path, text, says):
        calls = tmp_path / "calls.csv"
        calls.write_text(text)
        assert says in fails(capsys, 2, "tune", "--workload", str(calls))

    def test_tune_workload_refuses_other_options(self, capsys):
        arguments = ("tune", "toy", "--workload", "calls.csv", "--problem", "n=3")
        assert "a workload does not take problem" in fails(capsys, 2, *arguments)
