"""GPU systems to deploy on, found by name without a network."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from foretune.collect.devices import local_device, local_gpus
from foretune.device import find_device, find_device_or_none
from foretune.errors import RunTableError, UnknownName, UsageError
from foretune.plan.describe import parse_rows, shipped_rows, shipped_text
from foretune.plan.describe.any_system import read_system, system_of_gpu
from foretune.plan.describe.machine_names import (
    find_instance,
    split_count,
    unplanned_machine,
    usual_name,
)
from foretune.plan.describe.system import System
from foretune.plan.describe.user_tables import user_rows

PRICE_COLUMNS = ("system", "usd_per_gpu_hour")
"""Columns of a table of prices."""
TOML_SUFFIX = ".toml"
SYSTEM_HINT = (
    "or a GPU's name, like '4x RTX 3090', or a TOML file with architecture, memory_gib, "
    "memory_gbps and bf16_gflops of your data sheet"
)


def find_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return a system by short name (``h100_sxm``), abbreviation (``h100``) or device name.

    Raises UnknownName if the system is unknown; the message suggests similar names. ``prices`` in
    USD per GPU and hour replace the shipped ones.
    """
    known = _systems()
    short = _short_name(name, known)
    if short is None:
        raise UnknownName("system", name, known_systems())
    row = known[short]
    price_of_system = published_prices() if prices is None else prices
    bare = System.from_device(find_device(row["device"]), name=short)
    return replace(
        bare,
        gpus_per_node=int(row["gpus_per_node"]),
        domain_gpus=int(row["domain_gpus"]),
        intra_node_gbps=float(row["intra_node_gbps"]),
        inter_node_gbps=float(row["inter_node_gbps"]),
        host_gbps=float(row["host_gbps"]),
        memory_gib=float(row["memory_gib"]),
        price_per_hour=price_of_system.get(short),
    )


def known_systems() -> list[str]:
    """Return the names that `find_system` knows."""
    return sorted(_systems())


@cache
def published_prices() -> dict[str, float]:
    """Return the shipped prices in USD per GPU and hour, by system."""
    rows = parse_rows(shipped_text("prices.csv"), "prices.csv", PRICE_COLUMNS)
    return _parse_prices(rows, "prices.csv")


def read_prices(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return a user's prices: a CSV file with columns ``system`` and ``usd_per_gpu_hour``.

    Systems may be called as in `resolve_system`. Raises UnknownName for others, and RunTableError
    if the file cannot be read, lacks a column, or has an invalid price.
    """
    prices = _parse_prices(user_rows(path, "prices", PRICE_COLUMNS), str(path))
    return {resolve_system(name).name: price for name, price in prices.items()}


def _parse_prices(rows: Sequence[Mapping[str, str]], name: str) -> dict[str, float]:
    prices: dict[str, float] = {}
    for i, row in enumerate(rows, 1):
        try:
            price = float(row["usd_per_gpu_hour"])
        except ValueError as e:
            raise RunTableError(f"{name}, row {i}: the price is not a number ({e})") from e
        if not 0 < price < float("inf"):
            raise RunTableError(f"{name}, row {i}: the price must be positive, not {price}")
        if row["system"] in prices:
            raise RunTableError(f"{name}, row {i}: the price of {row['system']} is there twice")
        prices[row["system"]] = price
    return prices


class UnknownSystem(UnknownName):
    """No table has a GPU of that name; only names with the same numbers are suggested."""

    def __init__(self, name: str) -> None:
        if reason := unplanned_machine(name):
            UsageError.__init__(self, f"{name} is {reason}")
            return
        known = known_systems()
        numbers = re.findall(r"\d+", split_count(name)[1])
        alike = [each for each in known if re.findall(r"\d+", each)[:1] == numbers[:1]]
        near = difflib.get_close_matches(name.lower(), alike, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        listed = ", ".join(known)
        UsageError.__init__(self, f"unknown system {name!r}: {hint}known: {listed}; {SYSTEM_HINT}")


def _short_name(name: str, known: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the short name of a system, if known."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    for candidate in (plain, f"{plain}_sxm", f"{plain}_server", plain.removesuffix("_sxm")):
        if candidate in known:
            return candidate
    device = find_device_or_none(name)
    if device is None:
        return None
    of_device = (short for short, row in known.items() if row["device"] == device.name)
    return next(of_device, None)


@cache
def _systems() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in shipped_rows("systems.csv")}


def resolve_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return the system that a user names.

    - ``h100_sxm``: a known system, see `find_system`. ``4x h100_sxm`` has four GPUs per node.
    - ``RTX 4090``, ``4x RTX 3090``: any GPU of the tables. Unknown links are assumed to be PCIe.
    - ``p5.48xlarge``, ``a3-highgpu-8g``: a machine of a cloud, as its GPUs.
    - ``my-box.toml``: a file, see `foretune.plan.describe.any_system`.
    - ``local``: this machine's first kind of GPU, or its CPU.
    """
    if name.lower() == "local":
        return _local_system(prices)
    if name.endswith(TOML_SUFFIX):
        return read_system(Path(name).expanduser())

    if instance := find_instance(name):
        return resolve_system(f"{instance.gpus}x {instance.system}", prices)
    whole = _system_called(name, count=0, prices=prices)
    if whole is not None:
        return whole
    count, gpu = split_count(name)
    if count and (instance := find_instance(gpu)):
        raise UsageError(
            f"{name} is more than one machine: give --system {gpu}, and the number of all GPUs "
            f"({count * instance.gpus}) to --gpus"
        )
    system = _system_called(gpu, count=count, prices=prices) if count else None
    if system is not None:
        return system
    raise UnknownSystem(name)


def _system_called(name: str, *, count: int, prices: Mapping[str, float] | None) -> System | None:
    """Return the system of a known name, or of any GPU; ``count`` is that of its GPUs, or 0."""
    for candidate in dict.fromkeys((name.strip(), usual_name(name))):
        if _short_name(candidate, _systems()) is not None:
            system = find_system(candidate, prices)
            return replace(system, gpus_per_node=count, domain_gpus=count) if count else system
        unmeasured = system_of_gpu(candidate, gpus_per_node=count)
        if unmeasured is not None:
            return replace(unmeasured, price_per_hour=(prices or {}).get(unmeasured.name))
    return None


def _local_system(prices: Mapping[str, float] | None) -> System:
    gpus = local_gpus()
    first = gpus[0] if gpus else local_device("cpu")
    if gpus:
        with suppress(UnknownName):
            return find_system(first.name, prices)
    count = max(sum(gpu.name == first.name for gpu in gpus), 1)
    system = System.from_device(first, gpus_per_node=count)
    assumptions = ""
    if first.kind == "cpu" and first.rates_measured_while:
        assumptions = (
            f"rates of this CPU were measured while {first.rates_measured_while}: they are too "
            "low, and are measured again on a quiet machine"
        )
    price = (prices or {}).get(system.name)
    return replace(system, price_per_hour=price, assumptions=assumptions)
