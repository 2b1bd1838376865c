"""Tasks in the schema of FlashInfer Trace: `tune/tasks/flashinfer_trace.py`."""

import pytest
from trace_sets import DEFINITION, SOLUTION, WRITES, changed, with_source

pytest.importorskip("torch")

from foretune.problem import Problem
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.task import TaskError


def test_trace_task_correct_solution_is_accepted(trace_set, judge_folder):
    verdict = judge_folder(trace_set.folder)
    assert verdict.accepted, verdict.refused
    assert [r.problem for r in verdict.problem_verdicts] == [{"n": 4}, {"n": 6}]


def test_trace_task_wrong_solution_is_refused(trace_set, judge_folder):
    trace_set.write_solution(with_source(WRITES.replace("factor, y)", "3.01, y)")))
    assert "wrong" in judge_folder(trace_set.folder).refused


def test_trace_task_given_problems_replace_the_workloads(trace_set):
    with read_task(trace_set.folder, [Problem(n=9)]) as task:
        x, _ = task.inputs(seed=1, n=9)
    assert x.shape == (9, 8)
    assert trace_set.workloads not in task.files


def test_trace_task_given_problem_of_other_axes_is_refused(trace_set):
    with (
        pytest.raises(TaskError, match="variable axes n"),
        read_task(trace_set.folder, [Problem(m=9)]),
    ):
        pass


def test_trace_task_without_workloads_asks_for_sizes(trace_set):
    trace_set.write_workloads()
    with pytest.raises(TaskError, match="add --problem n=…"), read_task(trace_set.folder):
        pass


def test_trace_task_random_values_that_break_a_constraint_are_refused(trace_set):
    trace_set.write_definition(changed(DEFINITION, constraints=["n == x[-1].item()"]))
    with pytest.raises(TaskError, match="random values of x"), read_task(trace_set.folder):
        pass


def test_trace_task_missing_stored_inputs_are_refused(trace_set, stored_workload):
    trace_set.write_workloads(stored_workload)
    with (
        pytest.raises(TaskError, match=r"x\.safetensors, which is not there"),
        read_task(trace_set.folder),
    ):
        pass


def test_find_trace_several_solutions_need_a_name(trace_set):
    trace_set.write_solution(changed(SOLUTION, name="other"), file="other.json")
    with pytest.raises(TaskError, match="--solution"), read_task(trace_set.folder):
        pass
    with read_task(trace_set.folder, solution="other") as task:
        assert task.form == "flashinfer-trace"


def test_find_trace_solution_without_definition_is_refused(trace_set):
    trace_set.write_solution(changed(SOLUTION, definition="unknown"))
    with pytest.raises(TaskError, match="has no definition"), read_task(trace_set.folder):
        pass
