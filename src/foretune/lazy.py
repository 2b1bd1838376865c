"""Lazy public names; optional dependencies."""

import importlib
from collections.abc import Callable, Mapping, Sequence
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
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from None
