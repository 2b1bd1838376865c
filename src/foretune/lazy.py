"""Packages whose names are imported when first used: importing one costs next to nothing."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562).

    Args:
        package: its name.
        names_by_module: its public names by the module, within the package, that defines them.
    """
    module_of = {
        name: f"{package}.{home}" for home, names in names_by_module.items() for name in names
    }

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return find, lambda: sorted(module_of)
