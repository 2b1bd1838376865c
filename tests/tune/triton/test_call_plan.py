"""Keys of calls: `tune/triton/call_plan.py`."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import numpy as np
import triton.language as tl
import tuned_kernels
from hypothesis import given
from hypothesis import strategies as st

from foretune.tune.triton.call_plan import make_plan
from foretune.tune.triton.parameters import triton_parameters
from foretune.tune.triton.problem_key import problem_from_arguments

COPY = triton.jit(tuned_kernels.copy)
DATA = torch.zeros(80, dtype=torch.float16)


def plan_of(*args, classes=True, keys=("n",), **kwargs):
    return make_plan(COPY.arg_names, keys, triton_parameters(COPY), args, kwargs, classes)


def is_same(one, other, classes=True):
    """Whether the plan of one call takes another for the same problem."""
    key = plan_of(*one, classes=classes).problem_key
    return key(one, {}) == key(other, {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((DATA, DATA, 64), (DATA[16:], DATA, 64), True),
        ((DATA, DATA, 64), (DATA[1:], DATA, 64), False),  # 16 does not divide its address
        ((DATA, DATA, 64), (DATA, DATA, 65), False),  # a key
        ((DATA, DATA, 64), (DATA.float(), DATA, 64), False),  # a dtype
        ((DATA, DATA, 64, 32), (DATA, DATA, 64, 48), True),  # not a key, and as divisible
        ((DATA, DATA, 64, 32), (DATA, DATA, 64, 33), False),
        ((DATA, DATA, 64, 33), (DATA, DATA, 64, 1), False),  # a one is a constant
        ((DATA, DATA, 64, 32), (DATA, DATA, 64, 32, 128), False),  # a constant of the code
        ((DATA, DATA, 64, 32), (DATA, DATA, 64, 32.0), False),
        (((DATA, 1), DATA, 64), ((DATA[16:], 1), DATA, 64), True),
        (((DATA, 1), DATA, 64), ((DATA.float(), 1), DATA, 64), False),
        (((DATA, 1), DATA, 64), ((DATA[1:], 1), DATA, 64), False),
        (((DATA, 1), DATA, 64), ((DATA, 3), DATA, 64), False),
        (((DATA, 1), DATA, 64), ((DATA,), DATA, 64), False),
        ((DATA, DATA, 64, 32, np.int64(64)), (DATA, DATA, 64, 32, np.int64(64)), True),
        ((DATA, DATA, 64, 32, np.int64(64)), (DATA, DATA, 64, 32, np.int64(128)), False),
    ],
)
def test_key_is_equal_if_triton_compiles_the_same_code(one, other, same):
    assert is_same(one, other) == same
    problems = [
        problem_from_arguments(COPY, ("n",), dict(zip(COPY.arg_names, call, strict=False)))
        for call in (one, other)
    ]
    assert (problems[0] == problems[1]) == same


@pytest.mark.parametrize("wrapped", [np.int64, np.int32, tl.constexpr])
def test_problem_of_a_wrapped_constant_is_that_of_its_value(wrapped):
    arguments = {"x": DATA, "y": DATA, "n": 64}
    problem = problem_from_arguments(COPY, ("n",), {**arguments, "BLOCK": wrapped(128)})
    assert problem == problem_from_arguments(COPY, ("n",), {**arguments, "BLOCK": 128})


def test_key_without_classes_ignores_alignment_and_ones():
    assert is_same((DATA, DATA, 64, 1), (DATA[1:], DATA, 64, 32), classes=False)


def test_key_distinguishes_unhashable_constants():
    key = plan_of(DATA, DATA, 64, BLOCK=[1]).problem_key
    assert key((DATA, DATA, 64), {"BLOCK": [1]}) != key((DATA, DATA, 64), {"BLOCK": [2]})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((DATA, DATA), {"grid": (1,), "n": 64}),
        ((DATA, DATA, 64), {"grid": (1,)}),
        ((DATA, DATA, 64), {"grid": (1,), "m": 1}),
        ((DATA, DATA, 64.0), {"grid": (1,), "warmup": False}),
        ((DATA, None, 64), {"grid": (1,), "warmup": False}),
    ],
)
def test_key_of_other_arguments_or_types_is_none(args, kwargs):
    plan = plan_of(DATA, DATA, 64, grid=(1,), warmup=False)
    assert plan.problem_key((DATA, DATA, 64), {"warmup": True, "grid": (2,)}) is not None
    assert plan.problem_key(args, kwargs) is None


numbers = st.integers(-(2**40), 2**40)


@given(numbers, numbers, numbers, numbers)
def test_key_is_equal_for_equal_classes_of_numbers(n, m, other_n, other_m):
    def classes(value):
        return value == 1, value % 16 == 0

    alike = n == other_n and classes(m) == classes(other_m)
    assert is_same((DATA, DATA, n, m), (DATA, DATA, other_n, other_m)) == alike


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 2), (1, [2])),  # the second cannot be hashed
        ((1,), (True,)),
        ((1,), (1.0,)),
        (((1,),), ((True,),)),
    ],
)
def test_key_distinguishes_types_in_constant_tuple(first, second):
    problem_key = plan_of(DATA, DATA, 64, BLOCK=first).problem_key
    keys = [problem_key((DATA, DATA, 64), {"BLOCK": block}) for block in (first, second)]

    assert len(set(keys)) == 2
