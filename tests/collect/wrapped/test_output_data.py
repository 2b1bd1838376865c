"""Outputs as data: what is compared after sending is what was compared before."""

import collections
import datetime
import decimal
import enum
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from wrong_functions import HONEST, WRONG, Pair, Statistics

from foretune.collect.answers import UnreadableAnswer, decode, encode
from foretune.collect.wrapped.call_arguments import Arguments, CallResult, FunctionLaunch
from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.output_comparison import ComparisonRules, output_error
from foretune.collect.wrapped.output_data import (
    NotSendable,
    describe,
    describe_result,
    has_stand_ins,
    restore,
    restore_result,
)
from foretune.errors import MeasurementError
from foretune.kernel import WrongResult

RULES = ComparisonRules()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Holder:
    def __init__(self, content):
        self.content = content


def sent(value):
    """Return a value as another process gets it."""
    return restore(decode(encode(describe(value))))


def difference(got, expected):
    """Return why two values differ; empty if they do not."""
    try:
        output_error(got, expected, RULES)
    except (WrongResult, MeasurementError) as e:
        return str(e)
    return ""


PAIRS = {
    "none": (None, 0),
    "number": (1.5, 1.5 + 1e-6),
    "large whole number": (2**80, 2**80 + 1),
    "NaN": (float("nan"), 1.0),
    "class of number": (1, True),
    "text": ("a\ud800", "b"),
    "bytes": (b"\0a", b"\0b"),
    "number of NumPy": (np.float32(1), np.float64(1)),
    "text of NumPy": (np.str_("a"), np.str_("b")),
    "list of numbers": ([1.0, 2.0], [1.0, 2.1]),
    "list of whole numbers": ([1, 2], [1, 3]),
    "list of large numbers": ([2**70], [2**70 + 1]),
    "list of booleans": ([True], [1]),
    "list or tuple": ([1.0], (1.0,)),
    "mixed list": ([1.0, "a", None], [1.0, "b", None]),
    "empty": ([], ()),
    "keys": ({"a": 1, 2: "b"}, {"a": 1, 2.0: "b"}),
    "keys of NumPy": ({np.int64(1): 2}, {1: 2}),
    "set": ({1, "a"}, {1, "b"}),
    "frozen set": (frozenset({1}), {1}),
    "named tuple": (Pair(1, 2), (1, 2)),
    "ordered dict": (
        collections.OrderedDict(a=1, b=2),
        collections.OrderedDict(b=2, a=1),
    ),
    "counter": (collections.Counter("aab"), collections.Counter("abb")),
    "deque": (collections.deque([1], 3), collections.deque([1], 4)),
    "enum": (Color.RED, Color.BLUE),
    "decimal": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "pattern": (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
    "class": (Color, Pair),
    "slice": (slice(1, 2), slice(1, 3)),
    "array": (np.arange(3.0), np.arange(3.0) + 1e-5),
    "type of number": (np.arange(3), np.arange(3, dtype=np.int32)),
    "byte order": (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "no elements": (np.zeros((0, 3)), np.zeros((0, 2))),
    "dates": (np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-01"] * 2, "M8[D]")),
    "objects": (np.array([1.0, "a", None], object), np.array([1.0, "b", None], object)),
    "record array": (np.zeros(1).view(np.recarray), np.zeros(1)),
    "fields": (
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    ),
    "mask": (
        np.ma.masked_array([1.0, 2.0], [False, True]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ),
    "fill value": (
        np.ma.masked_array([1.0], fill_value=5.0),
        np.ma.masked_array([1.0], fill_value=6.0),
    ),
    "sparse matrix": (sparse.csr_matrix(np.eye(3)), sparse.csr_matrix(2 * np.eye(3))),
    "sparse format": (sparse.csr_matrix(np.eye(3)), sparse.csc_matrix(np.eye(3))),
    "table": (pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": [1.0, 2.1]})),
    "column names": (pd.DataFrame({"a": [1.0]}), pd.DataFrame({"b": [1.0]})),
    "index": (pd.Series([1.0], index=[1]), pd.Series([1.0], index=[2])),
    "index of fractions": (pd.Series([1.0], index=[0.1]), pd.Series([1.0], index=[0.1 + 1e-12])),
    "index of texts": (pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])),
    "column of texts": (pd.Series(["a", None]), pd.Series(["b", None])),
    "categories": (
        pd.Series(["a"], dtype=pd.CategoricalDtype(["a", "b"])),
        pd.Series(["a"], dtype=pd.CategoricalDtype(["b", "a"])),
    ),
    "type of column": (pd.Series([1, 2]), pd.Series([1, 2], dtype="Int64")),
    "time stamp": (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")),
    "dataclass": (Statistics(1.0, np.zeros(2)), Statistics(1.0, np.ones(2))),
    "object": (Holder([1.0]), Holder([2.0])),
    "class of object": (Holder(1), Color.RED),
}
"""Equal to themselves, and different from each other."""


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_sent_values_differ_as_before(pair):
    one, other = pair
    assert difference(sent(one), sent(one)) == ""
    assert difference(one, other)
    assert difference(sent(one), sent(other))
    assert difference(sent(other), sent(one))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_function_is_refused_after_sending(name):
    function, arguments = WRONG[name]
    kernel = FunctionKernel(function, {"wrong": [0, 1]}, arguments)
    if has_other_values_only(name):
        pytest.skip("it is right for these arguments")

    try:
        output, expected = both_sent(kernel, function, arguments)
        error = kernel.relative_error(output, expected)
    except (WrongResult, MeasurementError):
        return
    assert not error <= kernel.error_limit(kernel.problem(), kernel.default(kernel.problem()))


@pytest.mark.parametrize("name", HONEST)
def test_honest_function_is_accepted_after_sending(name):
    function, arguments = HONEST[name]
    kernel = FunctionKernel(function, {"wrong": [0, 1]}, arguments)
    output, expected = both_sent(kernel, function, arguments)
    assert kernel.relative_error(output, expected) <= 1e-9 or name == "convolves_by_sums"


def has_other_values_only(name):
    """Whether a wrong function needs other arguments than the given ones to be wrong."""
    _, arguments = WRONG[name]
    kernel = FunctionKernel(WRONG[name][0], {"wrong": [0, 1]}, arguments)
    expected = kernel.reference({"args": arguments, "kwargs": {}})
    launch = FunctionLaunch(WRONG[name][0], {"wrong": 1}, Arguments(arguments, {}))
    try:
        kernel.invalidate_output(launch())
        return kernel.relative_error(launch(), expected) <= 1e-9
    except (WrongResult, MeasurementError):
        return False


def both_sent(kernel, function, arguments):
    np.random.seed(None)  # noqa: NPY002 - some functions set it
    launch = FunctionLaunch(function, {"wrong": 1}, Arguments(arguments, {}))
    kernel.invalidate_output(launch())
    output = describe_result(launch())
    expected = describe_result(kernel.reference({"args": arguments, "kwargs": {}}))
    return tuple(restore_result(decode(encode(described))) for described in (output, expected))


@pytest.mark.parametrize(
    "value",
    [
        (number for number in [1]),
        iter([1]),
        np.zeros(1, "V4"),
        {Holder(1): 1},
        np.array([Holder(open)], object),
    ],
    ids=["generator", "iterator", "bytes without type", "key", "function"],
)
def test_describe_refuses_what_is_no_data(value):
    with pytest.raises(NotSendable, match="cannot be sent"):
        describe(value)


def test_describe_refuses_what_holds_itself():
    holder = Holder(None)
    holder.content = holder
    with pytest.raises(NotSendable, match="holds itself"):
        describe(holder)


def test_has_stand_ins_finds_objects_of_users():
    assert has_stand_ins(sent([{"a": Statistics(1.0, np.zeros(1))}]))
    assert has_stand_ins(sent(np.array([Color.RED], object)))
    assert not has_stand_ins(sent([{"a": np.zeros(1)}, np.float32(1), (1.0, None)]))


def test_sent_arrays_of_torch_differ_as_before():
    torch = pytest.importorskip("torch")
    one = torch.arange(3.0)
    assert difference(sent(one), sent(one.clone())) == ""
    others = {
        "float64": one.double(),
        "relative error": one + 1e-3,
        "shape": one[:2],
        "bfloat16": one.bfloat16(),
        "numpy.ndarray": one.numpy(),
    }
    for reason, other in others.items():
        assert reason in difference(sent(other), sent(one))


def test_restore_result_refuses_what_is_no_result():
    for forged in (1, {}, {"returned": 1}, {"returned": 1, "written": 3, "effects": ()}):
        with pytest.raises(UnreadableAnswer):
            restore_result(forged)


def test_restore_refuses_places_outside_a_matrix():
    described = describe(sparse.csr_matrix(np.eye(3)))
    for name, forged in (("rows", np.array([0, 1, 9])), ("columns", np.array([0, 1, -1]))):
        changed = {field: getattr(described, field) for field in vars(described)} | {name: forged}
        with pytest.raises(UnreadableAnswer, match="outside"):
            restore(type(described)(**changed))


NUMBERS = st_numpy.arrays(
    st.one_of(
        st_numpy.integer_dtypes(),
        st_numpy.floating_dtypes(sizes=(16, 32, 64)),
        st_numpy.complex_number_dtypes(sizes=(64, 128)),
        st_numpy.boolean_dtypes(),
        st_numpy.unicode_string_dtypes(max_len=3),
    ),
    st_numpy.array_shapes(min_dims=0, min_side=0),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), NUMBERS),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(max_size=3), inner),
    ),
    max_leaves=8,
)


@given(VALUES)
def test_sent_value_equals_itself(value):
    back = sent(value)
    assert type(back) is type(value)
    exact = ComparisonRules(tolerance=0.0)
    with np.errstate(all="ignore"):
        assert output_error(back, value, exact) == 0.0


@given(st.binary(max_size=60))
def test_result_of_any_bytes_is_refused(content):
    with pytest.raises(UnreadableAnswer):
        restore_result(decode(content) or {})


def test_result_keeps_effects_and_written_arrays():
    result = CallResult(None, {1: np.arange(3)}, frozenset({"its output is read-only"}))
    back = restore_result(decode(encode(describe_result(result))))
    assert back.returned is None
    assert back.written[1].tolist() == [0, 1, 2]
    assert back.effects == result.effects
