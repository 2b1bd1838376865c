"""What the tests of tasks share: the judge's workers are objects of this process."""

import sys
import tempfile

import pytest
from judged import SameProcess
from trace_sets import TraceSet, workload

from foretune.tune import judge as module


@pytest.fixture
def in_process(monkeypatch):
    """Judge in this process, with few rounds; a busy machine makes no honest code a liar."""
    monkeypatch.setattr(module, "WorkerProcess", SameProcess)
    monkeypatch.setattr(module, "LOOKS", {2: 1.0})
    monkeypatch.setattr(module, "BURST_S", 0.002)
    monkeypatch.setattr(module, "CLOCK_NOISE_MS", 5.0)


@pytest.fixture
def fresh_modules(tmp_path):
    """Forget the modules of a test's files: the next test has others of the same names."""
    path = list(sys.path)
    places = (f"{tempfile.gettempdir()}/foretune-task-", str(tmp_path))
    yield
    sys.path[:] = path
    for name in list(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(places):
            del sys.modules[name]


@pytest.fixture
def judge_folder(in_process, fresh_modules):
    """Return a function that judges a folder in this process."""
    from foretune.tune.judge import judge
    from foretune.tune.tasks.folder import read_task

    def judged(folder, problems=(), tolerance=None, **options):
        with read_task(folder, problems, **options) as task:
            return judge(
                task.candidate,
                task.reference,
                task.problems,
                inputs=task.inputs,
                tolerance=tolerance,
                session_s=0.02,
            )

    return judged


@pytest.fixture
def trace_set(tmp_path):
    """A set of FlashInfer Trace in a folder."""
    return TraceSet(tmp_path)


@pytest.fixture
def stored_workload():
    """A workload whose ``x`` is stored in ``x.safetensors``."""
    return workload(4, x={"type": "safetensors", "path": "x.safetensors", "tensor_key": "a"})
