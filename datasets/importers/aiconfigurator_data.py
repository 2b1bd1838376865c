"""Where AIConfigurator's measurements lie: in its installed package, a folder, a file."""

import os
from pathlib import Path

from foretune.errors import RunTableError
from foretune.operator_package import installed_data

INSTALLED = "installed"
"""Given as FILE, means all the tables of the installed package."""


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
