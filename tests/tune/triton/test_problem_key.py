"""What makes two calls the same problem."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from hypothesis import given
from hypothesis import strategies as st

from foretune.tune.triton.problem_key import (
    make_plan,
    plan_id,
    triton_parameters,
)

COPY = triton.jit(tuned_kernels.copy)
DATA = torch.zeros(80, dtype=torch.float16)


def key_of(*args, classes=True, keys=("n",), **kwargs):
    plan = make_plan(COPY.arg_names, keys, triton_parameters(COPY), args, kwargs, classes)
    return plan_id(args, kwargs), plan.key(args, kwargs)


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
    ],
)
def test_what_compiles_alike_is_one_problem(one, other, same):
    assert (key_of(*one) == key_of(*other)) == same


def test_stock_classes_ignore_what_stock_ignores():
    one, other = (key_of(d, DATA, 64, m, classes=False) for d, m in [(DATA, 1), (DATA[1:], 32)])
    assert one == other


def test_unhashable_constants_are_told_apart():
    one, other = (key_of(DATA, DATA, 64, BLOCK=b) for b in ([1], [2]))
    assert one != other


numbers = st.integers(-(2**40), 2**40)


@given(numbers, numbers, numbers, numbers)
def test_same_classes_same_key(n, m, other_n, other_m):
    def classes(value):
        return value == 1, value % 16 == 0

    alike = n == other_n and classes(m) == classes(other_m)
    assert (key_of(DATA, DATA, n, m) == key_of(DATA, DATA, other_n, other_m)) == alike
