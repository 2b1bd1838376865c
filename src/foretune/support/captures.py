"""What a Python function reads beside its arguments: globals, closure variables and defaults."""

import dis
import functools
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

INSTALL_FOLDERS = ("site-packages", "dist-packages")
"""Folders whose files are unrelated to each other."""
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


def is_user_module(name: str | None) -> bool:
    """Whether a module is neither Python's, nor Foretune's, nor in an installed package."""
    top = str(name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "foretune":
        return False
    file = getattr(sys.modules.get(str(name)), "__file__", None) or ""
    return not set(INSTALL_FOLDERS) & set(Path(file).parts)


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
    global_names, attributes = names_read(function.__code__)
    variables = []
    if with_globals:
        scope = function.__globals__
        variables += [(f"the global {name!r}", scope[name]) for name in global_names & scope.keys()]
    variables += [
        (f"the closure variable {name!r}", cell.cell_contents)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
        if not _is_empty(cell)
    ]
    for place, value in sorted(variables, key=itemgetter(0)):
        yield place, value
        # Values of a user's module may change after its import: its source does not tell them.
        if isinstance(value, ModuleType) and is_user_module(value.__name__):
            yield from _module_values(value, attributes)

    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"the default of {name!r}", value
    for name, value in sorted(function.__dict__.items()):
        if name != "__wrapped__":  # what `functools.wraps` notes is in the closure, too
            yield f"the attribute {name!r} of {function.__qualname__}", value


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _module_values(module: ModuleType, attributes: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name in sorted(attributes & vars(module).keys()):
        value = vars(module)[name]
        if not isinstance(value, FunctionType | type | ModuleType):
            yield f"{module.__name__}.{name}", value
