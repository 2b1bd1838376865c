"""Tasks written as reference.py and candidate.py."""

import pytest

from foretune.problem import Problem
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.task import TaskError

REFERENCE = """
import numpy as np

PROBLEMS = [{"rows": 20}, {"rows": 30}]

def inputs(rows, seed):
    return (np.random.default_rng(seed).random((rows, 8)),)

def sums(x):
    return np.array([row.sum() for row in x])
"""
CANDIDATE = "def sums(x):\n    return x.sum(axis=1)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    return tmp_path


def test_function_of_both_files_is_judged(folder, judge_folder):
    verdict = judge_folder(folder)
    assert verdict.accepted
    assert [r.problem for r in verdict.problem_verdicts] == [{"rows": 20}, {"rows": 30}]


@pytest.mark.parametrize(
    "candidate",
    [
        "def _sums(x):\n    return x.sum(axis=1)\n\nsums = _sums\n",
        "from theirs import sums\n",
        "sums = lambda x: x.sum(axis=1)\n",
    ],
)
def test_candidate_may_assign_or_import_the_function(folder, judge_folder, candidate):
    (folder / "theirs.py").write_text(CANDIDATE)
    (folder / "candidate.py").write_text(candidate)
    assert judge_folder(folder).accepted


def test_given_problems_replace_those_of_the_file(folder, judge_folder):
    verdict = judge_folder(folder, [Problem(rows=5)])
    assert [r.problem for r in verdict.problem_verdicts] == [{"rows": 5}]


def test_folder_without_problems_asks_for_them(folder):
    (folder / "reference.py").write_text(REFERENCE.replace("PROBLEMS", "OTHERS"))
    with pytest.raises(TaskError, match=r"--problem rows=…"), read_task(folder):
        pass


def test_problems_that_are_no_sizes_are_refused(folder):
    (folder / "reference.py").write_text(REFERENCE.replace('[{"rows": 20}, {"rows": 30}]', "[20]"))
    with pytest.raises(TaskError, match="no list of dictionaries"), read_task(folder):
        pass


def test_several_functions_of_one_name_ask_which(folder):
    for name in ("reference.py", "candidate.py"):
        with (folder / name).open("a") as file:
            file.write("\ndef means(x):\n    return x\n")
    with pytest.raises(TaskError, match="sums, means"), read_task(folder):
        pass


def test_folder_without_a_task_says_what_is_one(tmp_path):
    with pytest.raises(TaskError, match="has no task"), read_task(tmp_path):
        pass
    with pytest.raises(TaskError, match="there is no folder"), read_task(tmp_path / "nothing"):
        pass


@pytest.mark.parametrize("options", [{"backward": True}, {"solution": "a"}])
def test_options_of_other_forms_are_refused(folder, options):
    with pytest.raises(TaskError, match="--"), read_task(folder, **options):
        pass
