"""Tasks in the schema of FlashInfer Trace."""

import json

import pytest

pytest.importorskip("torch")

from foretune.problem import Problem
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.task import TaskError

DEFINITION = {
    "name": "scaled_rows_d8",
    "op_type": "rows",
    "axes": {"n": {"type": "var"}, "d": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["n", "d"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["n", "d"], "dtype": "float32"},
        "sums": {"shape": ["n"], "dtype": "float32"},
    },
    "reference": "def run(x, factor):\n    y = x * factor\n    return y, y.sum(dim=1)\n",
}
WRITES = """
import torch
from helpers import scale

def run(x, factor, y, sums):
    scale(x, factor, y)
    torch.sum(y, dim=1, out=sums)
"""
HELPERS = "import torch\n\ndef scale(x, factor, y):\n    torch.mul(x, factor, out=y)\n"
SOLUTION = {
    "name": "in_place",
    "definition": "scaled_rows_d8",
    "author": "somebody",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "destination_passing_style": True,
    },
    "sources": [{"path": "main.py", "content": WRITES}, {"path": "helpers.py", "content": HELPERS}],
}
RETURNS = "def run(x, factor):\n    return {'sums': (x * factor).sum(dim=1), 'y': x * factor}\n"


def workload(n, name="w", **inputs):
    inputs = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 3.0}, **inputs}
    record = {"axes": {"n": n}, "inputs": inputs, "uuid": f"{name}{n}"}
    return json.dumps({"definition": "scaled_rows_d8", "workload": record, "solution": None})


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "definitions/rows/scaled.json", DEFINITION)
    write(tmp_path / "solutions/rows/in_place.json", SOLUTION)
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads/scaled.jsonl").write_text(f"{workload(4)}\n{workload(6)}\n")
    return tmp_path


def write(file, record):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def changed(record, **changes):
    return {**record, **changes}


def with_spec(solution=SOLUTION, **changes):
    return changed(solution, spec={**solution["spec"], **changes})


def test_solution_that_writes_its_outputs_is_accepted(folder, judge_folder):
    verdict = judge_folder(folder)
    assert verdict.accepted, verdict.refused
    assert [r.problem for r in verdict.problem_verdicts] == [{"n": 4}, {"n": 6}]


def test_solution_that_returns_outputs_by_name_is_accepted(folder, judge_folder):
    solution = with_spec(destination_passing_style=False)
    solution["sources"] = [{"path": "main.py", "content": RETURNS}]
    write(folder / "solutions/rows/in_place.json", solution)
    verdict = judge_folder(folder)
    assert verdict.accepted, verdict.refused


def test_wrong_solution_is_refused(folder, judge_folder):
    wrong = [{"path": "main.py", "content": WRITES.replace("factor, y)", "3.01, y)")}]
    write(
        folder / "solutions/rows/in_place.json",
        changed(SOLUTION, sources=wrong + SOLUTION["sources"][1:]),
    )
    assert "wrong" in judge_folder(folder).refused


def test_scalar_inputs_have_the_value_of_the_workload(folder):
    with read_task(folder) as task:
        x, factor = task.inputs(seed=1, n=4)
        again, _ = task.inputs(seed=1, n=4)
        other, _ = task.inputs(seed=2, n=4)
    assert factor == 3.0
    assert x.shape == (4, 8)
    assert bool((x == again).all())
    assert not bool((x == other).any())


def test_stored_inputs_are_read(folder):
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    safetensors.save_file({"a": torch.full((4, 8), 2.0)}, folder / "x.safetensors")
    stored = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "a"}
    (folder / "workloads/scaled.jsonl").write_text(workload(4, x=stored))
    with read_task(folder) as task:
        x, _ = task.inputs(seed=1, n=4)
        assert folder / "x.safetensors" in task.files
    assert bool((x == 2.0).all())


def test_stored_inputs_that_are_missing_are_refused(folder):
    stored = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "a"}
    (folder / "workloads/scaled.jsonl").write_text(workload(4, x=stored))
    with pytest.raises(TaskError, match=r"x\.safetensors, which is not there"), read_task(folder):
        pass


def test_workloads_that_are_no_text_are_refused(folder):
    (folder / "workloads/scaled.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="cannot be read as text"), read_task(folder):
        pass


def test_workloads_of_equal_sizes_are_told_apart(folder):
    lines = [workload(4, "a"), workload(4, "b", factor={"type": "scalar", "value": 5.0})]
    (folder / "workloads/scaled.jsonl").write_text("\n".join(lines))
    with read_task(folder) as task:
        factors = [task.inputs(seed=1, **problem)[1] for problem in task.problems]
    assert factors == [3.0, 5.0]


def test_given_problems_replace_the_workloads(folder):
    with read_task(folder, [Problem(n=9)]) as task:
        x, _ = task.inputs(seed=1, n=9)
    assert x.shape == (9, 8)
    with pytest.raises(TaskError, match="variable axes n"), read_task(folder, [Problem(m=9)]):
        pass


def test_random_values_that_break_a_constraint_are_refused(folder):
    write(
        folder / "definitions/rows/scaled.json",
        changed(DEFINITION, constraints=["n == x[-1].item()"]),
    )
    with pytest.raises(TaskError, match="random values of x"), read_task(folder):
        pass


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        (with_spec(language="cuda"), "written in cuda"),
        (with_spec(entry_point="other.py::run"), "none of its sources"),
        (changed(SOLUTION, definition="unknown"), "has no definition"),
        (
            changed(
                SOLUTION, sources=[*SOLUTION["sources"], {"path": "../a.py", "content": "a = 1"}]
            ),
            "outside",
        ),
        ({k: v for k, v in SOLUTION.items() if k != "spec"}, "no solution"),
    ],
)
def test_solution_that_cannot_be_judged_is_refused(folder, solution, reason):
    write(folder / "solutions/rows/in_place.json", solution)
    with pytest.raises(TaskError, match=reason), read_task(folder):
        pass


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (changed(DEFINITION, axes={"d": {"type": "const", "value": 8}}), "not defined"),
        (changed(DEFINITION, axes={**DEFINITION["axes"], "k": {"type": "expr"}}), "const and var"),
        ({k: v for k, v in DEFINITION.items() if k != "outputs"}, "outputs"),
    ],
)
def test_incomplete_definition_is_refused(folder, definition, reason):
    write(folder / "definitions/rows/scaled.json", definition)
    with pytest.raises(TaskError, match=reason), read_task(folder):
        pass


def test_several_solutions_need_a_name(folder):
    write(folder / "solutions/rows/other.json", changed(SOLUTION, name="other"))
    with pytest.raises(TaskError, match="--solution"), read_task(folder):
        pass
    with read_task(folder, solution="other") as task:
        assert task.form == "flashinfer-trace"


def test_damaged_workload_names_its_line(folder):
    (folder / "workloads/scaled.jsonl").write_text(f"{workload(4)}\n{{\n")
    with pytest.raises(TaskError, match="line 2"), read_task(folder):
        pass
