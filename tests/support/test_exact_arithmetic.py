"""Arithmetic on columns: `foretune/support/exact_arithmetic.py`."""

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.support import exact_arithmetic
from foretune.support.exact_arithmetic import as_numbers

INTEGERS = st.integers(-(2**63), 2**64 - 1)
COLUMNS = st.lists(INTEGERS, min_size=1, max_size=4)


def column(values):
    large = any(value >= 2**63 for value in values)
    return as_numbers(np.array(values, dtype=object if large else None))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (exact_arithmetic.add, operator.add),
        (exact_arithmetic.subtract, operator.sub),
        (exact_arithmetic.multiply, operator.mul),
        (exact_arithmetic.minimum, min),
        (exact_arithmetic.maximum, max),
    ],
)
@given(left=COLUMNS, right=INTEGERS)
def test_operation_of_integers_is_pythons(operation, expected, left, right):
    results = operation(column(left), column([right]))
    assert [int(r) for r in results] == [expected(value, right) for value in left]


@given(left=COLUMNS, right=INTEGERS.filter(bool))
def test_division_of_integers_is_pythons(left, right):
    quotients = exact_arithmetic.floor_divide(column(left), column([right]))
    remainders = exact_arithmetic.remainder(column(left), column([right]))
    assert [int(q) for q in quotients] == [value // right for value in left]
    assert [int(r) for r in remainders] == [value % right for value in left]


@pytest.mark.parametrize("dtype", [np.int64, object])
def test_division_by_zero_is_numpys(dtype):
    zero = np.array([0], dtype)
    numbers = np.array([3, -3, 0], dtype)
    with np.errstate(all="ignore"):
        quotients = exact_arithmetic.divide(numbers, zero)
        rounded = exact_arithmetic.floor_divide(numbers, zero)
        remainders = exact_arithmetic.remainder(numbers, zero)
    assert quotients.tolist()[:2] == [math.inf, -math.inf]
    assert math.isnan(quotients[2])
    assert rounded.tolist() == remainders.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(3, 41, 3**41), (2**21, 5, 2**105), (2, -1, 0.5), (10, 5000, math.inf), (4.0, 0.5, 2.0)],
)
def test_power_of_integers_is_exact_unless_very_large(base, exponent, expected):
    with np.errstate(all="ignore"):
        (result,) = exact_arithmetic.power(np.array([base]), np.array([exponent]))
    assert result == expected


def test_operations_within_64_bits_stay_numpys():
    numbers = np.array([1, 2**30])
    assert exact_arithmetic.multiply(numbers, numbers).dtype == np.int64
    assert exact_arithmetic.multiply(numbers, numbers * 2**10).dtype == object
