"""Equality of dataclasses that have unknown numbers.

NaN stands for an unknown number. It is not equal to itself, so that two equal dataclasses with a
NaN would differ: since Python 3.13 always, before unless both hold the same object.
"""

from dataclasses import fields
from typing import Any


def equal_fields(one: Any, other: Any) -> bool:
    """Whether two objects of a dataclass have equal fields, of which NaN is equal to NaN.

    Fields with ``compare=False`` do not count. Use it as a dataclass's ``__eq__``.
    """
    if type(one) is not type(other):
        return NotImplemented
    names = [field.name for field in fields(one) if field.compare]
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(mine == theirs or _are_unknown(mine, theirs) for mine, theirs in pairs)


def _are_unknown(one: Any, other: Any) -> bool:
    are_floats = isinstance(one, float) and isinstance(other, float)
    return are_floats and one != one and other != other
