"""Twenty tasks in each public form: `tests/tasks`. Each is read, and its candidate is correct."""

import os
from pathlib import Path

import pytest
from judged import ForkedProcess

torch = pytest.importorskip("torch")
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

from foretune.problem import Problem
from foretune.tune import judge as module
from foretune.tune.tasks.folder import read_task

TASKS = Path(__file__).parents[2] / "tasks"
NAMES = sorted(folder.name for folder in (TASKS / "functions").iterdir())
PROBLEMS = {"functions": (), "models": (Problem(rows=12), Problem(rows=9)), "traces": ()}
pytestmark = pytest.mark.filterwarnings("ignore")  # of special values


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    monkeypatch.setattr(module, "WorkerProcess", ForkedProcess)


def read(form, name):
    """Return the context of one task."""
    if form == "traces":
        return read_task(TASKS / form, solution=f"{name}_at_once")
    return read_task(TASKS / form / name, PROBLEMS[form])


def judge(task):
    return module.judge(
        task.candidate, task.reference, task.problems, inputs=task.inputs, check_only=True
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", PROBLEMS)
def test_task_of_public_form_is_accepted(form, name):
    with read(form, name) as task:
        assert [dict(problem) for problem in task.problems] == [{"rows": 12}, {"rows": 9}]
        verdict = judge(task)
    assert verdict.refused == ""


def test_there_are_twenty_tasks_of_each_form():
    assert len(NAMES) == 20
    assert sorted(folder.name for folder in (TASKS / "models").iterdir()) == NAMES
    definitions = (TASKS / "traces" / "definitions").rglob("*.json")
    assert sorted(file.stem for file in definitions) == NAMES


def test_loader_of_flashinfer_bench_reads_the_traces():
    data = pytest.importorskip("flashinfer_bench.data")
    traces = data.TraceSet.from_path(str(TASKS / "traces"))
    assert sorted(traces.definitions) == NAMES
    for name in NAMES:
        assert [solution.name for solution in traces.solutions[name]] == [f"{name}_at_once"]
        assert len(traces.workloads[name]) == 2
