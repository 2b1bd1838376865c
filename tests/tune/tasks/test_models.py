"""Tasks written as Model and ModelNew."""

import pytest

pytest.importorskip("torch")

from foretune.problem import Problem
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.task import TaskError

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 3)

    def forward(self, x, factor):
        return torch.stack([self.linear(row) for row in x]) * factor

rows = 5
width = 4

def get_inputs():
    return [torch.rand(rows, width), 2.0]

def get_init_inputs():
    return [width]
"""
CANDIDATE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 3)

    def forward(self, x, factor):
        return {}
"""
RIGHT = "self.linear(x) * factor"


def folder_with(tmp_path, body, reference=TASK):
    (tmp_path / "task.py").write_text(reference)
    (tmp_path / "fast.py").write_text(CANDIDATE.format(body))
    return tmp_path


def test_models_with_equal_weights_are_accepted(tmp_path, judge_folder):
    verdict = judge_folder(folder_with(tmp_path, RIGHT), tolerance=1e-4)
    assert verdict.accepted, verdict.refused
    assert verdict.problem_verdicts[0].problem == {"rows": 5, "width": 4}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("self.linear(x) * 2.1", "wrong"),
        ("torch.zeros(5, 3)", "wrong"),
        ("self.linear(x)[:, :2] * factor", "shape"),
        ("(self.linear(x) * factor).double()", "float64"),
        ("[self.linear(x) * factor]", "list"),
        ("x.mul_(0) @ self.linear.weight.T", "argument"),
    ],
)
def test_wrong_models_are_refused(tmp_path, judge_folder, body, reason):
    verdict = judge_folder(folder_with(tmp_path, body))
    assert not verdict.accepted
    assert reason in verdict.refused


def test_problems_replace_the_constants(tmp_path, judge_folder):
    folder = folder_with(tmp_path, "(self.linear(x) if len(x) == 5 else x[:, :3]) * factor")
    assert judge_folder(folder, tolerance=1e-4).accepted
    verdict = judge_folder(folder, [Problem(rows=5), Problem(rows=7)], tolerance=1e-4)
    assert "rows=7" in verdict.refused


def test_unknown_size_is_refused_with_the_known_ones(tmp_path):
    with (
        pytest.raises(TaskError, match="its sizes are rows, width"),
        read_task(folder_with(tmp_path, RIGHT), [Problem(cols=3)]),
    ):
        pass


def test_gradients_are_judged_with_backward(tmp_path, judge_folder):
    no_gradient = folder_with(tmp_path, "self.linear(x.detach()) * factor")
    assert judge_folder(no_gradient, tolerance=1e-4).accepted
    assert not judge_folder(no_gradient, tolerance=1e-4, backward=True).accepted


def test_right_gradients_are_accepted(tmp_path, judge_folder):
    assert judge_folder(folder_with(tmp_path, RIGHT), tolerance=1e-3, backward=True).accepted


def test_one_file_may_have_both_models(tmp_path, judge_folder):
    candidate = CANDIDATE.format(RIGHT) + "\nModel.forward = None\nnn.Linear.forward = None\n"
    (tmp_path / "both.py").write_text(TASK + candidate)
    with read_task(tmp_path) as task:
        inputs = task.inputs(seed=1, **task.problems[0])
        outputs = task.reference.for_problem(task.problems[0])(*inputs)
    assert outputs.shape == (5, 3)


@pytest.mark.parametrize("change", ["rows = 6", "def get_inputs(): return []", "torch = None"])
def test_one_file_in_which_the_candidate_changes_the_task_is_refused(tmp_path, change):
    (tmp_path / "both.py").write_text(f"{TASK}\n{CANDIDATE.format(RIGHT)}\n{change}\n")
    with pytest.raises(TaskError, match="more than once"), read_task(tmp_path):
        pass


def test_folder_with_two_candidates_is_refused(tmp_path):
    folder = folder_with(tmp_path, RIGHT)
    (folder / "faster.py").write_text(CANDIDATE.format(RIGHT))
    with pytest.raises(TaskError, match=r"fast\.py, faster\.py"), read_task(folder):
        pass


def test_candidate_without_a_reference_is_refused(tmp_path):
    (tmp_path / "fast.py").write_text(CANDIDATE.format(RIGHT))
    with pytest.raises(TaskError, match=r"no file with Model and get_inputs"), read_task(tmp_path):
        pass


def test_inputs_that_take_sizes_as_parameters(tmp_path, judge_folder):
    task = TASK.replace("get_inputs()", "get_inputs(rows=5, width=4)").replace(
        "get_init_inputs()", "get_init_inputs(width=4)"
    )
    folder = folder_with(tmp_path, RIGHT, task)
    problems = [Problem(rows=2, width=6)]
    assert judge_folder(folder, problems, tolerance=1e-4).accepted
