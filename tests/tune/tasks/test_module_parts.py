"""Running a part of a file: what the wanted names need, and nothing else."""

import sys

import pytest

from foretune.tune.tasks.module_parts import ParsedModule, load_part
from foretune.tune.tasks.task import TaskError

FILE = """
from __future__ import annotations
import math
import json as unused
size = 8
twice = size * 2
kept = []
print("never printed")

class Model:
    half = twice / 4

def helper(x):
    return math.sqrt(x) + twice

def inputs():
    return helper(size)

math.sqrt = None
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "task.py").write_text(FILE)
    return tmp_path / "task.py"


def test_load_part_runs_only_what_is_needed(file, capsys):
    module = load_part(file, ("inputs",), {})
    assert module.inputs() == 8**0.5 + 16
    assert not hasattr(module, "Model")
    assert not hasattr(module, "unused")
    assert capsys.readouterr().out == ""


def test_load_part_replaces_constants_before_they_are_used(file):
    assert load_part(file, ("inputs",), {"size": 16}).inputs() == 4 + 32


def test_load_part_is_a_module_of_its_name(file):
    module = load_part(file, ("Model",), {})
    assert sys.modules[module.Model.__module__] is module
    assert module.Model.half == 4.0


def test_load_part_keeps_the_lines_of_the_file(file):
    module = load_part(file, ("helper",), {})
    line = FILE.splitlines().index("def helper(x):") + 1
    assert module.helper.__code__.co_firstlineno == line
    assert module.helper.__code__.co_filename == str(file)


def test_sizes_are_the_plain_constants_that_functions_read(file):
    assert ParsedModule(file).sizes(["inputs"]) == {"size": 8}
    assert ParsedModule(file).sizes(["Model"]) == {"size": 8}
    assert ParsedModule(file).sizes(["kept"]) == {}


@pytest.mark.parametrize(
    "statement", ["size = 9", "import os as math", "def helper(x): return 0", "twice += 1"]
)
def test_redefined_names_are_found(file, statement):
    file.write_text(FILE + statement + "\n")
    assert ParsedModule(file).redefined(["inputs"])


def test_repeated_imports_are_no_redefinition(file):
    file.write_text(FILE + "import math\n")
    assert ParsedModule(file).redefined(["inputs"]) == []


def test_file_that_is_no_python_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("def f(:\n")
    with pytest.raises(TaskError, match="cannot be read as Python"):
        ParsedModule(tmp_path / "a.py")
