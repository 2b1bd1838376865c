"""Where AIConfigurator's measurements lie: in its installed package, a folder, a file."""

import importlib.util
import os
from pathlib import Path

from foretune.errors import RunTableError

INSTALLED = "installed"
"""Given as FILE, means all the tables of the installed package."""

_PACKAGES = ("aiconfigurator_core", "aiconfigurator")
"""Newer releases keep the data in a package of their own."""


def locate(place: str | os.PathLike[str]) -> Path:
    """Return the path meant by ``place``: a path, ``installed``, or a system (``h200_sxm``).

    Raises:
        RunTableError: it is in the package, which is not there.
    """
    path = Path(place)
    if path.exists() or len(path.parts) != 1:
        return path
    data = installed_data()
    if data is None and not path.suffix:
        raise RunTableError(
            f"{path} is no file here, and AIConfigurator's data is not installed: pip install "
            "aiconfigurator-core, or give a folder of its tables"
        )
    if data is None or path.name == INSTALLED:
        return data or path
    return data / path if (data / path).is_dir() else path


def installed_data() -> Path | None:
    """Return the data folder of the installed package without importing it; None without one."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for home in (spec.submodule_search_locations or []) if spec else []:
            data = Path(home) / "systems" / "data"
            if data.is_dir():
                return data
    return None
