"""Systems that no table has: any GPU by name, and a machine that a TOML file describes.

Such a system was never measured. Its times come from its data sheet and from operators of similar
GPUs, and unknown links are assumed to be PCIe. Plans say so.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.device import SPECS, Device, find_device_or_none
from foretune.errors import UsageError
from foretune.plan.describe.system import PCIE_GBPS, System
from foretune.support.files import read_bytes, translate_read_errors

DEFAULT_GPUS_PER_NODE = 8
"""GPUs of a node, if neither name nor file says."""
REQUIRED_SPECS = ("memory_gib", "memory_gbps")
"""Without these, memory and times cannot be planned."""
RATES = ("bf16_gflops", "fp16_gflops", "fp32_gflops")
"""A device needs one of these."""
PLAUSIBLE = {
    "memory_gib": (1, 2_000, "GiB"),
    "memory_gbps": (20, 50_000, "GB/s: 1000 for a TB/s"),
    **dict.fromkeys(RATES[:2], (1_000, 20_000_000, "1e9 operations/s: 1000 for a TFLOP/s")),
}
"""Specification of a GPU -> least and largest number, and its unit: others are in another unit."""
DEVICE_FIELDS = ("gpu", "architecture", *SPECS)
"""Fields of a TOML file about the GPU; specifications in units of `SPECS`."""
SYSTEM_FIELDS = (
    "name",
    "gpus_per_node",
    "domain_gpus",
    "intra_node_gbps",
    "inter_node_gbps",
    "host_gbps",
    "usable_memory_gib",
    "price_per_hour",
)
"""Fields of a TOML file about the system, as in `System`; ``usable_memory_gib`` is the memory that
the driver reports."""
_ARCHITECTURE = re.compile(r"sm_\d{2,3}a?|gfx[0-9a-f]+|xe[\w-]*", re.IGNORECASE)
_MEMORY = re.compile(r"\s+(?P<gib>\d+) ?gi?b\b", re.IGNORECASE)


def system_of_gpu(name: str, gpus_per_node: int = 0) -> System | None:
    """Return a system of the GPU called ``name``; None if no table has it.

    Raises UsageError if the table lacks its memory or rates.
    """
    device = find_device_or_none(name) or _device_of_size(name)
    if device is None or device.kind != "gpu":
        return None
    _require_specs(device, f"the GPU {device.name}")
    count = gpus_per_node or DEFAULT_GPUS_PER_NODE
    system = System.from_device(device, gpus_per_node=count)
    return replace(system, assumptions=_assumptions(system, links_known=False))


def _device_of_size(name: str) -> Device | None:
    """Return the GPU of a name with a memory size that tables leave out: ``RTX 3080 10GB``."""
    size = _MEMORY.search(name)
    if size is None:
        return None
    device = find_device_or_none(_MEMORY.sub("", name))
    if device is None or round(device.specs.get("memory_gib", 0.0)) != int(size["gib"]):
        return None
    return device


def read_system(path: Path) -> System:
    """Return the system that a TOML file describes; raises UsageError."""
    with translate_read_errors(path, UsageError, "is not a readable description: {}"):
        text = read_bytes(path).decode("utf-8")
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is not TOML: {e}") from e
    unknown = sorted(set(fields) - {*DEVICE_FIELDS, *SYSTEM_FIELDS})
    if unknown:
        known = ", ".join((*SYSTEM_FIELDS, *DEVICE_FIELDS))
        raise UsageError(f"{path}: unknown field {unknown[0]}: known are {known}")

    device = _device(fields, path)
    count = int(_number(fields, "gpus_per_node", path) or 1)
    system = System.from_device(
        device, gpus_per_node=count, name=str(fields.get("name", path.stem))
    )
    stated = {
        "intra_node_gbps": _number(fields, "intra_node_gbps", path),
        "inter_node_gbps": _number(fields, "inter_node_gbps", path),
        "host_gbps": _number(fields, "host_gbps", path),
        "memory_gib": _number(fields, "usable_memory_gib", path),
        "price_per_hour": _number(fields, "price_per_hour", path),
        "domain_gpus": int(_number(fields, "domain_gpus", path)),
    }
    device_gib = device.specs["memory_gib"]
    if stated["memory_gib"] > device_gib:
        raise UsageError(
            f"{path}: usable_memory_gib is {stated['memory_gib']:g}, more than the GPU's memory of "
            f"{device_gib:g} GiB: give memory_gib too"
        )
    given: dict[str, Any] = {name: number for name, number in stated.items() if number}
    described = replace(system, **given)
    return replace(
        described, assumptions=_assumptions(described, links_known="intra_node_gbps" in fields)
    )


def _device(fields: Mapping[str, Any], path: Path) -> Device:
    """Return the GPU of a file: one of the tables, with the file's own specifications."""
    specs = {name: _number(fields, name, path) for name in SPECS if name in fields}
    if "gpu" not in fields:
        device = Device(
            name=str(fields.get("name", path.stem)),
            kind="gpu",
            architecture=str(fields.get("architecture", "")),
            specs=specs,
            source=str(path),
        )
    else:
        known = find_device_or_none(str(fields["gpu"]))
        if known is None:
            raise UsageError(f"{path}: unknown GPU {fields['gpu']!r}: give its numbers instead")
        architecture = str(fields.get("architecture", known.architecture))
        device = replace(known, architecture=architecture, specs={**known.specs, **specs})
    if not device.architecture:
        raise UsageError(f"{path}: give architecture, like sm_89 or gfx1100, or gpu")
    if "architecture" in fields and not _ARCHITECTURE.fullmatch(device.architecture):
        raise UsageError(
            f"{path}: architecture {device.architecture!r} is unknown: give it like sm_89, gfx1100 "
            "or xe2"
        )
    _require_specs(device, str(path))
    for name, (least, largest, unit) in PLAUSIBLE.items():
        number = specs.get(name, least)
        if not least <= number <= largest:
            raise UsageError(f"{path}: {name} is {number:g}: give it in {unit}")
    return device


def _require_specs(device: Device, owner: str) -> None:
    """Raise UsageError if a device lacks numbers that plans need."""
    missing = [name for name in REQUIRED_SPECS if not device.specs.get(name)]
    if not any(device.specs.get(name) for name in RATES):
        missing.append(RATES[0])
    if missing:
        raise UsageError(
            f"{owner} lacks {', '.join(missing)}: give a TOML file with these numbers to --system"
        )


def _number(fields: Mapping[str, Any], name: str, path: Path) -> float:
    """Return a positive number of a file; 0 if it is not there."""
    value = fields.get(name, 0.0)
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    if not valid or not math.isfinite(value) or (name in fields and value <= 0):
        raise UsageError(f"{path}: {name} is {value!r}: give a number above 0")
    if name.endswith(("per_node", "domain_gpus")) and value != int(value):
        raise UsageError(f"{path}: {name} is {value!r}: give a whole number")
    return float(value)


def _assumptions(system: System, links_known: bool) -> str:
    """Return what is assumed of a system that was never measured, in words."""
    measured = (
        f"{system.name} was never measured: its times come from its data sheet and from operators "
        "of similar GPUs"
    )
    if not any(system.device.specs.get(name) for name in RATES[:2]):
        measured += (
            "; the rate of its matrix units is unknown, so that of fp32 counts, and prompts may be "
            "faster: give bf16_gflops in a TOML file"
        )
    if links_known:
        return measured
    return (
        f"{measured}; {system.gpus_per_node} GPUs per node with links of {PCIE_GBPS:g} GB/s "
        "(PCIe 4.0) are assumed: describe others in a TOML file for --system"
    )
