"""Devices: names, specifications and rooflines of hardware."""

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from foretune.errors import UnknownName
from foretune.family import Cost, Quantity

SPECS: dict[str, str] = {
    "cores": "CPU cores this process may use; streaming multiprocessors or compute units of a GPU",
    "clock_mhz": "boost clock, MHz",
    "fp64_gflops": "peak rate of double precision, 1e9 operations/s (an FMA counts two)",
    "fp32_gflops": "peak rate of single precision outside matrix units",
    "fp16_gflops": "peak dense rate of half precision (matrix units if present)",
    "bf16_gflops": "peak dense rate of bfloat16",
    "fp8_gflops": "peak dense rate of 8-bit floats",
    "int8_gflops": "peak dense rate of 8-bit integers",
    "fp4_gflops": "peak dense rate of 4-bit floats",
    "memory_gbps": "main-memory bandwidth, GB/s (1e9)",
    "memory_gib": "main-memory size, GiB",
    "l1_kib": "first-level data cache per core; L1 and shared memory per SM",
    "l2_kib": "second-level cache: per core on a CPU, whole device on a GPU",
    "l3_kib": "last-level cache shared by cores (AMD GPUs: Infinity Cache)",
    "vector_bits": "widest SIMD register of a CPU",
    "power_limit_w": "board or package power limit, watts",
}
"""Numeric descriptor columns and their units; unknown values are absent, never guessed."""


@dataclass(frozen=True)
class Device:
    """A piece of hardware that runs kernels.

    Attributes:
        name: the driver's name, e.g. ``NVIDIA H200``.
        architecture: instruction set or generation, e.g. ``x86_64+avx512``, ``sm_90``, ``gfx942``.
        specs: numbers by the names in `SPECS`.
        source: origin of the specs.
        index: which of several devices of its kind, as in ``cuda:1``.
    """

    name: str
    kind: Literal["cpu", "gpu"]
    architecture: str = ""
    specs: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    index: int = 0

    def roofline_ms(self, cost: Cost) -> Quantity:
        """Return the minimum time of the work at this device's peak rates, in milliseconds.

        The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the larger of
        operations over peak rate and bytes over bandwidth. An unknown rate is no limit; if both are
        unknown, the result is NaN.
        """
        return np.fmax(*roofline_terms_ms(cost, self.specs))


def roofline_terms_ms(cost: Cost, specs: Mapping[str, Quantity]) -> tuple[Quantity, Quantity]:
    """Return operations over peak rate, and bytes over bandwidth, in milliseconds.

    NaN if the rate is unknown. ``cost`` and ``specs`` are numbers, or arrays with an entry per
    launch.
    """
    compute = np.divide(cost.flops, np.multiply(peak_rate(cost.dtype, specs), 1e6))
    memory = np.divide(cost.bytes_moved, np.multiply(specs.get("memory_gbps", np.nan), 1e6))
    return compute, memory


_NEXT_WIDER = {"fp4": "fp8", "fp8": "bf16", "int8": "fp16", "bf16": "fp16", "fp16": "fp32"}
"""Precision used if a device has no rate for one."""


def peak_rate(dtype: "str | np.ndarray", specs: Mapping[str, Quantity]) -> Quantity:
    """Return the peak rate of a precision, 1e9 operations/s, or that of the next wider one."""
    if isinstance(dtype, str):
        if dtype == "tf32":  # matrix units run it at half the rate of 16 bits
            return np.fmax(peak_rate("fp32", specs), 0.5 * specs.get("fp16_gflops", np.nan))
        rate = specs.get(f"{dtype}_gflops", np.nan)
        if dtype == "fp32" or not np.isnan(rate).any():
            return rate
        return np.where(np.isnan(rate), peak_rate(_NEXT_WIDER.get(dtype, "fp32"), specs), rate)
    names = np.unique(dtype)
    if len(names) == 0:
        return np.nan
    return np.select([dtype == n for n in names], [peak_rate(str(n), specs) for n in names], np.nan)


def available_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices of the shipped spec table, by name."""
    text = files("foretune").joinpath("device_specs.csv").read_text(encoding="utf-8")
    return {row["name"]: _device_from_row(row) for row in csv.DictReader(text.splitlines())}


def find_device(name: str) -> Device:
    """Return the device of the spec table whose name is ``name``, ignoring case and vendor.

    Raises:
        UnknownName: the table has no such device.
    """
    found = _devices_by_key().get(_key(name))
    if found is None:
        raise UnknownName("device", name, known_devices())
    return found


def find_device_or_none(name: str) -> Device | None:
    """Return the device of the spec table called ``name``, or None.

    Trademark signs and a trailing ``Graphics``, which Intel's driver adds, are ignored.
    """
    plain = name.replace("(R)", "").replace("(TM)", "").removesuffix(" Graphics")
    return _devices_by_key().get(_key(plain))


def canonical_name(name: str) -> str:
    """Return the spec table's spelling of a device name, or ``name`` itself if it has none."""
    device = find_device_or_none(name)
    return device.name if device else name


@cache
def _devices_by_key() -> dict[str, Device]:
    return {_key(name): device for name, device in known_devices().items()}


def _key(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return " ".join(w for w in words if w not in ("nvidia", "amd", "intel", "geforce"))


def _device_from_row(row: dict[str, Any]) -> Device:
    return Device(
        name=row["name"],
        kind=row["kind"],
        architecture=row["architecture"],
        specs={spec: float(row[spec]) for spec in SPECS if row.get(spec)},
        source=row["source"],
    )
