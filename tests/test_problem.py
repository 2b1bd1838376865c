"""Tests that problems are completed and checked: `foretune.problem`."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import ProblemError, UnknownName, UsageError
from foretune.problem import ProblemParameter, make_problem

PARAMETERS = (
    ProblemParameter("M", maximum=4096),
    ProblemParameter("N", default=8),
    ProblemParameter("dtype", "fp32", choices=("fp32", "fp64")),
    ProblemParameter("transposed", False, choices=(False, True)),
    ProblemParameter("limit_ms", 5.0, minimum=0.0),
)


def make(**values):
    return make_problem("toy", PARAMETERS, values)


def test_problem_has_defaults_in_declared_order():
    problem = make(dtype="fp64", M=3)
    assert list(problem.items()) == [
        ("M", 3),
        ("N", 8),
        ("dtype", "fp64"),
        ("transposed", False),
        ("limit_ms", 5.0),
    ]


def test_problem_of_problem_is_equal():
    assert make(**make(M=3)) == make(M=3)


@pytest.mark.parametrize("value", [64, 64.0, np.int64(64), np.float32(64), np.array(64)])
def test_problem_size_becomes_int(value):
    m = make(M=value)["M"]
    assert (m, type(m)) == (64, int)


@pytest.mark.parametrize("value", [0.25, 1, np.float32(0.25)])
def test_problem_float_parameter_becomes_float(value):
    assert type(make(M=1, limit_ms=value)["limit_ms"]) is float


def test_problem_choice_gets_declared_type():
    assert make(M=1, transposed=1)["transposed"] is True
    assert make(M=1, transposed=np.bool_(False))["transposed"] is False


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"M": 0}, r"M=0 is out of range: it must be between 1 and 4096"),
        ({"M": -5}, "out of range"),
        ({"M": 4097}, "out of range"),
        ({"M": math.inf}, "out of range"),
        ({"M": 1e300}, "out of range"),
        ({"M": 1.5}, r"M=1.5 must be a whole number"),
        ({"M": "64"}, r"M='64' is not a number"),
        ({"M": True}, r"M=True is not a number"),
        ({"M": 1, "dtype": "fp8"}, r"dtype=fp8 is not possible: choose one of fp32, fp64"),
        ({"M": 1, "limit_ms": -1.0}, "out of range"),
        ({"N": 4}, r"toy needs M: write M=…"),
    ],
)
def test_problem_refuses_impossible_values(values, message):
    with pytest.raises(ProblemError, match=message) as caught:
        make(**values)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", [math.nan, None, [64]])
def test_problem_refuses_values_of_other_types(value):
    with pytest.raises(UsageError, match="M"):
        make(M=value)


def test_problem_unknown_parameter_suggests_nearest():
    with pytest.raises(UnknownName, match=r"problem parameter of toy 'dtypes': did you mean 'dtyp"):
        make(M=1, dtypes="fp32")


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_problem_size_of_any_value_is_right_or_refused(value):
    try:
        size = PARAMETERS[0].check(value)
    except ProblemError:
        assert not (1 <= value <= 4096 and value == int(value))
    else:
        assert type(size) is int
        assert size == value
        assert 1 <= size <= 4096
