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

TUNABLE_EXAMPLE = "@foretune.tunable(KNOB=[…], inputs=…)"


def is_code_location(name: str) -> bool:
    """Whether this names a file or a module and something in it, or only a Python file."""
    return ":" in name or name.endswith(".py")


def absolute_location(location: str) -> str:
    """Return a place that is the same in every folder."""
    module, _, name = location.rpartition(":")
    return f"{Path(module).resolve()}:{name}" if module.endswith(".py") else location


def kernel_at(location: str) -> Kernel:
    """Return the kernel that a class, a kernel or a tunable function at ``location`` is.

    Args:
        location: ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises:
        UsageError: there is no such file, module or name, or it is no kernel.
        ForetuneError: the code at that place fails when it is imported.
    """
    source, colon, name = location.rpartition(":")
    if not colon:
        source, name = location, ""
    module = _import_module(source)
    kernels = {n: v for n, v in vars(module).items() if _is_kernel(v, module)}
    if not hasattr(module, name or "-"):
        if not name:
            listed = ", ".join(f"{source}:{n}" for n in kernels) or f"{source}:NAME"
            raise UsageError(f"{source} is a file: write {listed}")
        raise UnknownName(f"kernel in {source}", name, kernels)
    return _as_kernel(getattr(module, name), location)


def object_at(location: str) -> Any:
    """Return what is at ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises:
        UsageError: there is no such file, module or name.
        ForetuneError: the code at that place fails when it is imported.
    """
    source, colon, name = location.rpartition(":")
    if not colon:
        raise UsageError(f"{location} does not say which function: write {location}:NAME")
    module = _import_module(source)
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName(f"function in {source}", name, functions)
    return getattr(module, name)


def _as_kernel(obj: Any, location: str) -> Kernel:
    if isinstance(obj, Kernel):
        return obj
    if isinstance(obj, type) and issubclass(obj, Kernel):
        if missing := sorted(getattr(obj, "__abstractmethods__", ())):
            raise UsageError(f"{location} is no whole kernel: it lacks {', '.join(missing)}")
        try:
            return obj()
        except TypeError as e:
            raise UsageError(f"{location} cannot be made without arguments: {e}") from e
    if hasattr(obj, "has_inputs"):  # foretune.tunable
        if not obj.has_inputs:
            raise UsageError(
                f"{location} does not say how to make its arguments: decorate it with {TUNABLE_EXAMPLE}"
            )
        made: Kernel = obj.kernel()
        return made
    if type(obj).__module__.partition(".")[0] in ("triton", "foretune"):
        raise UsageError(
            f"{location} is a Triton kernel, which is tuned when it is called: decorate it with "
            "@foretune.autotune; 'foretune inspect' compiles it without a GPU"
        )
    what = "a function without knobs" if callable(obj) else f"of type {type(obj).__name__}"
    raise UsageError(
        f"{location} is {what}: decorate a function with {TUNABLE_EXAMPLE}, or derive a class from "
        "foretune.Kernel"
    )


def _is_kernel(value: Any, module: ModuleType) -> bool:
    """Whether a module offers this as a kernel of its own."""
    if isinstance(value, type):
        concrete = issubclass(value, Kernel) and not inspect.isabstract(value)
        return concrete and value.__module__ == module.__name__
    return isinstance(value, Kernel) or hasattr(value, "has_inputs")


def _import_module(source: str) -> ModuleType:
    """Import a file or a module; other processes import it by the same name.

    Raises:
        UsageError: there is none, or an installed package has the file's name.
        ForetuneError: its code fails.
    """
    name = source
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise UsageError(f"there is no file {source}: give FILE.py:NAME or MODULE:NAME")
        name = path.stem
        others = [p for p in sys.path if Path(p or ".").resolve() != path.parent]
        if not name.isidentifier() or name in sys.builtin_module_names or (
            PathFinder.find_spec(name, others)
        ):  # fmt: skip
            raise UsageError(f"{source} has the name of another module: rename it")
        _first_on_path(path.parent)
    else:
        _first_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and name.startswith(e.name):
            raise UsageError(f"there is no module {name}: give FILE.py:NAME or MODULE:NAME") from e
        raise ForetuneError(f"{source} cannot be imported: {e}") from e
    except ForetuneError:
        raise
    except Exception as e:  # whatever its code raises
        raise ForetuneError(f"{source} cannot be imported: {type(e).__name__}: {e}") from e


def _first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
