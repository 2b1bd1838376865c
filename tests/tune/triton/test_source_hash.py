"""The identity of a kernel's code: `tune/triton/source_hash.py`."""

import importlib.util

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from foretune.tune.triton.parameters import undecorated_kernel
from foretune.tune.triton.source_hash import source_hash

SOURCE = """
import triton
import triton.language as tl

SCALE: tl.constexpr = 2

@triton.jit
def inner(x):
    return x * SCALE

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x, inner(tl.load(x)) + tl.cdiv(BLOCK, 2))
"""


@pytest.fixture
def hash_of(tmp_path):
    count = iter(range(100))

    def of(text):
        path = tmp_path / f"module{next(count)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return source_hash(undecorated_kernel(module.kernel))

    return of


def test_source_hash_ignores_the_place_in_a_file(hash_of):
    assert hash_of(SOURCE) == hash_of("# a comment\n\n" + SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    tl.store", "    # a comment\n    tl.store"),
        ("    tl.store", '    """A docstring."""\n    tl.store'),
        (
            "@triton.jit\ndef kernel",
            "@triton.autotune([triton.Config({'BLOCK': 64})], key=[])\n@triton.jit\ndef kernel",
        ),
    ],
)
def test_source_hash_ignores_comments_docstrings_and_tuners(hash_of, old, new):
    assert old in SOURCE
    assert hash_of(SOURCE) == hash_of(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@triton.jit\ndef kernel", "@triton.jit(do_not_specialize=['x'])\ndef kernel"),
        ("inner(tl.load(x))", "inner(tl.load(x) + 1)"),
        ("return x * SCALE", "return x + SCALE"),  # of a function it calls
        ("= 2\n", "= 3\n"),  # of a constant that one uses
    ],
)
def test_source_hash_changes_with_code_and_all_it_uses(hash_of, old, new):
    assert old in SOURCE
    assert hash_of(SOURCE) != hash_of(SOURCE.replace(old, new))


def test_source_hash_of_a_recursive_function_ends():
    from types import SimpleNamespace

    def python():
        return python

    assert len(source_hash(SimpleNamespace(fn=python))) == 16
