"""Lazy public names; optional dependencies."""

import importlib
import itertools
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from foretune.errors import MissingExtra, first_line

EXTRA_OF = {"numba": "cpu", "llvmlite": "cpu", "triton": "gpu", "torch": "gpu", "mlflow": "track"}
"""Package that kernels import -> the extra that installs it."""


def lazy_exports(
    package: str, module_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562): names imported on first use.

    ``module_of`` is the module that defines each public name. A name may also be a module of the
    package itself: then its module is ``PACKAGE.NAME``.
    """

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(module_of[name])
        if module_of[name] == f"{package}.{name}":
            return module
        return getattr(module, name)

    def list_names() -> list[str]:
        return sorted(module_of)

    return get, list_names


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
