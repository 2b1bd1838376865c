"""What a Python function reads beside its arguments: globals, closure variables and defaults."""

import contextlib
import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


def nested_code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code_objects(constant)


@functools.lru_cache(maxsize=1024)
def names_read(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of globals and of attributes that code loads, in inner functions too."""
    global_names = set()
    attributes = set()
    for part in nested_code_objects(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _LOADS_GLOBAL:
                global_names.add(str(instruction.argval))
            elif instruction.opname in _LOADS_ATTRIBUTE:
                attributes.add(str(instruction.argval))
    return frozenset(global_names), frozenset(attributes)


def captured_values(function: FunctionType, with_globals: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function reads beside its arguments, and where each is held.

    Globals of an installed package are part of the package: leave them out.
    """
    if with_globals:
        yield from _globals_read(function)
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"the closure variable {name!r}", cell.cell_contents

    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"the default of {name!r}", value
    for name, value in sorted(function.__dict__.items()):
        if name != "__wrapped__":  # what `functools.wraps` notes is in the closure, too
            yield f"the attribute {name!r} of {function.__qualname__}", value


def _globals_read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    global_names, attributes = names_read(function.__code__)
    for name in sorted(global_names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield f"the global {name!r}", value
        # Values of a module may change after its import, so its source does not tell them.
        if isinstance(value, ModuleType):
            yield from _module_values(value, attributes)


def _module_values(module: ModuleType, attributes: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name in sorted(attributes & vars(module).keys()):
        value = vars(module)[name]
        if not isinstance(value, FunctionType | type | ModuleType):
            yield f"{module.__name__}.{name}", value
