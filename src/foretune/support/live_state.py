"""What a call works on, as keys that are fast to compare in every call.

`identify` reads everything, which takes too long for each call. A key tells the same values apart,
but compares functions, classes and modules by identity, and reads only objects in full.
"""

import enum
import os
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.support.captures import names_read, variables_read
from foretune.support.environment_read import environment_read
from foretune.support.identity import attributes_of, identify, layout_text, place_of_attribute
from foretune.support.module_code import is_user_code

_PLAIN = frozenset({int, str, bytes, bool, type(None), range})
_KEEPS_IDENTITY = (FunctionType, type, ModuleType, type(len), enum.Enum)
"""Code and members of enums are the same while they are the same object."""
_SAME_WHILE_THE_OBJECT_IS = frozenset({FunctionType, type, ModuleType, type(len)})
"""Their most usual classes, which are found at once."""
_HOLDS_VALUES = (*_PLAIN, float, complex, list, dict, set)
_WITHOUT_ATTRIBUTES = frozenset({*_HOLDS_VALUES, tuple, np.ndarray})
_USUAL_FLAGS = 0x0001 | 0x0100 | 0x0400
"""NumPy's flags of an array that is contiguous in C's order, aligned and writable."""


def value_key(value: Any, floats_are_data: bool = False) -> Hashable:
    """Return a key that is equal for equal values: arrays count by type, shape and layout."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is np.ndarray and value.dtype.kind != "O":
        return (kind, value.dtype, value.shape, _array_layout(value))
    if kind in _SAME_WHILE_THE_OBJECT_IS:
        return value
    if kind is float:  # as a text: NaN differs from itself, and -0.0 equals 0.0
        return float if floats_are_data else (float, repr(value))
    if kind is complex:
        return (complex, repr(value))
    if isinstance(value, _KEEPS_IDENTITY):
        return value
    if kind is dict:
        pairs = ((value_key(k), value_key(v, floats_are_data)) for k, v in value.items())
        return (dict, frozenset(pairs))
    if kind in (tuple, list):
        return (kind, *[value_key(part, floats_are_data) for part in value])
    return (kind.__qualname__, identify(value, floats_are_data=floats_are_data).digest)


def _array_layout(array: npt.NDArray[Any]) -> str:
    """Return `layout_text`; most arrays have the usual layout, which the flags tell at once."""
    return "" if array.flags.num & _USUAL_FLAGS == _USUAL_FLAGS else layout_text(array)


def argument_key(value: Any, floats_are_data: bool, ignored: frozenset[str]) -> Hashable:
    """Return the key of an argument: of an object, those of its attributes not ``ignored``."""
    if type(value) in _WITHOUT_ATTRIBUTES:
        return value_key(value, floats_are_data)
    attributes = attribute_keys(value)
    if attributes is None:
        return value_key(value, floats_are_data)
    return tuple(item for item in attributes.items() if item[0] not in ignored)


def attribute_keys(value: Any) -> dict[str, Hashable] | None:
    """Return the key of each attribute of a user's object; None for other values."""
    if type(value) in _WITHOUT_ATTRIBUTES or isinstance(value, _KEEPS_IDENTITY):
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

    def values(self, ignored: frozenset[str]) -> list[Hashable]:
        """Return the keys of all values as they are now, in order, without those ignored."""
        return [value_key(read()) for place, read in self._readers if place not in ignored]

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

        self._follow_environment(function)

    def _follow_environment(self, function: FunctionType) -> None:
        """Read the environment variables that the function names, else all."""
        environment = environment_read(function, variables_read(function))
        for name in sorted(environment.names):
            place = f"the environment variable {name!r}"
            self._read(place, partial(os.environ.get, name))
        if not environment.is_complete:
            self._read("the environment", _all_variables)

    def _follow_value(self, value: Any, attributes: frozenset[str]) -> None:
        if not isinstance(value, ModuleType):
            self._follow(value)
        elif is_user_code(value):
            for name in sorted(attributes & vars(value).keys()):
                self._read(f"{value.__name__}.{name}", partial(vars(value).get, name))
                self._follow(vars(value)[name])

    def _read(self, place: str, reader: Callable[[], Any]) -> None:
        self._readers.append((place, reader))


def _all_variables() -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in os.environ.items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
