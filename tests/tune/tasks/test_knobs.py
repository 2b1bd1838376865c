"""Candidates with knobs: tuned in a process of their own, then judged."""

import pytest

from foretune.errors import MeasurementError
from foretune.problem import Problem
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.knobs import TunedCode, may_have_knobs, tuned_task

REFERENCE = """
import numpy as np

PROBLEMS = [{"rows": 200}]

def inputs(rows, seed):
    return (np.random.default_rng(seed).random((rows, 8)),)

def sums(x):
    return x.sum(axis=1)
"""
CANDIDATE = """
import time
import numpy as np
from foretune import tunable

@tunable({"pause": (0.02, 0.0)})
def sums(x, pause=0.02):
    time.sleep(pause)
    return x.sum(axis=1)
"""
PLAIN = "def sums(x):\n    return x.sum(axis=1)\n"
DECORATED = "import functools\n\n@functools.cache\ndef sums(x):\n    return x.sum(axis=1)\n"


def folder_with(tmp_path, candidate):
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(candidate)
    return tmp_path


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "store.db"))


def test_tunable_candidate_is_tuned_before_it_is_judged(tmp_path):
    with read_task(folder_with(tmp_path, CANDIDATE)) as task:
        assert may_have_knobs(task)
        tuned = tuned_task(task, seconds=30.0)  # it ends when both values are measured
    assert isinstance(tuned.candidate, TunedCode)
    assert tuned.candidate.choices == ((Problem(rows=200), (("pause", 0.0),)),)


def test_plain_candidate_has_no_knobs(tmp_path):
    with read_task(folder_with(tmp_path, PLAIN)) as task:
        assert not may_have_knobs(task)


def test_other_decorators_are_no_knobs(tmp_path):
    with read_task(folder_with(tmp_path, DECORATED)) as task:
        assert may_have_knobs(task)
        assert tuned_task(task, seconds=1.0) is None


def test_candidate_that_cannot_be_tuned_says_why(tmp_path):
    broken = CANDIDATE.replace("(0.02, 0.0)", "()")
    with (
        read_task(folder_with(tmp_path, broken)) as task,
        pytest.raises(MeasurementError, match="tuning the candidate failed on rows=200"),
    ):
        tuned_task(task, seconds=1.0)
