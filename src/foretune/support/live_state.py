"""Keys of values that are fast to compare in every call of a function.

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
from foretune.support.code_hash import is_user_code
from foretune.support.identity import identify, strides_text

_PLAIN = (int, str, bytes, bool, type(None), complex, range)
_KEEPS_IDENTITY = (FunctionType, type, ModuleType, type(len), enum.Enum)
"""Code and members of enums are the same while they are the same object."""


def value_key(value: Any, floats_are_data: bool = False) -> Hashable:
    """Return a key that is equal for equal values: arrays count by type, shape and layout."""
    kind = type(value)
    if kind is float:
        return float if floats_are_data else (float, value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is np.ndarray and value.dtype.kind != "O":
        return (kind, value.dtype, value.shape, strides_text(value))
    if isinstance(value, _KEEPS_IDENTITY):
        return value
    if kind in (tuple, list):
        return (kind, *(value_key(part, floats_are_data) for part in value))
    return (kind.__qualname__, identify(value, floats_are_data=floats_are_data).digest)


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
        self._readers: list[Callable[[], Any]] = []
        self._seen: set[int] = set()
        self._follow(getattr(function, "__func__", function))

    def key(self) -> tuple[Hashable, ...]:
        """Return the key of all values as they are now."""
        return tuple(value_key(read()) for read in self._readers)

    def _follow(self, code: Any) -> None:
        if id(code) in self._seen:
            return
        self._seen.add(id(code))
        if isinstance(code, FunctionType) and is_user_code(code):
            self._follow_function(code)
        elif isinstance(code, type) and is_user_code(code) and not issubclass(code, enum.Enum):
            for name, held in list(vars(code).items()):
                self._follow(getattr(held, "__func__", held))
                if type(held) in (*_PLAIN, float, list, dict, set):
                    self._read(partial(getattr, code, name, None))

    def _follow_function(self, function: FunctionType) -> None:
        names, attributes = names_read(function.__code__)
        scope = function.__globals__
        for name in sorted(names & scope.keys()):
            self._read(partial(scope.get, name))
            if isinstance(scope[name], ModuleType) and is_user_code(scope[name]):
                self._follow_module(scope[name], attributes)
            else:
                self._follow(scope[name])
        for cell in function.__closure__ or ():
            self._read(partial(_content, cell))
            self._follow(_content(cell))
        if function.__dict__.keys() - {"__wrapped__"}:
            self._read(lambda: {k: v for k, v in vars(function).items() if k != "__wrapped__"})

    def _follow_module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        for name in sorted(attributes & vars(module).keys()):
            self._read(partial(vars(module).get, name))
            self._follow(vars(module)[name])

    def _read(self, reader: Callable[[], Any]) -> None:
        self._readers.append(reader)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
