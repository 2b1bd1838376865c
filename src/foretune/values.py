"""Immutable, hashable mappings of named values: the base of problems and configurations."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from foretune.errors import UsageError

Value = int | float | bool | str
"""Types of values in a problem or configuration: those a run table can store."""
MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
"""Smallest and largest integer that a run table can store."""


class FrozenParameters(Mapping[str, Value]):
    """A hashable mapping from names to numbers, booleans or strings.

    Two are equal if they have the same names and values in any order; ``1``, ``1.0`` and ``True``
    are equal, as in Python. Equal ones have the same ``id`` on every machine and in every process.
    Raises UsageError if a value is NaN, or neither a number, a boolean nor a string.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, values: Mapping[str, Any] = {}, /, **named: Any) -> None:
        given = {**values, **named}
        self._items = {name: plain_value(name, value) for name, value in given.items()}
        self._hash = hash(frozenset(self._items.items()))

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenParameters):
            return type(self) is type(other) and self._items == other._items
        return isinstance(other, Mapping) and self._items == dict(other)

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self._items.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, Value]]]:
        return type(self), (self._items,)

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that identify these names and values."""
        canonical = {name: canonical_value(value) for name, value in self._items.items()}
        text = json.dumps(canonical, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAME=VALUE,NAME=VALUE``; values become int, float or bool if they look like it.

        Raises UsageError if a part has no ``=`` or a name occurs twice.
        """
        values: dict[str, Value] = {}
        for part in map(str.strip, text.split(",")):
            if not part:
                continue
            name, _, value = map(str.strip, part.partition("="))
            lacks_comma = "=" in value and " " in value  # M=300 N=700
            if not name or not value or lacks_comma:
                raise UsageError(f"cannot read {part!r}: write NAME=VALUE,NAME=VALUE")
            if name in values:
                raise UsageError(f"{name!r} is given twice in {text!r}")
            values[name] = parse_value(value)
        return cls(values)


def plain_value(name: str, value: Any) -> Value:
    """Return ``value`` as a plain Python number, boolean or string; reject NaN and other types."""
    is_numpy_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    if is_numpy_scalar:
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        raise UsageError(f"{name} is NaN: leave out names without a value")
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise UsageError(f"{name} has more than 64 bits, which no run table can store")
    if isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(
        f"{name}={value!r} is a {type(value).__name__}: use a number, a boolean or a string"
    )


def parse_value(text: str) -> Value:
    """Parse a number or a boolean (``true``, ``False``); else return ``text``."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def canonical_value(value: Value) -> Value:
    """Return one representative of equal values: a column with gaps turns 64 into 64.0."""
    is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole else value


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return ``n`` with the noun in singular or plural."""
    if n == 1:
        return f"{n:,} {noun}"
    return f"{n:,} {plural or f'{noun}s'}"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage, ``3.1 %``; a dash if it is not finite."""
    if not math.isfinite(fraction):
        return "–"
    return f"{100 * fraction:.1f} %"


def short_number(value: float, digits: int = 3) -> str:
    """Return ``value`` with a few significant digits; large ones are whole, without exponent."""
    text = f"{value:.{digits}g}"
    has_exponent = "e+" in text
    return f"{value:,.0f}" if has_exponent else text
