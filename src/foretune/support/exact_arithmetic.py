"""Arithmetic on columns with Python's integers where 64 bits are too few.

NumPy's integers overflow silently. Here a column has 64 bits as long as no result can be larger.
Otherwise it becomes a column of Python's numbers, which is slower and exact. Divisions by zero are
as in NumPy, also of Python's numbers.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

MAX_INTEGER = 2**62
"""Results of 64 bits are smaller than this, so that even the sum of two of them fits."""
MAX_POWER_BITS = 4096
"""Longest exact power; longer ones would be slow."""


def as_numbers(value: Any) -> Column:
    """Convert for arithmetic: booleans become 0 and 1, text of a mixed column NaN.

    Raises TypeError for text.
    """
    array = np.asarray(value)
    if array.dtype.kind == "O":
        numbers = [_plain_number(item) for item in array.ravel()]
        return np.array(numbers, dtype=object).reshape(array.shape)
    if array.dtype.kind == "U":
        raise TypeError("it does arithmetic on text")
    if array.dtype.kind == "u":  # with signed integers, NumPy would make fractions of them
        return array.astype(object)
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def add(left: Column, right: Column) -> Column:
    """Return the sum."""
    return _exact(operator.add, left, right, bound=operator.add)


def subtract(left: Column, right: Column) -> Column:
    """Return the difference, whose magnitude is at most that of the sum."""
    return _exact(operator.sub, left, right, bound=operator.add)


def multiply(left: Column, right: Column) -> Column:
    """Return the product."""
    return _exact(operator.mul, left, right, bound=operator.mul)


def divide(left: Column, right: Column) -> Column:
    """Return the quotient; infinite or NaN for a division by zero."""
    if _has_objects(left, right):
        return np.asarray(_divide_objects(left, right))
    return np.asarray(left / right)


def floor_divide(left: Column, right: Column) -> Column:
    """Return the rounded down quotient; 0 for an integer divided by zero."""
    if _has_objects(left, right):
        return np.asarray(_floor_divide_objects(left, right))
    return np.asarray(left // right)


def remainder(left: Column, right: Column) -> Column:
    """Return the remainder; 0 for an integer divided by zero."""
    if _has_objects(left, right):
        return np.asarray(_remainder_objects(left, right))
    return np.asarray(left % right)


def power(base: Column, exponent: Column) -> Column:
    """Return powers: exact ones of integers, unless they are fractions or very large."""
    if base.size and exponent.size and _is_integer(base) and _is_integer(exponent):
        bits = _largest(base).bit_length() * _largest(exponent)
        if exponent.min() >= 0 and bits <= MAX_POWER_BITS:
            return np.asarray(base.astype(object) ** exponent.astype(object))
    return np.asarray(np.float_power(base.astype(float), exponent.astype(float)))


def minimum(left: Column, right: Column) -> Column:
    """Return the smaller numbers; NaN if one is NaN."""
    if _has_objects(left, right):
        return np.asarray(_minimum_objects(left, right))
    return np.asarray(np.minimum(left, right))


def maximum(left: Column, right: Column) -> Column:
    """Return the larger numbers; NaN if one is NaN."""
    if _has_objects(left, right):
        return np.asarray(_maximum_objects(left, right))
    return np.asarray(np.maximum(left, right))


def _exact(
    operation: Callable[[Any, Any], Any],
    left: Column,
    right: Column,
    *,
    bound: Callable[[int, int], int],
) -> Column:
    """Apply an operation; ``bound`` limits the result's magnitude by those of its operands."""
    are_integers = left.dtype.kind == right.dtype.kind == "i"
    if are_integers and bound(_largest(left), _largest(right)) >= MAX_INTEGER:
        return np.asarray(operation(left.astype(object), right.astype(object)))
    return np.asarray(operation(left, right))


def _largest(column: Column) -> int:
    """Return the largest magnitude of integers."""
    if not column.size:
        return 0
    return max(abs(int(column.min())), abs(int(column.max())))


def _is_integer(column: Column) -> bool:
    if column.dtype.kind == "O":
        return all(isinstance(value, int) for value in column.ravel())
    return column.dtype.kind == "i"


def _has_objects(left: Column, right: Column) -> bool:
    return "O" in (left.dtype.kind, right.dtype.kind)


def _plain_number(value: Any) -> Any:
    if isinstance(value, str):
        return math.nan
    return int(value) if isinstance(value, bool | np.bool_) else value


def _divided(left: Any, right: Any) -> float:
    if right != 0:
        return float(left / right)
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left)


def _floor_divided(left: Any, right: Any) -> Any:
    if right != 0:
        return left // right
    return 0 if isinstance(left, int) and isinstance(right, int) else _divided(left, right)


def _remainder(left: Any, right: Any) -> Any:
    if right != 0:
        return left % right
    return 0 if isinstance(left, int) and isinstance(right, int) else math.nan


def _smaller(left: Any, right: Any) -> Any:
    if math.isnan(left) or math.isnan(right):
        return math.nan
    return min(left, right)


def _larger(left: Any, right: Any) -> Any:
    if math.isnan(left) or math.isnan(right):
        return math.nan
    return max(left, right)


_divide_objects = np.frompyfunc(_divided, 2, 1)
_floor_divide_objects = np.frompyfunc(_floor_divided, 2, 1)
_remainder_objects = np.frompyfunc(_remainder, 2, 1)
_minimum_objects = np.frompyfunc(_smaller, 2, 1)
_maximum_objects = np.frompyfunc(_larger, 2, 1)
