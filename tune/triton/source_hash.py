"""The identity of a Triton kernel: the hash of its code and all that it calls.

Stored measurements are found by this hash, so a change here loses those of all users.
"""

import hashlib
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from foretune.support.code_hash import function_code

HASH_DIGITS = 16
"""Hexadecimal digits of a hash."""
_HASHES: "WeakKeyDictionary[FunctionType, str]" = WeakKeyDictionary()


def source_hash(function: Any) -> str:
    """Return the hash of a ``@triton.jit`` function and all it calls.

    Comments, docstrings and the configurations of an autotuner do not change it.
    """
    python: FunctionType = function.fn
    if python not in _HASHES:
        parts = sorted(set(_source_parts(python, seen=set())))
        text = "\n".join(parts)
        _HASHES[python] = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    return _HASHES[python]


def _source_parts(python: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Yield the code and constants that ``python`` depends on."""
    seen.add(python)
    yield function_code(python)
    for name, value in _references(python):
        called = getattr(value, "fn", None)
        if isinstance(called, FunctionType):
            # Another kernel. Triton's own functions are part of Triton's version.
            if called not in seen and not called.__module__.startswith("triton."):
                yield from _source_parts(called, seen)
            continue

        constant = getattr(value, "value", value)  # also of a `tl.constexpr`
        if isinstance(constant, (bool, int, float, str)):
            yield f"{name} = {constant!r}"


def _references(python: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals, closure variables and module members that a function uses."""
    names = python.__code__.co_names
    scope = {name: python.__globals__[name] for name in names if name in python.__globals__}
    cells = zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    for name, value in scope.items():
        if not isinstance(value, ModuleType):
            yield name, value
            continue

        # The code names a module and its members alike, so any of the names may be a member.
        if not value.__name__.startswith("triton"):
            for member in names:
                if hasattr(value, member):
                    yield member, getattr(value, member)
