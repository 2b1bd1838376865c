"""Where AIConfigurator's measurements lie: in its installed package, a folder, a file."""

import os
from pathlib import Path

from foretune.errors import RunTableError
from foretune.operator_package import installed_tables

INSTALLED = "installed"
"""Given as FILE, means all the tables of the installed package."""


def locate(source: str | os.PathLike[str]) -> Path:
    """Return the path meant by ``source``: a path, ``installed``, or a system (``h200_sxm``).

    Raises:
        RunTableError: it is in the package, which is not there.
    """
    path = Path(source)
    if path.exists() or len(path.parts) != 1:
        return path
    data = installed_tables()
    if data is None and not path.suffix:
        raise RunTableError(
            f"{path} is no file here, and AIConfigurator's data is not installed: pip install "
            "aiconfigurator-core, or give a folder of its tables"
        )
    if data is None or path.name == INSTALLED:
        return data or path
    return data / path if (data / path).is_dir() else path
