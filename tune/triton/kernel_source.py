"""Hash of a kernel's code that does not depend on line numbers.

Triton's own key includes the line number, so an import added above a kernel would invalidate all of
its measurements.
"""

import hashlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

_HASHES: "WeakKeyDictionary[FunctionType, str]" = WeakKeyDictionary()


def source_hash(function: Any) -> str:
    """Return the hash (16 hexadecimal digits) of a ``@triton.jit`` function and all it calls."""
    python = function.fn
    if python not in _HASHES:
        parts = sorted(set(_source_parts(python, set())))
        _HASHES[python] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return _HASHES[python]


def _source_parts(python: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Yield the sources and constants that ``python`` depends on."""
    seen.add(python)
    try:
        yield inspect.getsource(python)
    except (OSError, TypeError):  # typed into an interpreter
        yield repr((python.__code__.co_code, python.__code__.co_consts))
    for name, value in _references(python):
        called = getattr(value, "fn", None)
        if isinstance(called, FunctionType):
            if called not in seen and not called.__module__.startswith("triton."):
                yield from _source_parts(called, seen)
        elif isinstance(constant := getattr(value, "value", value), (bool, int, float, str)):
            yield f"{name} = {constant!r}"


def _references(python: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals, closure variables and module members that a function uses."""
    names = python.__code__.co_names
    scope = {n: python.__globals__[n] for n in names if n in python.__globals__}
    cells = zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    for name, value in scope.items():
        if isinstance(value, ModuleType):
            if not value.__name__.startswith("triton"):
                yield from ((n, getattr(value, n)) for n in names if hasattr(value, n))
        else:
            yield name, value
