"""Arguments with special values: zeros, negatives, large, tiny and shifted ones, infinity, NaN.

A configuration may be right for the given arguments only: it divides by an element, squares large
numbers, or reads a table that ends at 1. So some checks use special values. Only those count that
the default accepts: it must not fail, and finite inputs must not give new NaN or infinities.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.collect.wrapped.values import Draw, blend, keep_order
from foretune.relative_error import rounding

SPECIAL_ELEMENTS = 3
"""Elements of an array that become zero, infinite or NaN."""
LARGE, TINY = 2.0**20, 2.0**-20
LARGE_HALF, TINY_HALF = 2.0**4, 2.0**-4
"""In half precision, whose numbers end at 65504."""


@dataclass(frozen=True)
class SpecialValues:
    """A kind of special values.

    Attributes:
        name: what messages call it.
        draw: returns an array with such values.
        finite: whether the values are finite, so that the output must be finite, too.
        shift: how far from 0 the numbers are, relative to their differences.
        spreads: whether results that depend on such a value are the same in any order of
            operations: NaN stays NaN, but infinities may become either.
    """

    name: str
    draw: Draw
    finite: bool = True
    shift: float = 1.0
    spreads: bool = False


def shift_ratio(precision: float) -> float:
    """Return by how many times their spread numbers are shifted: 8192 in double precision.

    The square of a shifted number then takes half of the digits.
    """
    return float(precision) ** -0.25


def _some_elements(value: float) -> Draw:
    """Return a draw that replaces a few elements of new values."""

    def draw(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
        new = blend(array, seed, number)
        rng = np.random.default_rng([seed, number, 1])
        places = rng.integers(new.size, size=min(SPECIAL_ELEMENTS, max(1, new.size // 4)))
        new[np.unravel_index(places, new.shape)] = value
        return keep_order(array, new)

    return draw


def _transformed(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Draw:
    """Return a draw that changes all elements of new values."""

    def draw(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
        new = blend(array, seed, number)
        new[...] = change(new)
        return keep_order(array, new)

    return draw


def _scale(array: npt.NDArray[Any], full: float, half: float) -> npt.NDArray[Any]:
    is_half = rounding(array.dtype) > np.finfo(np.float32).eps
    return array * array.dtype.type(half if is_half else full)


def _shifted(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    finite = array[np.isfinite(array)]
    spread = np.ptp(finite.real) if finite.size else 0.0
    return array + array.dtype.type(shift_ratio(rounding(array.dtype)) * spread)


MAX_SHIFT = shift_ratio(np.finfo(np.float64).eps)
SPECIAL_VALUES = (
    SpecialValues("zeros", _some_elements(0.0)),
    SpecialValues("negated values", _transformed(lambda array: -array)),
    SpecialValues("large values", _transformed(lambda array: _scale(array, LARGE, LARGE_HALF))),
    SpecialValues("tiny values", _transformed(lambda array: _scale(array, TINY, TINY_HALF))),
    SpecialValues(
        "values far from 0", _transformed(_shifted), shift=shift_ratio(np.finfo(np.float64).eps)
    ),
    SpecialValues("infinity", _some_elements(np.inf), finite=False),
    SpecialValues("negative infinity", _some_elements(-np.inf), finite=False),
    SpecialValues("NaN", _some_elements(np.nan), finite=False, spreads=True),
)
KINDS_OF_SPECIAL_VALUES = {special.name: special for special in SPECIAL_VALUES}
