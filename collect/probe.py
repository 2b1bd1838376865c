"""The devices of this machine: what the system says of them, and what a short probe measures.

Nobody publishes the peak rates of the processor a virtual machine happens to run on, so the two
numbers a roofline needs are measured once and remembered: bandwidth by the STREAM triad, and
arithmetic by a loop of independent fused multiply-adds.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from foretune.collect.cpu import (
    architecture,
    cache_sizes,
    clock_mhz,
    cpu_name,
    host_features,
    vector_bits,
)
from foretune.collect.gpus import local_gpus
from foretune.collect.peaks import measure_cpu
from foretune.device import Device, available_cores, find_device
from foretune.errors import MissingExtra, OutputError, UnknownName
from foretune.replacing import atomic_write

PROBE_VERSION = 1
"""Raised when the probe changes, so that figures of an older one are measured again."""

_memo: dict[Path, dict[str, float]] = {}  # where the cache cannot be written


def local_devices() -> list[Device]:
    """Return this machine's CPU and the GPUs this process may use."""
    return [local_cpu(), *local_gpus()]


def local_device(name: str | None = None, measure: bool = True) -> Device:
    """Return one device of this machine.

    Args:
        name: ``cpu`` (the default), ``cuda:0`` and so on, ``cuda`` for the first GPU, or the
            name of a device as its driver gives it.
        measure: whether the CPU's rates are measured where they are not known yet.

    Raises:
        UnknownName: this machine has no such device.
    """
    if name is None or name.lower() == "cpu":
        return local_cpu(measure)
    gpus = local_gpus()
    named = {f"cuda:{i}": gpu for i, gpu in enumerate(gpus)}
    wanted = "cuda:0" if name.lower() in ("cuda", "gpu") else name.lower()
    if wanted in named:
        return named[wanted]
    for gpu in gpus:
        if _is_same_device(name, gpu.name):
            return gpu
    if _is_same_device(name, cpu_name()):
        return local_cpu()
    raise UnknownName("device", name, ["cpu", *named, *{gpu.name for gpu in gpus}])


def _is_same_device(name: str, driver_name: str) -> bool:
    if name.lower() == driver_name.lower():
        return True
    try:
        return find_device(name).name == driver_name
    except UnknownName:
        return False


def local_cpu(measure: bool = True) -> Device:
    """Return the descriptor of this CPU; specs that cannot be found out are absent.

    Without ``measure``, rates are absent, too, unless they were measured before.

    ``memory_gbps``, ``fp32_gflops`` and ``fp64_gflops`` are those of `probe_cpu`: measured on the
    first call on a machine, read from a cache afterwards, absent where Numba is not installed.
    """
    features = host_features()
    memory_gib = psutil.virtual_memory().total / 2**30
    specs = {"cores": float(available_cores()), "clock_mhz": clock_mhz(), **cache_sizes()}
    specs |= {"memory_gib": memory_gib, "vector_bits": vector_bits(features)}
    try:
        specs |= probe_cpu(measure=measure)
        source = f"operating system; rates measured (probe {PROBE_VERSION})"
    except MissingExtra:
        source = "operating system; rates not measured: pip install '.[cpu]'"
    return Device(
        name=cpu_name(),
        kind="cpu",
        architecture=architecture(features),
        specs={spec: value for spec, value in specs.items() if value > 0},
        source=source,
    )


def probe_cpu(refresh: bool = False, measure: bool = True) -> dict[str, float]:
    """Return the measured ``memory_gbps``, ``fp32_gflops`` and ``fp64_gflops`` of this CPU.

    Measuring takes a few seconds, most of them compilation. The result is kept as JSON under the
    user's cache directory (or the one the environment variable ``FORETUNE_CACHE`` names), for
    this CPU, this number of cores and this version of the probe. A cache that is damaged or
    cannot be written is no error: the probe runs again.

    Args:
        refresh: measure even if there is a cached result.
        measure: whether to measure at all; else nothing is returned where nothing is known.

    Raises:
        MissingExtra: Numba is not installed.
    """
    machine: dict[str, Any] = {
        "probe": PROBE_VERSION,
        "cpu": cpu_name(),
        "architecture": architecture(host_features()),  # a virtual machine's name says little
        "cores": available_cores(),
        **cache_sizes(),
    }
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_directory() / f"cpu-{digest}.json"
    cached = None if refresh else _memo.get(path) or _read(path)
    if not cached and not measure:
        return {}
    if not cached:
        cached = measure_cpu()
        _write(path, {"machine": machine, "specs": cached})
    _memo[path] = cached
    return dict(cached)


def cache_directory() -> Path:
    """Return where probed figures are kept."""
    return Path(os.environ.get("FORETUNE_CACHE") or platformdirs.user_cache_dir("foretune"))


def _read(path: Path) -> dict[str, float] | None:
    try:
        specs = json.loads(path.read_text(encoding="utf-8"))["specs"]
        found = {spec: float(specs[spec]) for spec in _MEASURED}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if all(0 < value < math.inf for value in found.values()) else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    # Where it is read-only or full, the memo serves this process.
    with contextlib.suppress(OutputError), atomic_write(path) as new:
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


_MEASURED = ("memory_gbps", "fp32_gflops", "fp64_gflops")
