"""What a call works on, as keys that are fast to compare in every call.

`identify` reads everything, which takes too long for each call. A key tells the same values apart,
but compares functions, classes and modules by identity, and reads only objects in full.
"""

import enum
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from foretune.support.captures import names_read
from foretune.support.identity import attributes_of, identify, layout_text, place_of_attribute
from foretune.support.module_code import is_user_code

_PLAIN = (int, str, bytes, bool, type(None), range)
_KEEPS_IDENTITY = (FunctionType, type, ModuleType, type(len), enum.Enum)
"""Code and members of enums are the same while they are the same object."""
_HOLDS_VALUES = (*_PLAIN, float, complex, list, dict, set)


def value_key(value: Any, floats_are_data: bool = False) -> Hashable:
    """Return a key that is equal for equal values: arrays count by type, shape and layout."""
    kind = type(value)
    if kind is float:  # as a text: NaN differs from itself, and -0.0 equals 0.0
        return float if floats_are_data else (float, repr(value))
    if kind is complex:
        return (complex, repr(value))
    if kind in _PLAIN:
        return (kind, value)
    if kind is np.ndarray and value.dtype.kind != "O":
        return (kind, value.dtype, value.shape, layout_text(value))
    if isinstance(value, _KEEPS_IDENTITY):
        return value
    if kind in (tuple, list):
        return (kind, *(value_key(part, floats_are_data) for part in value))
    return (kind.__qualname__, identify(value, floats_are_data=floats_are_data).digest)


def attribute_keys(value: Any) -> dict[str, Hashable] | None:
    """Return the key of each attribute of a user's object; None for other values."""
    if isinstance(value, _KEEPS_IDENTITY):
        return None
    held = attributes_of(value)
    if held is None:
        return None
    keys = {place_of_attribute(name): value_key(part) for name, part in held.items()}
    return {"its class": type(value), **keys}


def floats_in(values: Any) -> Iterator[float]:
    """Yield the floating-point numbers in nested tuples, lists and dicts."""
    for value in values:
        if isinstance(value, float | np.floating):
            yield float(value)
        elif type(value) in (tuple, list):
            yield from floats_in(value)
        elif type(value) is dict:
            yield from floats_in(value.values())


class LiveState:
    """What a function reads beside its arguments, now: globals, closure variables, attributes.

    It also follows the functions and classes of the user that the function reads.
    """

    def __init__(self, function: Any) -> None:
        self._readers: list[tuple[str, Callable[[], Any]]] = []
        self._seen: set[int] = set()
        self._follow(getattr(function, "__func__", function))

    def keys(self) -> dict[tuple[int, str], Hashable]:
        """Return the keys of all values as they are now, by number and place."""
        return {
            (number, place): value_key(read()) for number, (place, read) in enumerate(self._readers)
        }

    def _follow(self, code: Any) -> None:
        if id(code) in self._seen:
            return
        self._seen.add(id(code))
        if isinstance(code, FunctionType) and is_user_code(code):
            self._follow_function(code)
        elif isinstance(code, type) and is_user_code(code) and not issubclass(code, enum.Enum):
            for name, held in list(vars(code).items()):
                self._follow(getattr(held, "__func__", held))
                if type(held) in _HOLDS_VALUES and not name.startswith("__"):
                    self._read(f"{code.__qualname__}.{name}", partial(getattr, code, name, None))

    def _follow_function(self, function: FunctionType) -> None:
        names, attributes = names_read(function.__code__)
        scope = function.__globals__
        for name in sorted(names & scope.keys()):
            self._read(f"the global {name!r}", partial(scope.get, name))
            self._follow_value(scope[name], attributes)
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            self._read(f"the closure variable {name!r}", partial(_content, cell))
            self._follow_value(_content(cell), attributes)
        for name in sorted(function.__dict__.keys() - {"__wrapped__"}):
            place = f"the attribute {name!r} of {function.__qualname__}"
            self._read(place, partial(vars(function).get, name))

    def _follow_value(self, value: Any, attributes: frozenset[str]) -> None:
        if not isinstance(value, ModuleType):
            self._follow(value)
        elif is_user_code(value):
            for name in sorted(attributes & vars(value).keys()):
                self._read(f"{value.__name__}.{name}", partial(vars(value).get, name))
                self._follow(vars(value)[name])

    def _read(self, place: str, reader: Callable[[], Any]) -> None:
        self._readers.append((place, reader))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
