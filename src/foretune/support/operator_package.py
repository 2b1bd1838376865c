"""Locates the package of measured operators of serving engines: AIConfigurator's data."""

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("aiconfigurator_core", "aisimulate_core", "aiconfigurator")
"""In order of preference. aisimulate succeeds aiconfigurator-core from 0.13 on; Foretune's errors
were measured with aiconfigurator-core 0.12."""


def package_folder() -> Path | None:
    """Return the folder of the installed package, without importing it; None without one.

    Newer packages also have ``systems/*.yaml``, ``systems/silicon_sample.csv`` (measured
    deployments) and ``model_configs``.
    """
    for package in PACKAGES:
        spec = find_spec(package)
        for home in (spec.submodule_search_locations or []) if spec else []:
            if (Path(home) / "systems" / "data").is_dir():
                return Path(home)
    return None


def installed_tables() -> Path | None:
    """Return the folder of the package's tables; None without one."""
    home = package_folder()
    return home / "systems" / "data" if home else None
