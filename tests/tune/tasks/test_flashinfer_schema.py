"""Definitions, solutions and workloads in JSON: `tune/tasks/flashinfer_schema.py`."""

import json

import pytest
from trace_sets import DEFINITION, SOLUTION, changed, with_spec, without, workload

pytest.importorskip("torch")

from foretune.tune.tasks.flashinfer_schema import (
    read_definition,
    read_solution,
    read_workloads,
)
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.task import TaskError


@pytest.fixture
def definition(tmp_path):
    return read(read_definition, DEFINITION, tmp_path)


def read(reader, record, folder):
    """Write a record to a file, and read it."""
    file = folder / "record.json"
    file.write_text(json.dumps(record))
    return reader(file)


def test_read_definition_sizes_of_axes(definition):
    assert definition.axes == {"n": None, "d": 8}
    assert definition.variable_axes == ["n"]


def test_definition_shape(definition):
    assert definition.shape(definition.inputs["x"], {"n": 5}) == (5, 8)
    assert definition.shape(definition.inputs["factor"], {"n": 5}) == ()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(DEFINITION, axes={"d": {"type": "const", "value": 8}}), "not defined"),
        (changed(DEFINITION, axes={**DEFINITION["axes"], "k": {"type": "expr"}}), "const and var"),
        (without(DEFINITION, "outputs"), "outputs"),
    ],
    ids=["unknown axis", "unknown kind of axis", "no outputs"],
)
def test_read_definition_incomplete_is_refused(tmp_path, record, reason):
    with pytest.raises(TaskError, match=reason):
        read(read_definition, record, tmp_path)


def test_read_solution_entry_point(tmp_path):
    solution = read(read_solution, SOLUTION, tmp_path)
    assert (solution.file, solution.function) == ("main.py", "run")
    assert solution.writes_outputs


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (with_spec(language="cuda"), "written in cuda"),
        (with_spec(entry_point="other.py::run"), "none of its sources"),
        (
            changed(
                SOLUTION, sources=[*SOLUTION["sources"], {"path": "../a.py", "content": "a = 1"}]
            ),
            "outside",
        ),
        (without(SOLUTION, "spec"), "no complete solution"),
    ],
    ids=["language", "entry point", "path outside", "no spec"],
)
def test_read_solution_that_cannot_run_is_refused(tmp_path, record, reason):
    with pytest.raises(TaskError, match=reason):
        read(read_solution, record, tmp_path)


def test_is_solution_without_spec_is_none(trace_set):
    trace_set.write_solution(without(SOLUTION, "spec"))
    with pytest.raises(TaskError, match="has no solution"), read_task(trace_set.folder):
        pass


def test_read_workloads_last_line_of_a_name_counts(trace_set, definition):
    other_factor = {"type": "scalar", "value": 5.0}
    trace_set.write_workloads(workload(4), workload(6), workload(4, factor=other_factor))
    workloads = read_workloads(trace_set.workloads, definition)
    assert [w.axes for w in workloads] == [{"n": 4}, {"n": 6}]
    assert [w.scalars["factor"] for w in workloads] == [5.0, 3.0]


def test_read_workloads_of_other_definitions_are_left_out(trace_set, definition):
    trace_set.write_workloads(workload(4).replace("scaled_rows_d8", "other"))
    assert read_workloads(trace_set.workloads, definition) == []


def test_read_workloads_unknown_kind_of_input_is_refused(trace_set, definition):
    trace_set.write_workloads(workload(4, x={"type": "file"}))
    with pytest.raises(TaskError, match="'file': random, scalar, safetensors are known"):
        read_workloads(trace_set.workloads, definition)


def test_read_workloads_damaged_line_is_named(trace_set, definition):
    trace_set.write_workloads(workload(4), "{")
    with pytest.raises(TaskError, match="line 2"):
        read_workloads(trace_set.workloads, definition)


def test_read_workloads_binary_file_is_refused(trace_set, definition):
    trace_set.workloads.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="cannot be read as text"):
        read_workloads(trace_set.workloads, definition)
