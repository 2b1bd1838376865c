"""Kernels by the place of their code: ``FILE.py:NAME`` or ``MODULE:NAME``, without packaging."""

import importlib
import importlib.util
import inspect
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from foretune.errors import ForetuneError, UnknownName, UsageError
from foretune.kernel import Kernel

TUNABLE = "@foretune.tunable(KNOB=[…], inputs=…)"


def is_place(name: str) -> bool:
    """Whether this names a file or a module and something in it, or only a Python file."""
    return ":" in name or name.endswith(".py")


def full_place(place: str) -> str:
    """Return a place that is the same in every folder."""
    where, _, name = place.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if where.endswith(".py") else place


def kernel_at(place: str) -> Kernel:
    """Return the kernel that a class, a kernel or a tunable function at ``place`` is.

    Args:
        place: ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises:
        UsageError: there is no such file, module or name, or it is no kernel.
        ForetuneError: the code at that place fails when it is imported.
    """
    where, colon, name = place.rpartition(":")
    if not colon:
        where, name = place, ""
    module = _module(where)
    offered = {n: v for n, v in vars(module).items() if _is_one(v, module)}
    if not hasattr(module, name or "-"):
        if not name:
            listed = ", ".join(f"{where}:{n}" for n in offered) or f"{where}:NAME"
            raise UsageError(f"{where} is a file: write {listed}")
        raise UnknownName(f"kernel in {where}", name, offered)
    return _kernel(getattr(module, name), place)


def object_at(place: str) -> Any:
    """Return what is at ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises:
        UsageError: there is no such file, module or name.
        ForetuneError: the code at that place fails when it is imported.
    """
    where, colon, name = place.rpartition(":")
    if not colon:
        raise UsageError(f"{place} does not say which function: write {place}:NAME")
    module = _module(where)
    if not hasattr(module, name):
        offered = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName(f"function in {where}", name, offered)
    return getattr(module, name)


def _kernel(thing: Any, place: str) -> Kernel:
    if isinstance(thing, Kernel):
        return thing
    if isinstance(thing, type) and issubclass(thing, Kernel):
        if lacking := sorted(getattr(thing, "__abstractmethods__", ())):
            raise UsageError(f"{place} is no whole kernel: it lacks {', '.join(lacking)}")
        try:
            return thing()
        except TypeError as e:
            raise UsageError(f"{place} cannot be made without arguments: {e}") from e
    if hasattr(thing, "has_inputs"):  # foretune.tunable
        if not thing.has_inputs:
            raise UsageError(
                f"{place} does not say how to make its arguments: decorate it with {TUNABLE}"
            )
        made: Kernel = thing.kernel()
        return made
    if type(thing).__module__.partition(".")[0] in ("triton", "foretune"):
        raise UsageError(
            f"{place} is a Triton kernel, which is tuned when it is called: decorate it with "
            "@foretune.autotune; 'foretune inspect' compiles it without a GPU"
        )
    what = "a function without knobs" if callable(thing) else f"of type {type(thing).__name__}"
    raise UsageError(
        f"{place} is {what}: decorate a function with {TUNABLE}, or derive a class from "
        "foretune.Kernel"
    )


def _is_one(value: Any, module: ModuleType) -> bool:
    """Whether a module offers this as a kernel of its own."""
    if isinstance(value, type):
        whole = issubclass(value, Kernel) and not inspect.isabstract(value)
        return whole and value.__module__ == module.__name__
    return isinstance(value, Kernel) or hasattr(value, "has_inputs")


def _module(where: str) -> ModuleType:
    """Import a file or a module; other processes import it by the same name.

    Raises:
        UsageError: there is none, or an installed package has the file's name.
        ForetuneError: its code fails.
    """
    name = where
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise UsageError(f"there is no file {where}: give FILE.py:NAME or MODULE:NAME")
        name = path.stem
        others = [p for p in sys.path if Path(p or ".").resolve() != path.parent]
        if not name.isidentifier() or name in sys.builtin_module_names or (
            PathFinder.find_spec(name, others)
        ):  # fmt: skip
            raise UsageError(f"{where} has the name of another module: rename it")
        _first_on_path(path.parent)
    else:
        _first_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and name.startswith(e.name):
            raise UsageError(f"there is no module {name}: give FILE.py:NAME or MODULE:NAME") from e
        raise ForetuneError(f"{where} cannot be imported: {e}") from e
    except ForetuneError:
        raise
    except Exception as e:  # whatever its code raises
        raise ForetuneError(f"{where} cannot be imported: {type(e).__name__}: {e}") from e


def _first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
