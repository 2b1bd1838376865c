"""The identity of a kernel's code: `tune/triton/source_hash.py`."""

import importlib.util

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton

from foretune.errors import ForetuneWarning
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.parameters import undecorated_kernel
from foretune.tune.triton.source_hash import decorated_hash, source_hash

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


@pytest.mark.parametrize(
    "signature", ["x, BLOCK: tl.constexpr = SIZE", "x, *, BLOCK: tl.constexpr = 2 * SIZE"]
)
def test_source_hash_changes_with_a_default_that_is_a_name(hash_of, signature):
    kernel = SOURCE.replace("x, BLOCK: tl.constexpr", signature)
    one, other = (hash_of(f"SIZE = {size}\n{kernel}") for size in (64, 128))
    assert one != other
    literal = SOURCE.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 64")
    assert hash_of(literal) not in (one, other)


@pytest.mark.parametrize("constant", ["tl.constexpr((2, 3))", "tl.constexpr(tl.float16)"])
def test_source_hash_changes_with_constants_of_any_kind(hash_of, constant):
    text = SOURCE.replace("tl.constexpr = 2", f"tl.constexpr = {constant}")
    other = text.replace("(2, 3)", "(2, 4)").replace("float16", "float32")

    assert text != other
    assert hash_of(text) != hash_of(other)


@pytest.fixture
def kernel(hash_of, tmp_path):
    """Return Triton's kernel, from a file, because Triton reads the source."""
    hash_of(SOURCE)
    spec = importlib.util.spec_from_file_location("hooked", tmp_path / "module0.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def is_even(divisor):
    def even(arguments):
        return arguments["n"] % divisor == 0

    return even


def test_decorated_hash_without_heuristics_is_that_of_the_kernel(kernel):
    tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=[])(kernel)

    assert decorated_hash(tuned.fn) == source_hash(undecorated_kernel(kernel))


def test_decorated_hash_changes_with_heuristics(kernel):
    hashes = {
        decorated_hash(triton.heuristics({name: heuristic})(kernel))
        for name, heuristic in [
            ("BLOCK", is_even(2)),
            ("BLOCK", is_even(3)),
            ("OTHER", is_even(2)),
            ("BLOCK", lambda arguments: 64),
        ]
    }

    assert len(hashes) == 4


def test_decorated_hash_is_equal_for_equal_heuristics(kernel):
    one, other = (triton.heuristics({"BLOCK": is_even(2)})(kernel) for _ in range(2))

    assert decorated_hash(one) == decorated_hash(other)


def test_decorated_hash_changes_with_the_tuner_s_hook(kernel):
    assert decorated_hash(kernel, is_even(2)) != decorated_hash(kernel, is_even(3))
    assert decorated_hash(kernel, is_even(2)) != decorated_hash(kernel)


def fill(number):
    def hook(arguments):
        arguments["x"].fill_(number)

    return hook


def test_to_configuration_tells_hooks_of_a_factory_apart():
    one, again, other = (
        to_configuration(triton.Config({}, pre_hook=fill(number))) for number in (1, 1, 2)
    )

    assert one == again
    assert one != other


def test_to_configuration_tells_lambdas_apart():
    hooks = [lambda a: a["x"].zero_(), lambda a: a["x"].fill_(1)]
    one, other = (to_configuration(triton.Config({}, pre_hook=hook)) for hook in hooks)

    assert one != other


def test_to_configuration_warns_of_a_hook_that_cannot_be_read(tmp_path):
    with (tmp_path / "log").open("w") as log:
        config = triton.Config({}, pre_hook=lambda arguments: log.write("called"))
        with pytest.warns(ForetuneWarning, match="variable 'log' .* cannot be read"):
            first = to_configuration(config)

        assert to_configuration(config) == first


READING = """
import enum
import sys
import types

import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate
from triton.language.extra import libdevice

OTHERS = types.ModuleType("others")
OTHERS.Options = type("Options", (), {{"SIZE": tl.constexpr({number})}})
OTHERS.inner = types.ModuleType("triton_of_a_user")
OTHERS.inner.SIZE = tl.constexpr({number})
SIZES = tl.constexpr({{"small": {number}}})
PAIR = (tl.constexpr({number}), tl.constexpr(0))
Kind = enum.Enum("Kind", {{"ONE": {number}}})
KIND = tl.constexpr(Kind.ONE)
MAYBE = tl.constexpr({maybe})
function = {function}

def plain(x):
    return x + {number}

@triton.constexpr_function
def evaluated(x):
    return plain(x)

@aggregate
class Pair:
    left: tl.tensor

    @triton.jit
    def sum(self):
        return self.left + {number}

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    {read}
"""
FIRST = {"number": 1, "maybe": None, "function": "tl.exp"}


@pytest.mark.parametrize(
    ("read", "changed"),
    [
        ("OTHERS.Options.SIZE", {"number": 2}),
        ("OTHERS.inner.SIZE", {"number": 2}),
        ("SIZES['small']", {"number": 2}),
        ("PAIR[0]", {"number": 2}),
        ("KIND", {"number": 2}),
        ("MAYBE", {"maybe": 0}),
        ("function(x)", {"function": "tl.log"}),
        ("function(x)", {"function": "libdevice.exp"}),
        ("evaluated(1)", {"number": 2}),
        ("Pair(x).sum()", {"number": 2}),
    ],
)
def test_source_hash_is_that_of_all_that_the_code_reads(hash_of, read, changed):
    one = READING.format(**FIRST, read=read)
    assert hash_of(one) == hash_of(one)
    assert hash_of(one) != hash_of(READING.format(**{**FIRST, **changed}, read=read))
