"""Functions that return or write their outputs: `tune/tasks/flashinfer_code.py`."""

import shutil

import pytest
from trace_sets import WRITES, with_source

torch = pytest.importorskip("torch")

from foretune.errors import MeasurementError
from foretune.tune.tasks.folder import read_task

BY_NAME = "def run(x, factor):\n    return {'sums': (x * factor).sum(dim=1), 'y': x * factor}\n"
ALONE = "def run(x, factor):\n    return x * factor\n"


def outputs(trace_set, solution):
    """Return what the candidate and the reference make of the same inputs."""
    trace_set.write_solution(solution)
    with read_task(trace_set.folder) as task:
        problem = task.problems[0]
        inputs = task.inputs(seed=1, **problem)
        candidate = task.candidate.for_problem(problem)(*inputs)
        return candidate, task.reference.for_problem(problem)(*inputs)


@pytest.mark.usefixtures("fresh_modules")
@pytest.mark.parametrize(
    "solution",
    [with_source(WRITES), with_source(BY_NAME, destination_passing_style=False)],
    ids=["written", "returned by name"],
)
def test_trace_code_outputs_are_those_of_the_reference(trace_set, solution):
    candidate, reference = outputs(trace_set, solution)
    assert len(candidate) == len(reference) == 2
    for output, expected in zip(candidate, reference, strict=True):
        torch.testing.assert_close(output, expected)


@pytest.mark.usefixtures("fresh_modules")
def test_trace_code_missing_output_is_refused(trace_set):
    with pytest.raises(MeasurementError, match="returns 1 outputs instead of 2"):
        outputs(trace_set, with_source(ALONE, destination_passing_style=False))


BUILDS = """
import ctypes, subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
subprocess.run(
    ["g++", "-shared", "-fPIC", "-O1", "-o", FOLDER / "rows.so", FOLDER / "rows.cpp"], check=True
)
LIBRARY = ctypes.CDLL(str(FOLDER / "rows.so"))
LIBRARY.scale.argtypes = [ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, ctypes.c_long]

def run(x, factor, y, sums):
    LIBRARY.scale(x.data_ptr(), factor, y.data_ptr(), x.numel())
    sums.copy_(y.sum(dim=1))
"""
CPP = """
extern "C" void scale(const float* x, float factor, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = x[i] * factor;
}
"""


@pytest.mark.usefixtures("fresh_modules")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_trace_code_builds_its_cpp_in_a_python_source(trace_set):
    solution = with_source(BUILDS)
    solution["sources"] = [*solution["sources"], {"path": "rows.cpp", "content": CPP}]
    candidate, reference = outputs(trace_set, solution)
    for output, expected in zip(candidate, reference, strict=True):
        torch.testing.assert_close(output, expected)
