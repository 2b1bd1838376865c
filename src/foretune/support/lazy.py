"""Lazy public names; optional dependencies."""

import ast
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from foretune.errors import MissingExtra, first_line


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562).

    Its public names are those that its ``__init__.py`` imports under ``if TYPE_CHECKING:``.
    """
    loader: Any = sys.modules[package].__loader__
    if (source := loader.get_source(package)) is None:
        raise ImportError(f"{package} is installed without its source: install it again")
    home_of = {
        name.name: str(line.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home_of[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(home_of[name]), name)

    return find, lambda: sorted(home_of)


EXTRA_OF = {"numba": "cpu", "llvmlite": "cpu", "triton": "gpu", "torch": "gpu", "mlflow": "track"}
"""Package that kernels import -> the extra that installs it."""


def require(module: str, extra: str, purpose: str) -> Any:
    """Import ``module``; raise MissingExtra, which names the extra, if that is not possible."""
    try:
        found = importlib.import_module(module)
    except ImportError as e:
        absent = isinstance(e, ModuleNotFoundError) and f"{module}.".startswith(f"{e.name}.")
        why = "is not installed" if absent else f"cannot be imported ({first_line(e)})"
        raise MissingExtra(module.partition(".")[0], extra, purpose, why) from None
    if module == "numba":
        _number_symbols_by_process()
    return found


@cache
def _number_symbols_by_process() -> None:
    """Make the symbols of Numba's functions unique to this process.

    Otherwise two processes could cache different functions under the same symbol, and a third
    process that loads both would call the wrong one.
    """
    from numba.core.bytecode import FunctionIdentity

    FunctionIdentity._unique_ids = itertools.count(os.getpid() << 20)
