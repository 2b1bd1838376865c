"""Equality of dataclasses in which NaN means unknown."""

import math
from dataclasses import dataclass, field

import pytest

from foretune.support.unknown_numbers import equal_fields


@dataclass(frozen=True)
class Run:
    """A dataclass with a number that may be unknown, and one that does not count."""

    name: str
    power_w: float = math.nan
    note: str = field(default="", compare=False)

    __eq__ = equal_fields


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (Run("a"), Run("a"), True),
        (Run("a", float("nan")), Run("a", -math.nan), True),
        (Run("a", 1.0), Run("a", 1.0, note="late"), True),
        (Run("a", 1.0), Run("a"), False),
        (Run("a"), Run("b"), False),
        (Run("a"), ("a", math.nan, ""), False),
    ],
)
def test_unknown_numbers_are_equal(one, other, equal):
    assert (one == other) is equal
    assert (other == one) is equal
