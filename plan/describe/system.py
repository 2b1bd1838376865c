"""GPU systems to deploy on, and this machine."""

import csv
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from foretune.collect.devices import local_device, local_gpus
from foretune.device import Device, find_device, find_device_or_none
from foretune.errors import RunTableError, UnknownName
from foretune.files import read_bytes, translate_read_errors
from foretune.operator_package import installed_tables

PCIE_GBPS = 32.0
"""PCIe 4.0 x16 in one direction; assumed for unknown links."""
NETWORK_GBPS = 50.0
"""A 400 Gb/s network adapter, in one direction."""
REPORTED_SHARE = 0.99
"""Share of the data sheet's memory that the driver leaves, on most GPUs."""


@dataclass(frozen=True)
class System:
    """Nodes of GPUs to deploy on.

    Bandwidths are per GPU and direction.

    Attributes:
        name: short, like ``h100_sxm``.
        device: the GPU.
        gpus_per_node: GPUs per server.
        intra_node_gbps: between GPUs of a node or domain, GB/s.
        inter_node_gbps: between nodes or domains, GB/s.
        memory_gib: per GPU, as PyTorch reports it: less than the data sheet's.
        price_per_hour: USD per GPU; None if unknown.
        power_limit_w: watts per GPU; NaN if unknown.
        domain_gpus: GPUs joined by fast links, if more than a node (a rack of 72).
        host_gbps: between a GPU and host memory, GB/s.
    """

    name: str
    device: Device
    gpus_per_node: int
    intra_node_gbps: float
    inter_node_gbps: float
    memory_gib: float
    price_per_hour: float | None
    power_limit_w: float
    domain_gpus: int = 0
    host_gbps: float = PCIE_GBPS

    @classmethod
    def from_device(cls, device: Device, gpus_per_node: int = 1, name: str = "") -> Self:
        """Return a system of GPUs (or one CPU) with unknown links.

        A CPU copies to other ranks within its memory at half the measured bandwidth, since each
        byte is read and written (`foretune.collect.devices`).
        """
        copy_gbps = device.specs.get("memory_gbps", 0.0) / 2 if device.kind == "cpu" else 0.0
        reported = 1.0 if device.kind == "cpu" else REPORTED_SHARE
        return cls(
            name=name or device.name,
            device=device,
            gpus_per_node=gpus_per_node,
            intra_node_gbps=PCIE_GBPS,
            inter_node_gbps=NETWORK_GBPS,
            memory_gib=reported * device.specs.get("memory_gib", 0.0),
            price_per_hour=None,
            power_limit_w=device.specs.get("power_limit_w", float("nan")),
            host_gbps=copy_gbps or PCIE_GBPS,
        )

    @property
    def fast_domain_gpus(self) -> int:
        """Number of GPUs joined by fast links."""
        return self.domain_gpus or self.gpus_per_node


def find_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return a system by short name (``h100_sxm``), abbreviation (``h100``) or device name.

    Descriptors come from the shipped table, or from aiconfigurator-core if installed. Raises
    UnknownName if the system is unknown; the message suggests similar names. ``prices`` in USD per
    GPU and hour replace the shipped ones.
    """
    known = _shipped()
    short = _short_name(name, known)
    if short is None:
        raise UnknownName("system", name, known_systems())
    row = known.get(short) or _read_descriptor(short)
    device = find_device(row["device"]) if isinstance(row["device"], str) else row["device"]
    cost = published_prices() if prices is None else prices
    return System(
        name=short,
        device=device,
        gpus_per_node=int(row["gpus_per_node"]),
        intra_node_gbps=float(row["intra_node_gbps"]),
        inter_node_gbps=float(row["inter_node_gbps"]),
        memory_gib=float(row["memory_gib"]),
        price_per_hour=cost.get(short),
        power_limit_w=device.specs.get("power_limit_w", float("nan")),
        domain_gpus=int(row["domain_gpus"]),
        host_gbps=float(row["host_gbps"]),
    )


def known_systems() -> list[str]:
    """Return the names that `find_system` knows on this machine."""
    return sorted({*_shipped(), *_yaml_files()})


@cache
def published_prices() -> dict[str, float]:
    """Return the shipped prices in USD per GPU and hour, by system."""
    text = files("foretune.plan.describe").joinpath("prices.csv").read_text(encoding="utf-8")
    return _parse_prices(text, "prices.csv")


def read_prices(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return a user's prices: a CSV file with columns ``system`` and ``usd_per_gpu_hour``.

    Raises RunTableError if the file cannot be read, lacks a column, or has an invalid price.
    """
    with translate_read_errors(path, RunTableError, "is no readable table of prices: {}"):
        return _parse_prices(read_bytes(path).decode("utf-8-sig"), str(path))


def _parse_prices(text: str, name: str) -> dict[str, float]:
    prices = {}
    for i, row in enumerate(csv.DictReader(text.splitlines()), 1):
        try:
            system, price = row["system"], float(row["usd_per_gpu_hour"])
        except KeyError as e:
            raise RunTableError(f"{name} has no column {e}: system,usd_per_gpu_hour") from e
        except (TypeError, ValueError) as e:
            raise RunTableError(f"{name}, row {i}: the price is not a number ({e})") from e
        if not 0 < price < float("inf"):
            raise RunTableError(f"{name}, row {i}: the price must be positive, not {price}")
        prices[system] = price
    return prices


def _short_name(name: str, known: Mapping[str, Any]) -> str | None:
    """Return the short name of a system, if known."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    names = {*known, *_yaml_files()}
    for candidate in (plain, f"{plain}_sxm", f"{plain}_server", plain.removesuffix("_sxm")):
        if candidate in names:
            return candidate
    device = find_device_or_none(name)
    found = [short for short in known if device and known[short]["device"] == device.name]
    return found[0] if found else None


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    text = files("foretune.plan.describe").joinpath("systems.csv").read_text(encoding="utf-8")
    return {row["name"]: dict(row) for row in csv.DictReader(text.splitlines())}


@cache
def _yaml_files() -> dict[str, Path]:
    """Return aiconfigurator-core's descriptors by system, without importing it."""
    data = installed_tables()
    found = data.parent.glob("*.yaml") if data else []
    return {path.stem: path for path in found if data and (data / path.stem).is_dir()}


def _read_descriptor(name: str) -> dict[str, Any]:
    """Return aiconfigurator-core's descriptor of a system, with our table's columns."""
    from foretune.datasets.importers.columns import SYSTEMS  # imports pandas

    yaml = importlib.import_module("yaml")  # comes with the package
    content = yaml.safe_load(_yaml_files()[name].read_text(encoding="utf-8"))
    gpu, node = content["gpu"], content["node"]
    known = find_device_or_none(SYSTEMS.get(name, name))
    rack = node.get("num_gpus_per_rack")
    return {
        "device": known or _descriptor_device(name, gpu),
        "gpus_per_node": node["num_gpus_per_node"],
        "domain_gpus": rack or node["num_gpus_per_node"],
        "memory_gib": REPORTED_SHARE * gpu["mem_capacity"] / 2**30,
        "intra_node_gbps": node["intra_node_bw"] / 1e9,
        "inter_node_gbps": (node["inter_rack_bw"] if rack else node["inter_node_bw"]) / 1e9,
        "host_gbps": node.get("pcie_bw", PCIE_GBPS * 1e9) / 1e9,
    }


def _descriptor_device(name: str, gpu: Mapping[str, Any]) -> Device:
    """Return the device of a descriptor."""
    rates = {"bfloat16": "bf16", "int8": "int8", "fp8": "fp8", "fp4": "fp4", "float32": "fp32"}
    specs = {
        f"{ours}_gflops": gpu[f"{theirs}_tc_flops"] / 1e9
        for theirs, ours in rates.items()
        if f"{theirs}_tc_flops" in gpu
    }
    specs |= {"memory_gbps": gpu["mem_bw"] / 1e9, "memory_gib": gpu["mem_capacity"] / 2**30}
    if "power" in gpu:
        specs["power_limit_w"] = float(gpu["power"])
    architecture = f"sm_{gpu['sm_version']}" if "sm_version" in gpu else ""
    return Device(name, "gpu", architecture, specs, "AIConfigurator systems table (Apache-2.0)")


LOCAL = "local"


def resolve_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return the system called ``name``; ``local`` is this machine.

    See `find_system`.
    """
    return local_system(prices) if name.lower() == LOCAL else find_system(name, prices)


def local_system(prices: Mapping[str, float] | None = None) -> System:
    """Return this machine: its GPUs of the first kind, or its CPU.

    A known GPU gives the known system with its links and price. The links of others are assumed to
    be PCIe.
    """
    gpus = local_gpus()
    if not gpus:
        return System.from_device(local_device("cpu"))
    first = gpus[0]
    try:
        return find_system(first.name, prices)
    except UnknownName:
        return System.from_device(first, sum(gpu.name == first.name for gpu in gpus))
