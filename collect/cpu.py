"""What the operating system and the compiler say of this CPU; nothing here is measured."""

import platform
import subprocess
from pathlib import Path

import psutil

from foretune.errors import MissingExtra
from foretune.extras import require

CPU_FOLDER = Path("/sys/devices/system/cpu")
"""Where Linux describes its processors."""


def cpu_name() -> str:
    """Return what the operating system calls this CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:  # not Linux
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cache_sizes(cpus: Path = CPU_FOLDER) -> dict[str, float]:
    """Return ``l1_kib``, ``l2_kib`` and ``l3_kib`` of the first core, those that are known.

    Args:
        cpus: where Linux describes its processors.
    """
    sizes = {}
    for cache in sorted(cpus.glob("cpu0/cache/index*")):
        try:
            level, kind, size = (
                (cache / part).read_text().strip() for part in ("level", "type", "size")
            )
            if kind in ("Data", "Unified"):
                sizes[f"l{int(level)}_kib"] = _kib(size)
        except (OSError, ValueError):  # virtual machines may leave files out or empty
            continue
    if not sizes:
        names = {
            "l1_kib": "hw.l1dcachesize",
            "l2_kib": "hw.l2cachesize",
            "l3_kib": "hw.l3cachesize",
        }
        found = {spec: _sysctl(name) for spec, name in names.items()}
        sizes = {spec: int(text) / 1024 for spec, text in found.items() if text.isdigit()}
    return sizes


def _kib(size: str) -> float:
    return int(size[:-1]) * {"K": 1.0, "M": 1024.0, "G": 1024.0**2}[size[-1:]]


def _sysctl(name: str) -> str:
    """Return a value of macOS's sysctl; empty where there is none."""
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def clock_mhz() -> float:
    """Return the highest clock; 0 where it is not known."""
    try:
        frequency = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):  # as the platform pleases
        return 0.0
    return float(frequency.max) if frequency else 0.0


def host_features() -> set[str]:
    """Return the instruction-set extensions of this CPU, by LLVM's names."""
    try:
        binding = require("llvmlite.binding", "cpu", "the CPU's features")
        return {name for name, has in binding.get_host_cpu_features().items() if has}
    except (MissingExtra, RuntimeError):
        return set()


def architecture(features: set[str]) -> str:
    """Return the machine and its widest vector extension, e.g. ``x86_64+avx512``."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    for feature, name in (
        ("avx512f", "avx512"), ("avx2", "avx2"), ("avx", "avx"), ("sse2", "sse"),
        ("sve", "sve"), ("neon", "neon"),
    ):  # fmt: skip
        if feature in features:
            return f"{machine}+{name}"
    return machine


def vector_bits(features: set[str]) -> float:
    """Return the width of the widest SIMD register; 0 where it is not known."""
    if "sve" in features:  # the only extension whose width is not in its name
        try:
            return 8.0 * int(Path("/proc/sys/abi/sve_default_vector_length").read_text())
        except (OSError, ValueError):
            return 128.0
    widths = {"avx512f": 512.0, "avx": 256.0, "sse2": 128.0, "neon": 128.0}
    return next((bits for feature, bits in widths.items() if feature in features), 0.0)
