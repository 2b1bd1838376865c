"""Versions of the software that determines times and compiled code."""

import platform
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from foretune.device import Device, hardware_digest

DRIVER_VERSION_FILES = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
"""Files that contain the versions of drivers."""


@cache
def versions() -> str:
    """Return the versions that times depend on."""
    found = [f"python {platform.python_version()}"]
    return ", ".join(found + _versions("foretune", "numpy", "numba", "triton", "torch"))


@cache
def toolchain(kind: str) -> str:
    """Return the versions that determine the code of kernels for one kind of device.

    For example ``triton 3.9.0, driver 570.86.15`` for ``gpu``. Foretune's version is included for
    the CPU only, because Triton compiles and times its own kernels.
    """
    if kind == "gpu":
        return ", ".join(_versions("triton") + _drivers())
    return ", ".join(_versions("foretune", "numpy", "numba"))


def toolchain_on(device: Device, kind: str) -> str:
    """Return the toolchain, and what the device is beside its name."""
    return f"{toolchain(kind)}, hardware {hardware_digest(device)}"


def _drivers() -> list[str]:
    for path in DRIVER_VERSION_FILES:
        with suppress(OSError):
            if found := re.search(r"\d+\.\d+(\.\d+)*", Path(path).read_text()):
                return [f"driver {found[0]}"]
    return []


def _versions(*packages: str) -> list[str]:
    parts = []
    for package in packages:
        with suppress(PackageNotFoundError):
            parts.append(f"{package} {version(package)}")
    return parts
