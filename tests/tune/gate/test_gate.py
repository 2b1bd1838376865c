"""A whole gate on real processes, and its parts: `gate.py`, `session.py`, `outputs.py`."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from foretune.cli import main
from foretune.collect.power import PowerMeter
from foretune.errors import MeterUnavailable, UsageError
from foretune.tune.gate import gate as gate_module
from foretune.tune.gate.agent.output_data import to_data
from foretune.tune.gate.environment import ROLES, Environment, EnvironmentContents
from foretune.tune.gate.gate import GateOptions, run_gate
from foretune.tune.gate.outputs import describe_difference
from foretune.tune.gate.session import Suite, TurnPlan

PYTHON = Path(sys.executable)
WORK = """
from pathlib import Path

ROUNDS = int(Path("rounds.txt").read_text())


def bench_work():
    for _ in range(ROUNDS):
        sum(range(300))
    return ROUNDS


def bench_fails():
    if ROUNDS > 1:
        raise ValueError("too many rounds")
"""


@pytest.fixture
def folders(tmp_path):
    """Return the environments of a base, and of a head that works four times as long."""
    (tmp_path / "bench_it.py").write_text(WORK)
    environments = {}
    for role in ROLES:
        folder = tmp_path / role
        folder.mkdir()
        (folder / "rounds.txt").write_text("4" if role == "head" else "1")
        environments[role] = Environment(PYTHON, folder, role)
    return environments, Suite(dict.fromkeys(ROLES, str(tmp_path / "bench_it.py")))


def test_run_gate_slower_and_failing_head_is_red(folders):
    # Few sessions: the head's time is four times the base's.
    options = GateOptions(budget_s=1.0, looks={5: 1.0}, compares_outputs=True)
    seen = []
    result = run_gate(*folders, options, on_rounds=lambda name, metric, rounds: seen.append(name))
    words = {verdict.name: verdict.word for verdict in result.verdicts}
    assert words["bench_it.py::bench_fails"] == "fails"
    (work,) = [verdict for verdict in result.verdicts if verdict.name.endswith("work")]
    assert work.change > 1.0
    assert work.sessions >= 3, "whatever the budget"
    assert result.is_red
    assert (result.exit_code(), result.exit_code(strict=True)) == (1, 1)
    assert result.output_differences["bench_it.py::bench_work"].startswith("the output is 4")
    assert seen.count("bench_it.py::bench_work") == work.sessions
    assert len(result.to_frame()) == 2


class SteadyMeter(PowerMeter):
    """Meters a device that takes ten watts all the time."""

    name = "steady"
    device_kind = "cpu"

    def unavailable_because(self):
        return None

    def start(self):
        self.started_at = time.perf_counter()

    def stop(self):
        return 10.0 * (time.perf_counter() - self.started_at)


def test_run_gate_energy_of_a_head_that_works_longer_is_higher(folders, monkeypatch):
    monkeypatch.setattr(gate_module, "find_meter", lambda kind: SteadyMeter())
    options = GateOptions(budget_s=1.0, looks={5: 1.0}, metrics=("energy",), only=("bench_work",))
    (verdict,) = run_gate(*folders, options).verdicts
    assert verdict.change > 1.0
    assert "mJ" in verdict.values_text
    # A call of the base takes some microseconds, at ten watts.
    assert 1e-3 < verdict.base_value < 10.0


def test_run_gate_energy_without_a_meter_is_refused(folders, monkeypatch):
    monkeypatch.setattr(gate_module, "find_meter", lambda kind: None)
    with pytest.raises(MeterUnavailable, match="needs a power meter"):
        run_gate(*folders, GateOptions(metrics=("energy",)))


def test_run_gate_no_benchmark_is_refused(folders):
    environments, suite = folders
    options = GateOptions(budget_s=1.0, only=("sort",))
    with pytest.raises(UsageError, match="no benchmark's name contains 'sort', like bench_it"):
        run_gate(environments, suite, options)


def test_environment_contents_name_changes():
    base = EnvironmentContents("CPython 3.11.7", {"numpy": "2.0", "old": "1"}, {})
    head = replace(base, packages={"numpy": "2.1", "new": "3"})
    assert base.changes_to(head) == [
        "new not installed → 3",
        "numpy 2.0 → 2.1",
        "old 1 → not installed",
    ]


@pytest.mark.parametrize(
    ("call_ns", "bursts", "rounds"),
    [(25_000, 10, 32), (250_000, 1, 32), (1_000_000, 1, 32), (4_000_000, 1, 8), (50_000_000, 1, 4)],
)
def test_turn_plan_takes_about_as_long_for_all_short_calls(call_ns, bursts, rounds):
    plan = TurnPlan.of_count(1, call_ns)
    assert (plan.bursts, plan.rounds) == (bursts, rounds)


@pytest.mark.parametrize(
    ("head", "base", "difference"),
    [
        ([1, 2.0], [1, 2.0 + 1e-15], ""),
        ([1, 2.0], [1, 2.1], "is 2.0 instead of 2.1"),
        ((1,), [1], "instead of"),
        ({"a": 1}, {"b": 1}, "b"),
        (float("nan"), float("nan"), ""),
        (object(), object(), "it cannot be compared: object is neither numbers nor text"),
    ],
)
def test_describe_difference_of_outputs(head, base, difference):
    found = describe_difference(to_data(head), to_data(base))
    assert difference in found
    assert bool(found) == bool(difference)


def test_describe_difference_of_unreadable_answer():
    assert "cannot be read" in describe_difference({"array": "x"}, ["no node"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "what is compared"),
        (["a..b", "--base", "python"], "either BASE..HEAD, or --base and --head"),
        (["--base", "python"], "what is compared"),
        (["--base", "x.whl", "--head", "y.whl", "--bisect"], "--bisect needs GOOD..BAD"),
        (["--base", "x.whl", "--head", "y.whl", "--own", "x"], "--own needs BASE..HEAD"),
        (["a..b", "--own", "nowhere.py"], "there is no nowhere.py"),
        (["a..b", "--relevant", "2"], "0.02 is 2 %"),
        (["a..b", "--bisect", "--html", "x.html"], "leave --html out"),
        (["a..b", "--record", "x.csv"], "NAME.parquet"),
        (["a..b", "--command", "make && ./run"], "write the rest into a script"),
        (["a..b", "--command", "X=1 python run.py"], "write the rest into a script"),
        (["a..b", "--metric", "watts"], "--metric 'watts' is unknown"),
        (["--base", "nothing", "--head", "nothing", "--command", "true"], "no Python interpreter"),
    ],
)
def test_command_gate_refuses_by_name(words, message, capsys):
    assert main(["gate", *words]) == 2
    assert message in capsys.readouterr().err


def test_command_gate_of_two_interpreters(tmp_path, monkeypatch, capsys):
    """One interpreter, twice: the noise. The budget allows the fewest sessions only."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "bench_it.py").write_text("def bench_sum(): sum(range(100))")
    files = {name: tmp_path / f"out.{name}" for name in ("markdown", "junit", "html")}
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    table = tmp_path / "history.parquet"
    line = ["gate", "--base", sys.executable, "--head", sys.executable, "--budget", "0.1"]
    code = main([*line, *words, "--record", str(table), "--json"])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert code == (1 if result["red"] else 0)
    assert [row["benchmark"] for row in result["verdicts"]] == ["bench_it.py::bench_sum"]
    paths = (sys.executable, str(tmp_path))
    lines = [x for x in captured.err.splitlines() if not any(path in x for path in paths)]
    assert max(map(len, lines)) <= 80
    assert all(file.stat().st_size > 0 for file in files.values())
    assert table.exists()
