"""Versions of what decides about times, and about compiled code."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def versions() -> str:
    """Return the versions that times depend on."""
    found = [f"python {platform.python_version()}"]
    return ", ".join(found + _versions("foretune", "numpy", "numba", "triton", "torch"))


@cache
def toolchain(kind: str) -> str:
    """Return the versions that decide about the code of kernels for one kind of device.

    For example ``foretune 0.1.0, triton 3.9.0`` for ``gpu``.
    """
    return ", ".join(_versions("foretune", *(("triton",) if kind == "gpu" else ("numpy", "numba"))))


def _versions(*packages: str) -> list[str]:
    """Return name and version of those that are installed."""
    parts = []
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return parts
