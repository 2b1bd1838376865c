"""Tests names with values: equality, identity, parsing: `foretune.values`."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import FrozenParameters, counted, short_number

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
NAMED = st.dictionaries(st.text(min_size=1, max_size=6), VALUES, max_size=5)


@given(NAMED, st.randoms(use_true_random=False))
def test_parameters_equal_in_any_order(values, random):
    items = list(values.items())
    random.shuffle(items)
    one = FrozenParameters(values)
    other = FrozenParameters(dict(items))
    assert one == other
    assert hash(one) == hash(other)
    assert one.id == other.id


@given(NAMED, NAMED)
def test_id_equal_exactly_for_equal_values(a, b):
    assert (FrozenParameters(a) == FrozenParameters(b)) == (
        FrozenParameters(a).id == FrozenParameters(b).id
    )


@given(NAMED)
def test_configuration_pickled_keeps_values_types_and_id(values):
    original = Configuration(values)
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is Configuration
    assert (copy, hash(copy), copy.id) == (original, hash(original), original.id)
    assert [(k, type(v)) for k, v in copy.items()] == [(k, type(v)) for k, v in values.items()]


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), (0, False), (64, 64.0), (0.0, -0.0), (True, 1.0), (2**60, 2.0**60)]
)
def test_parameters_equal_if_values_are_equal_in_python(a, b):
    one = FrozenParameters(x=a)
    other = FrozenParameters(x=b)
    assert one == other
    assert hash(one) == hash(other)
    assert one.id == other.id


@pytest.mark.parametrize(("a", "b"), [(1, "1"), (True, "True"), (1, 2), (1.5, 1), (0.5, math.inf)])
def test_id_differs_for_different_values(a, b):
    assert FrozenParameters(x=a) != FrozenParameters(x=b)
    assert FrozenParameters(x=a).id != FrozenParameters(x=b).id


def test_id_of_value_from_column_with_gap_is_same():
    column = pd.Series([64, None])  # what pandas makes of an integer column with a gap
    assert Configuration(x=column[0]).id == Configuration(x=64).id


def test_problem_is_not_equal_to_configuration():
    assert Problem(M=1) != Configuration(M=1)
    assert Problem(M=1) == {"M": 1}
    assert Problem(M=1) == {"M": 1}
    assert Problem(M=1) != "M=1"


def test_id_is_same_in_every_process():
    code = "from foretune.problem import Problem; print(Problem(M=3, dtype='fp32', t=True).id)"
    ids = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert ids == {Problem(t=True, M=3, dtype="fp32").id}
    assert len(ids.pop()) == 16


def test_parameters_numpy_scalars_become_plain():
    values = FrozenParameters(
        i=np.int32(3), f=np.float32(0.5), b=np.bool_(True), s=np.str_("x"), z=np.array(7)
    )
    assert [type(v) for v in values.values()] == [int, float, bool, str, int]


@pytest.mark.parametrize("value", [None, [1], (1, 2), {"a": 1}, b"x", 1j, np.array([1]), pd.NA])
def test_parameters_refuse_other_values(value):
    with pytest.raises(UsageError, match=r"x=.*use a number, a boolean or a string"):
        FrozenParameters(x=value)


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), np.array(np.nan)])
def test_parameters_refuse_nan(value):
    with pytest.raises(UsageError, match="x is NaN"):
        FrozenParameters(x=value)


def test_parameters_are_immutable():
    source = {"x": 1}
    values = FrozenParameters(source)
    source["x"] = 2
    assert values["x"] == 1
    with pytest.raises(TypeError):
        values["x"] = 3
    with pytest.raises(AttributeError):
        values.y = 1


def test_parameters_keywords_override_mapping():
    assert FrozenParameters({"x": 1, "y": 2}, x=3) == {"x": 3, "y": 2}


def test_parse_reads_numbers_booleans_and_text():
    parsed = Problem.parse(" M=64, x=0.5 ,flag=true,off=False,dtype=bf16,big=1e3,neg=-2,")
    assert dict(parsed) == {
        "M": 64,
        "x": 0.5,
        "flag": True,
        "off": False,
        "dtype": "bf16",
        "big": 1000.0,
        "neg": -2,
    }
    assert type(parsed["flag"]) is bool
    assert type(parsed["M"]) is int
    assert type(parsed) is Problem
    assert Problem.parse("") == Problem()
    assert Problem.parse("path=a=b")["path"] == "a=b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M", "cannot read 'M': write NAME=VALUE"),
        ("M=", "cannot read 'M='"),
        ("=3", "cannot read '=3'"),
        ("M=1,M=2", "'M' is given twice"),
        ("M=nan", "M is NaN"),
    ],
)
def test_parse_malformed_text_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        Problem.parse(text)


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.sampled_from(["bf16", "row major"]),
)


@given(st.dictionaries(st.sampled_from(["M", "N", "dtype", "x_1"]), NUMBERS))
def test_parse_reads_what_str_writes(values):
    problem = Problem(values)
    assert Problem.parse(str(problem)) == problem


def test_counted_and_short_number_format_values():
    assert [counted(n, "leaf", "leaves") for n in (1, 2)] == ["1 leaf", "2 leaves"]
    assert [counted(n, "space") for n in (1, 1000)] == ["1 space", "1,000 spaces"]
    shown = [short_number(value) for value in (0.01234, 12.3, 999.7, 1024.0, math.inf)]
    assert shown == ["0.0123", "12.3", "1,000", "1,024", "inf"]
