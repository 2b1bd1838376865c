"""Tests kernels given as FILE.py:NAME or MODULE:NAME: `object_at` in `foretune.registry`."""

import sys

import pytest
from commands import run_json

from foretune import registry
from foretune.errors import ForetuneError, UsageError
from foretune.registry import get_kernel, load
from foretune.tune import verifier

FILE = """
import numpy as np
import foretune
from toy_kernel import Toy

class RowSums(Toy):
    name = "row_sums_of_a_file"

class Half(foretune.Kernel):
    name = "half"

class Sized(Toy):
    def __init__(self, size):
        self.size = size

def inputs(N=8):
    return (np.arange(N),)

@foretune.tunable(block=[1, 2], inputs=inputs)
def sums(x, block=1):
    return x.sum()

@foretune.tunable(block=[1, 2])
def inputless(x, block=1):
    return x.sum()

def plain(x):
    return x

made = RowSums()
number = 3
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "my_file.py").write_text(FILE)
    (tmp_path / "json.py").write_text(FILE)
    (tmp_path / "broken_file.py").write_text("1 / 0")
    (tmp_path / "asking.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    registry.reset()
    yield
    registry.reset()
    for name in ("my_file", "broken_file", "asking"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("place", ["my_file.py:RowSums", "my_file:RowSums", "my_file.py:made"])
def test_get_kernel_takes_class_or_object_of_file(place):
    kernel = get_kernel(place)
    assert type(kernel).__name__ == "RowSums"
    assert load("kernels", kernel.name) is type(kernel), "its runs are understood, too"


def test_get_kernel_takes_tunable_function_of_file():
    kernel = get_kernel("my_file.py:sums")
    assert kernel.problem(N=3) == {"N": 3}
    assert len(kernel.space(kernel.problem())) == 2


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("my_file.py:Rowsums", "did you mean 'RowSums'"),
        ("my_file.py", r"is a file: give .*my_file\.py:RowSums"),
        ("my_file.py:Half", "not a complete kernel: it lacks build, cost, default"),
        ("my_file.py:Sized", "cannot be made without arguments"),
        (
            "my_file.py:plain",
            r"without knobs: 'foretune tune my_file.py:plain --param",
        ),
        ("my_file.py:inputless", "has no inputs to make its arguments"),
        ("my_file.py:number", "of type int"),
        ("no_file.py:RowSums", r"no file no_file\.py: give FILE\.py:NAME"),
        ("no_module:RowSums", "no module no_module"),
        ("json.py:RowSums", "has the name of another module: rename it"),
        ("csaxpy", r"or your own, FILE\.py:NAME"),
    ],
)
def test_get_kernel_refuses_what_is_no_kernel(place, message):
    with pytest.raises(UsageError, match=message):
        get_kernel(place)


@pytest.mark.parametrize(
    ("place", "message"),
    [("broken_file.py:x", "ZeroDivisionError"), ("asking.py:x", "No module named 'nothing_of_th")],
)
def test_get_kernel_failing_code_gives_reason(place, message):
    with pytest.raises(ForetuneError, match=message):
        get_kernel(place)


@pytest.mark.usefixtures("toy_place")
def test_tune_takes_tunable_function_of_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {1: 1.0})
    out = run_json(
        capsys, "tune", str(tmp_path / "my_file.py:sums"), "--problem", "N=64", "--budget", "2"
    )
    assert len(out["trace"]) == 2
