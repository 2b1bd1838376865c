"""What counts as the same work: `foretune/support/identity.py`."""

import collections
import contextvars
import dataclasses
import enum
import functools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from foretune.support import files_named
from foretune.support.identity import explain_unreadable, identify

CONFIG = {"size": 64}


class Mode(enum.Enum):
    EVEN = 1
    ODD = 2


@dataclasses.dataclass
class Options:
    size: int
    share: float = 0.5


class Job:
    def __init__(self, data, size=3):
        self.data = data
        self.size = size

    def run(self, n=1):
        return self.data[: self.size * n]


def closure(data):
    def work(n=1):
        return data[:n]

    return work


def reads_global(n=1):
    return CONFIG["size"] * n


def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) * factor

        return wrapper

    return decorate


def plain(x, n=1):
    return x * n


class Count(int):
    pass


class Slotted:
    __slots__ = ("__size",)

    def __init__(self, size):
        self.__size = size


class Measured(np.ndarray):
    pass


def with_unit(unit):
    array = np.zeros(3).view(Measured)
    array.unit = unit
    return array


def read_only(array):
    array.setflags(write=False)
    return array


def with_wide_indices(matrix):
    matrix.indices = matrix.indices.astype(np.int64)
    return matrix


def categories(labels, ordered=False):
    return pd.Series(pd.Categorical(["a"], categories=labels, ordered=ordered))


def dated(step):
    return pd.DataFrame({"v": [1.0, 2.0]}, index=pd.date_range("2020", periods=2, freq=step))


def levels(count):
    return pd.MultiIndex.from_tuples([(1,) * count])


def same(one, other):
    return identify(one).digest == identify(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closure(np.ones(3)), closure(np.ones(4))),
        (closure(np.ones(3)), closure(np.ones(3, int))),
        (closure([1]), closure([2])),
        (closure({"a": 1}), closure({"b": 1})),
        (closure(Mode.EVEN), closure(Mode.ODD)),
        (Job(np.ones(3)).run, Job(np.ones(4)).run),
        (Job(0, size=3).run, Job(0, size=4).run),
        (functools.partial(plain, np.ones(3)), functools.partial(plain, np.ones(4))),
        (functools.partial(plain, 1), functools.partial(plain, n=1)),
        (scaled(1)(plain), scaled(2)(plain)),
        (scaled(1)(plain), plain),
        (functools.lru_cache(plain), functools.lru_cache(closure)),
        (Options(1), Options(2)),
        (Options(1, 0.5), Options(1, 0.25)),
        (Options, Job),
        (pathlib.Path("a"), pathlib.Path("b")),
        (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
        (collections.Counter("aab"), collections.Counter("abb")),
        (collections.deque([1]), collections.deque([2])),
        (slice(1), slice(2)),
        (np.dtype("f4"), np.dtype("f8")),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1.0]})),
        (np.array([1, None]), np.array([2, None])),
        (lambda x: x + 1, lambda x: x + 2),
        (1, True),
        (1, "1"),
        ([1], (1,)),
        ("".join, " ".join),
        (Count(3), Count(4)),
        (Slotted(1), Slotted(2)),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        ({"a": 1}.keys(), {"b": 1}.keys()),
        (memoryview(bytearray(8)), memoryview(bytes(8))),
        (memoryview(bytearray(8)), memoryview(bytearray(16))[::2]),
        (np.zeros(3), read_only(np.zeros(3))),
        (np.zeros(3), np.frombuffer(bytearray(25), offset=1)),
        (with_unit("m"), with_unit("km")),
        (sparse.csr_array(np.eye(3)), with_wide_indices(sparse.csr_array(np.eye(3)))),
        (np.random.Generator(np.random.PCG64()), np.random.Generator(np.random.MT19937())),
        (contextvars.ContextVar("v", default=1), contextvars.ContextVar("v", default=2)),
        (pd.Series(["a"], dtype="category"), categories(["a", "b"])),
        (categories(["a", "b"]), categories(["a", "b"], ordered=True)),
        (dated("D"), dated("h")),
        (pd.DataFrame([[1.0]]), pd.DataFrame([[1.0]], columns=["0"])),
        (pd.DataFrame([[1.0]]), pd.DataFrame([[1.0]], index=["0"])),
        (pd.DataFrame([[1.0]], index=levels(2)), pd.DataFrame([[1.0]], index=levels(3))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_identify_tells_other_work_apart(one, other):
    assert not same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closure(np.ones(3)), closure(np.zeros(3))),
        (Job(np.ones(3)).run, Job(np.zeros(3)).run),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2}, {1, 2, 3}),
        (random.Random(1), random.Random(2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (Options(3), Options(3)),
        (threading.Lock(), threading.Lock()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_identify_equal_work_has_one_identity(one, other):
    assert same(one, other)


def test_identify_global_counts_as_it_is_now(monkeypatch):
    before = identify(reads_global).digest
    monkeypatch.setitem(CONFIG, "size", 63)
    assert identify(reads_global).digest != before


def test_identify_value_of_a_module_counts_as_it_is_now(monkeypatch):
    import toy_models

    def reads_module():
        return toy_models.__dict__, toy_models.LIMIT

    monkeypatch.setattr(toy_models, "LIMIT", [1], raising=False)
    before = identify(reads_module).digest
    toy_models.LIMIT.append(2)
    assert identify(reads_module).digest != before


def test_identify_object_that_contains_itself():
    one = Job(1)
    other = Job(2)
    for job in (one, other):
        job.me = job
    assert not same(one, other)
    assert same(one, one)


def test_identify_names_what_cannot_be_read(tmp_path):
    with (tmp_path / "x").open("w") as file:
        found = identify(closure(file), owner="work")
    assert found.unreadable == ("the closure variable 'data' (a TextIOWrapper)",)
    line = explain_unreadable("work", found.unreadable)
    assert line.startswith("results of work are not reused: the closure variable 'data'")
    assert line.endswith("identity=")


def test_identify_does_not_ask_objects_that_answer_to_any_name():
    class Proxy:
        def __getattr__(self, name):
            raise AssertionError(name)

    assert identify(Proxy()).unreadable == ()


def test_identify_deep_nesting_is_named_not_an_error():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in identify(deep).unreadable[0]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | st.text(), max_size=4)
        | st.builds(Options, st.integers(), inner)
    ),
    max_leaves=12,
)


@given(values, values)
def test_identify_differs_exactly_if_the_written_form_does(one, other):
    """`repr` of these values is complete, once sets and dicts are sorted."""
    assert same(one, other) == (written(one) == written(other))
    assert same(closure(one), closure(other)) == (written(one) == written(other))


def written(value):
    if isinstance(value, dict):
        return "dict", sorted((k, repr(written(v))) for k, v in value.items())
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return type(value).__name__, [written(part) for part in value]
    if isinstance(value, Options):
        return "Options", written(value.size), written(value.share)
    return type(value).__name__, repr(value)


SCRIPT = """
import enum, functools, json, sys
import numpy as np
from foretune.support.identity import identify

class Mode(enum.Enum):
    A = 1

def closure(data):
    return lambda n: data in {"x", "y", "z"} or {"p": n, "q": data}

made = [closure({"a", "b", "c"}), Mode.A, functools.partial(closure, frozenset("abc")),
        {"k": {"x", "y"}}, np.zeros((3, 4), order="F"), closure]
print(json.dumps([identify(value).digest for value in made]))
"""


def test_identify_is_equal_in_every_process(tmp_path):
    """Hashes of texts differ from process to process, and with them the order of sets."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    digests = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, check=True
        )
        digests.append(json.loads(done.stdout))
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(digests[0])


def reads_environment(x):
    return x if os.environ.get("FORETUNE_TEST_MODE") == "fast" else x + 1


CONTEXT = contextvars.ContextVar("context", default=0)


def reads_context(x):
    return x * CONTEXT.get()


def test_identify_environment_variable_that_code_names_counts(monkeypatch):
    digests = set()
    for value in ("fast", "slow", "fast"):
        monkeypatch.setenv("FORETUNE_TEST_MODE", value)
        digests.add(identify(reads_environment).digest)

    assert len(digests) == 2


def test_identify_context_variable_counts_by_value():
    one, other = (
        contextvars.Context().run(lambda value=value: (CONTEXT.set(value), identify(reads_context)))
        for value in (1, 2)
    )

    assert one[1].digest != other[1].digest
    assert one[1].unreadable == ()


def test_identify_conjugated_tensor_is_another_layout():
    torch = pytest.importorskip("torch")
    x = torch.zeros(3, dtype=torch.complex64)

    assert identify(x).digest != identify(x.conj()).digest


def test_large_file_changed_in_the_middle_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(files_named, "_WHOLE_BYTES", 4)
    path = tmp_path / "weights.bin"
    marks = set()
    for middle, time_ns in ((b"abcdef", 10**18), (b"ABCDEF", 2 * 10**18)):
        path.write_bytes(b"0123" + middle + b"6789")
        os.utime(path, ns=(time_ns, time_ns))
        marks.add(files_named.content_of_file_named(str(path)))
    assert len(marks) == 2
