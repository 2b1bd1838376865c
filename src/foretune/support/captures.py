"""What a Python function reads beside its arguments: globals, closure variables and defaults."""

import dis
import functools
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

INSTALL_FOLDERS = ("site-packages", "dist-packages")
"""Folders whose files are unrelated to each other."""
# The last of each are in Python 3.12 and newer: names in scopes of classes, and `super().name`.
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR")
READS_ANY_GLOBAL = frozenset({"globals", "eval", "exec"})
"""Functions that read globals by names that only a run tells."""
READS_ANY_ATTRIBUTE = frozenset({"getattr", "vars", "__dict__"})
"""The same for the values of modules."""


def is_user_module(name: str | None) -> bool:
    """Whether a module is neither Python's, nor Foretune's, nor in an installed package."""
    top = str(name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "foretune":
        return False
    file = getattr(sys.modules.get(str(name)), "__file__", None) or ""
    return not _is_installed(str(file))


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    return bool(set(INSTALL_FOLDERS) & set(Path(file).parts))


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


@functools.lru_cache(maxsize=1024)
def imports_read(code: CodeType, package: str) -> tuple[str, ...]:
    """Return the full names of modules that code of a package imports when it runs."""
    names: dict[str, None] = {}
    for part in nested_code_objects(code):
        before: list[Any] = []
        for instruction in dis.get_instructions(part):
            if instruction.opname == "IMPORT_NAME":
                level = before[-2].argval if len(before) > 1 else 0
                # One dot is the package itself, each further one the package above.
                above = package.split(".")[: 1 - level or None] if level else []
                names[".".join(filter(None, [*above, str(instruction.argval)]))] = None
            before.append(instruction)
    return tuple(names)


def captured_values(function: FunctionType, with_globals: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function reads beside its arguments, and where each is held.

    Globals of an installed package are part of the package: leave them out.
    """
    variables = []
    if with_globals:
        scope = function.__globals__
        variables += [(f"the global {name!r}", scope[name]) for name in globals_read(function)]
    variables += [
        (f"the closure variable {name!r}", cell.cell_contents)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
        if not _is_empty(cell)
    ]
    yield from sorted(variables, key=itemgetter(0))

    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"the default of {name!r}", value
    for name, value in sorted(function.__dict__.items()):
        if name != "__wrapped__":  # what `functools.wraps` notes is in the closure, too
            yield f"the attribute {name!r} of {function.__qualname__}", value


def globals_read(function: FunctionType) -> list[str]:
    """Return the names of the globals that a function reads, sorted."""
    names, attributes = names_read(function.__code__)
    scope = function.__globals__
    if not names & READS_ANY_GLOBAL and "modules" not in attributes:  # sys.modules[__name__]
        return sorted(names & scope.keys())
    return sorted(name for name in scope if not name.startswith("__"))


def variables_read(function: FunctionType) -> dict[str, Any]:
    """Return the globals, closure variables and defaults of a function by their names."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    found = {name: function.__globals__[name] for name in globals_read(function)}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if not _is_empty(cell):
            found[name] = cell.cell_contents
    found |= dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    return found | (function.__kwdefaults__ or {})


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
