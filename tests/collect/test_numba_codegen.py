"""Compiled code that the processes of a runner share."""

import subprocess
import sys

import pytest

from foretune.collect.kernels import numba_codegen as module
from foretune.collect.kernels.numba_codegen import BUILD_FOLDER, compile_function, function_source

pytest.importorskip("numba")


@pytest.fixture
def new_process(monkeypatch, tmp_path):
    """Return a function that forgets what this process compiled."""
    monkeypatch.setenv(BUILD_FOLDER, str(tmp_path))
    module._compile_function.cache_clear()
    yield module._compile_function.cache_clear
    module._compile_function.cache_clear()


def compiled(factor, **functions):
    inner = compile_function(function_source("inner", "x", [f"return {factor} * x"]), "inner")
    source = function_source("outer", "x", ["return inner(x) + 1.0"])
    return compile_function(source, "outer", inner=inner, **functions)


def test_another_process_loads_what_one_compiled(new_process):
    assert compiled(2.0)(3.0) == 7.0
    new_process()
    again = compiled(2.0)
    assert again(3.0) == 7.0
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses


def test_numba_cache_other_functions_in_scope_are_other_code(new_process):
    assert compiled(2.0)(3.0) == 7.0
    new_process()
    assert compiled(5.0)(3.0) == 16.0


def test_numba_cache_without_folder_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(BUILD_FOLDER, raising=False)
    module._compile_function.cache_clear()
    assert compiled(2.0)(3.0) == 7.0
    assert not list(tmp_path.iterdir())


PAIRS = """
import sys
from foretune.collect.kernels.numba_codegen import compile_function, function_source

for added in map(int, sys.argv[1:]):
    lines = ["s = x", *["s = s * x + x * s"] * 150, f"return s * 0.0 + {added}"]  # not inlined
    inner = compile_function(function_source("inner", "x", lines), "inner")
    body = f"def outer(x):\\n    return inner(x) + 0.0 * {added}\\n"
    print(compile_function(body, "outer", inner=inner)(0.5))
"""


def test_code_of_two_processes_calls_its_own_inner_function(tmp_path, monkeypatch):
    monkeypatch.setenv(BUILD_FOLDER, str(tmp_path))

    def run(*added):
        command = [sys.executable, "-c", PAIRS, *map(str, added)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        return [float(line) for line in found.stdout.split()]

    assert run(10) == [10.0]
    assert run(20, 10) == [20.0, 10.0]  # one is compiled, the other loaded: both are the first
