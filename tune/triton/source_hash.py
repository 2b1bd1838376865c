"""The identity of a Triton kernel: the hash of its code and all that it calls.

The functions of ``@triton.heuristics`` set constants of the kernel, and a tuner's hook may change
its arguments: they count, too. Stored measurements are found by this hash, so a change here loses
those of all users.
"""

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import triton
from triton.runtime.jit import JITFunction

from foretune.errors import warn
from foretune.support.function_code import function_code, syntax_of
from foretune.support.identity import identify, unique_digest

HASH_DIGITS = 16
"""Hexadecimal digits of a hash."""
MAX_CALLABLES = 1024
"""Number of hooks and heuristics whose digests are kept."""
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


def decorated_hash(function: Any, hook: Callable[..., Any] | None = None) -> str:
    """Return the hash of a kernel, of the heuristics around it, and of a tuner's ``hook``.

    Without heuristics and a hook, it is the `source_hash` of the kernel.
    """
    around = []
    while not isinstance(function, JITFunction) and hasattr(getattr(function, "fn", None), "fn"):
        heuristics = getattr(function, "values", None)
        if isinstance(heuristics, dict):
            around += [f"{name}: {callable_digest(f)}" for name, f in sorted(heuristics.items())]
        function = function.fn
    if hook is not None:
        around.append(f"hook: {callable_digest(hook)}")
    if not around:
        return source_hash(function)
    text = "\n".join([source_hash(function), *around])
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


@lru_cache(maxsize=MAX_CALLABLES)
def callable_digest(function: Callable[..., Any]) -> str:
    """Return the digest of a function's code and of all that it reads, such as its closure.

    If something cannot be read, a warning says so, and no other process has the same digest.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    found = identify(function, owner=name)
    if not found.unreadable:
        return found.digest
    warn(
        f"results with {name} are not reused: {', '.join(found.unreadable)} cannot be read; let it "
        "read numbers, texts and arrays only",
        stacklevel=3,
    )
    return unique_digest()


def _source_parts(python: FunctionType, seen: set[Any], *, compiled: bool = True) -> Iterator[str]:
    """Yield the code and constants that ``python`` depends on.

    ``compiled`` is whether Triton compiles it; else Python runs it (``constexpr_function``).
    """
    seen.add(python)
    yield function_code(python)
    for name, value in (*_references(python), *_named_defaults(python)):
        yield from _value_parts(name, value, seen, compiled=compiled)


def _value_parts(name: str, value: Any, seen: set[Any], *, compiled: bool) -> Iterator[str]:
    """Yield the code and constants that a named value brings into a function."""
    called = getattr(value, "fn", value)
    if isinstance(called, FunctionType):
        if called not in seen:
            yield from _function_parts(name, value, called, seen, compiled=compiled)
    elif isinstance(value, type):
        # Triton compiles methods of its own classes (aggregates); Python may use any.
        is_read = not compiled or hasattr(value, "__triton_aggregate__")
        if is_read and value not in seen and not _is_of_triton(value):
            seen.add(value)
            yield f"{name} has {list(inspect.get_annotations(value))}"
            for member, of_class in vars(value).items():
                if not member.startswith("__"):
                    yield from _value_parts(member, of_class, seen, compiled=compiled)
    else:
        yield from _constant_parts(name, value, seen, compiled=compiled)


def _function_parts(
    name: str, value: Any, called: FunctionType, seen: set[Any], *, compiled: bool
) -> Iterator[str]:
    """Yield the code of a function; ``called`` is the Python function of ``value``."""
    if _is_of_triton(called):
        # These are part of Triton's version, but a name may stand for any of them.
        is_other = called.__name__ != name or called.__module__.startswith("triton.language.extra")
        if is_other:
            yield f"{name} = {called.__module__}.{called.__qualname__}"
    elif called is not value:
        yield from _source_parts(called, seen, compiled=isinstance(value, JITFunction))
    elif not compiled:
        yield from _source_parts(called, seen, compiled=False)


def _constant_parts(name: str, value: Any, seen: set[Any], *, compiled: bool) -> Iterator[str]:
    """Yield a constant; of a container, its parts."""
    constant = value.value if isinstance(value, triton.language.constexpr) else value
    if _is_constant(constant):
        yield f"{name} = {constant!r}"
    elif isinstance(constant, Mapping):
        for key, part in constant.items():
            yield from _value_parts(f"{name}[{key!r}]", part, seen, compiled=compiled)
    elif isinstance(constant, tuple | list):
        for i, part in enumerate(constant):
            yield from _value_parts(f"{name}[{i}]", part, seen, compiled=compiled)
    elif constant is not value:
        yield from _value_parts(name, constant, seen, compiled=compiled)


def _is_of_triton(value: Any) -> bool:
    return (value.__module__ or "").startswith("triton.")


def _named_defaults(python: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the defaults that code does not tell, because they are names, like ``BLOCK=SIZE``."""
    syntax: Any = syntax_of(python)
    if syntax is None:
        return
    arguments = syntax.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    values = inspect.signature(python).parameters
    for argument, default in pairs:
        if default is not None and not isinstance(default, ast.Constant):
            yield f"default of {argument.arg}", values[argument.arg].default


def _is_constant(value: Any) -> bool:
    """Whether a kernel may use a global value: a number, text, Triton type, or several of them."""
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    kinds = bool | int | float | str | Enum | np.generic | triton.language.dtype
    return isinstance(value, kinds)


def _references(python: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals, closure variables and module members that a function uses."""
    names = python.__code__.co_names
    scope = {name: python.__globals__[name] for name in names if name in python.__globals__}
    cells = zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    for name, value in scope.items():
        if isinstance(value, ModuleType):
            yield from _members(value, names, seen=set())
        else:
            yield name, value


def _members(owner: Any, names: Sequence[str], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a module that code names, and those of modules and classes in it.

    The code names modules and their members alike, so any of the names may be a member.
    """
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    if id(owner) in seen or module.split(".")[0] == "triton":
        return
    seen.add(id(owner))
    for name in names:
        if hasattr(owner, name):
            member = getattr(owner, name)
            yield name, member
            if isinstance(member, ModuleType | type):
                yield from _members(member, names, seen)
