"""Lazy public names; optional dependencies."""

import importlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from foretune.errors import MissingExtra


def lazy_exports(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562).

    ``names_by_module`` has its public names by the module within it that defines them; those of
    the empty name are modules.
    """
    module_of = {
        name: f"{package}.{home or name}" for home, names in names_by_module.items()
        for name in names
    }  # fmt: skip
    modules = names_by_module.get("", ())

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(module_of[name])
        return module if name in modules else getattr(module, name)

    return find, lambda: sorted(module_of)


EXTRA_OF = {"numba": "cpu", "llvmlite": "cpu", "triton": "gpu", "torch": "gpu", "mlflow": "track"}
"""Package that kernels import -> the extra that installs it."""


def require(module: str, extra: str, purpose: str) -> Any:
    """Import ``module``; raise MissingExtra, which names the extra, if it is not installed."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from None
    if module == "numba":
        _number_symbols_by_process()
    return found


@cache
def _number_symbols_by_process() -> None:
    """Let no two processes give Numba's functions the same symbols.

    Code that two of them put into one folder could hold two functions under one symbol, and a third
    process that loads both would call the wrong one.
    """
    from numba.core.bytecode import FunctionIdentity

    FunctionIdentity._unique_ids = itertools.count(os.getpid() << 20)
