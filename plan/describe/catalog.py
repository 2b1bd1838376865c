"""GPU systems to deploy on, and models, found by name without a network."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Self

from foretune.collect.devices import local_device, local_gpus
from foretune.device import Device, find_device, find_device_or_none
from foretune.errors import MissingExtra, RunTableError, UnknownName, UsageError
from foretune.plan.describe import parse_rows, read_text, shipped_rows, shipped_text
from foretune.plan.describe.description import Indexer, LinearAttention, Mla, ModelDescription
from foretune.plan.describe.huggingface import (
    CONFIG_FILE,
    QUANTIZATION_FILE,
    read_checkpoint,
    read_config,
    read_folder,
    read_json,
)
from foretune.plan.describe.names import FORMAT_OF_SUFFIX, FOUR_BIT_FORMATS, format_in_name
from foretune.support.operator_package import package_folder

PCIE_GBPS = 32.0
"""PCIe 4.0 x16 in one direction; assumed for unknown links."""
NETWORK_GBPS = 50.0
"""A 400 Gb/s network adapter, in one direction."""
LINK_EFFICIENCY = 0.87
"""Share of a host link's rate that copies reach: 55.6 of 64 GB/s on PCIe 5.0 x16, from an
nvbandwidth example (dev.smart-guide.co.kr, 2026)."""
LATENCY_MS = 0.01
"""Time of an empty copy from or to host memory: launch and round trip."""
PRICE_COLUMNS = ("system", "usd_per_gpu_hour")
"""Columns of a table of prices."""
REPORTED_SHARE = 0.99
"""Share of the data sheet's memory that the driver reports, on most GPUs."""


@dataclass(frozen=True)
class System:
    """Nodes of GPUs to deploy on.

    Bandwidths are per GPU and direction.

    Attributes:
        name: short, like ``h100_sxm``.
        intra_node_gbps: between GPUs of a node or domain, GB/s.
        inter_node_gbps: between nodes or domains, GB/s.
        memory_gib: per GPU, as PyTorch reports it: less than the data sheet's.
        price_per_hour: USD per GPU; None if unknown.
        power_limit_w: watts per GPU; NaN if unknown.
        domain_gpus: GPUs joined by fast links, if more than one node (a rack of 72).
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

    def transfer_ms(self, size: float) -> float:
        """Return the milliseconds to copy ``size`` bytes between host and GPU; 0 for none."""
        return LATENCY_MS + size / (LINK_EFFICIENCY * self.host_gbps * 1e6) if size > 0 else 0.0


def find_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return a system by short name (``h100_sxm``), abbreviation (``h100``) or device name.

    Raises UnknownName if the system is unknown; the message suggests similar names. ``prices`` in
    USD per GPU and hour replace the shipped ones.
    """
    known = _systems()
    short = _short_name(name, known)
    if short is None:
        raise UnknownName("system", name, known_systems())
    row, device = known[short], find_device(known[short]["device"])
    cost = published_prices() if prices is None else prices
    links = ("intra_node_gbps", "inter_node_gbps", "host_gbps", "memory_gib")
    numbers: dict[str, Any] = {name: float(row[name]) for name in links}
    numbers |= {name: int(row[name]) for name in ("gpus_per_node", "domain_gpus")}
    bare = System.from_device(device, name=short)
    return replace(bare, price_per_hour=cost.get(short), **numbers)


def known_systems() -> list[str]:
    """Return the names that `find_system` knows."""
    return sorted(_systems())


@cache
def published_prices() -> dict[str, float]:
    """Return the shipped prices in USD per GPU and hour, by system."""
    return _parse_prices(shipped_text("prices.csv"), "prices.csv")


def read_prices(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return a user's prices: a CSV file with columns ``system`` and ``usd_per_gpu_hour``.

    Systems may be called as in `resolve_system`. Raises UnknownName for others, and RunTableError
    if the file cannot be read, lacks a column, or has an invalid price.
    """
    prices = _parse_prices(read_text(path, "prices"), str(path))
    return {resolve_system(name).name: price for name, price in prices.items()}


def _parse_prices(text: str, name: str) -> dict[str, float]:
    prices = {}
    for i, row in enumerate(parse_rows(text, name, PRICE_COLUMNS), 1):
        try:
            system, price = row["system"], float(row["usd_per_gpu_hour"])
        except ValueError as e:
            raise RunTableError(f"{name}, row {i}: the price is not a number ({e})") from e
        if not 0 < price < float("inf"):
            raise RunTableError(f"{name}, row {i}: the price must be positive, not {price}")
        prices[system] = price
    return prices


def _short_name(name: str, known: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the short name of a system, if known."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    for candidate in (plain, f"{plain}_sxm", f"{plain}_server", plain.removesuffix("_sxm")):
        if candidate in known:
            return candidate
    device = find_device_or_none(name)
    found = [short for short in known if device and known[short]["device"] == device.name]
    return found[0] if found else None


@cache
def _systems() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in shipped_rows("systems.csv")}


def resolve_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return the system called ``name``, see `find_system`; ``local`` is this machine.

    It has the machine's first kind of GPU, or its CPU. Unknown GPUs are assumed to have PCIe links.
    """
    if name.lower() != "local":
        return find_system(name, prices)
    gpus = local_gpus()
    first = gpus[0] if gpus else local_device("cpu")
    if gpus:
        with suppress(UnknownName):
            return find_system(first.name, prices)
    bare = System.from_device(first, max(sum(gpu.name == first.name for gpu in gpus), 1))
    return replace(bare, price_per_hour=(prices or {}).get(bare.name))


_VARIANTS = {
    "instruct",
    "chat",
    "base",
    "it",
    "hf",
    "dynamic",
    "meta",
    "thinking",
    *FORMAT_OF_SUFFIX,
}
"""Words in names that describe training or storage, not architecture."""
_RELEASE = re.compile(r"\d{4}")
"""Date of a later release, like 2507, which has the architecture but may read longer prompts."""


def describe_model(name: str) -> ModelDescription:
    """Return the model in the folder ``name``, in a file ``*.json``, or of that name.

    Known names are those of the shipped table and of aiconfigurator-core's ``config.json`` files.
    The publisher, words like ``Instruct`` or ``FP8``, and dates like ``2507`` may differ. A format
    in the name becomes the description's.

    Raises:
        UsageError: the folder's ``config.json`` is missing or incomplete.
        UnknownName: the name is unknown; the message suggests similar ones.
        MissingExtra: the name is not in the shipped table, and aiconfigurator-core is not
            installed.
    """
    folder = Path(name).expanduser()
    if folder.name == CONFIG_FILE:
        return read_folder(folder.parent)
    if folder.suffix == ".json" and folder.is_file():
        return read_config(read_json(folder), folder.stem)
    if folder.is_dir():
        return read_folder(folder)
    shipped, configs = _shipped(), _configs()
    for normalize in (str.lower, _architecture_key):
        if found := _match(name, shipped, normalize):
            return _with_requested_name(shipped[found], name, found)
        if found := _match(name, configs, normalize):
            return _with_requested_name(_read(configs[found], found), name, found)
    known = known_models()
    close = get_close_matches(_architecture_key(name), [_architecture_key(k) for k in known], n=1)
    if _package() is None and not close:
        raise MissingExtra("aiconfigurator_core", "llm", f"describing {name} without its folder")
    raise UnknownName("model", name, known, "or give a folder with its config.json")


def known_models() -> list[str]:
    """Return the names that `describe_model` knows on this machine."""
    return sorted({*_shipped(), *_configs()}, key=str.lower)


def _match(name: str, known: Iterable[str], normalize: Callable[[str], str]) -> str | None:
    """Return the known name equal to ``name`` after ``normalize``, if any."""
    return next((candidate for candidate in known if normalize(candidate) == normalize(name)), None)


def _architecture_key(name: str) -> str:
    """Return the part of a name that identifies the architecture."""
    words = _words(name)
    return "-".join(w for w in words if w not in _VARIANTS and not _RELEASE.fullmatch(w))


def _words(name: str) -> list[str]:
    return name.rpartition("/")[2].lower().replace("_", "-").split("-")


def _with_requested_name(model: ModelDescription, name: str, found: str) -> ModelDescription:
    """Return ``model`` in the format that ``name`` contains; in 16 bits if only ``found`` does."""
    if name.lower() == found.lower():
        return model
    if {*filter(_RELEASE.fullmatch, _words(name))} - {*_words(found)}:
        model = replace(model, longest=0)
    stored = format_in_name(name) or ("bf16" if format_in_name(found) else "")
    if not stored:
        return replace(model, name=name)
    quantizes_attention = not (model.is_moe and stored in FOUR_BIT_FORMATS)
    weights = stored if quantizes_attention else "bf16"
    return replace(model, name=name, weight_format=weights, moe_format=stored, kv_format="bf16")


@cache
def _shipped() -> dict[str, ModelDescription]:
    return {row["name"]: _from_row(row) for row in shipped_rows("models.csv")}


def _from_row(row: dict[str, str]) -> ModelDescription:
    """Return the model of a row; ``mla``, ``linear`` and ``index`` are space-separated numbers."""
    values: dict[str, object] = {}
    parts = {"mla": Mla, "linear": LinearAttention, "index": Indexer}
    for field in fields(ModelDescription):
        text = row.get(field.name) or ""
        if not text:
            continue
        if field.name in parts:
            values[field.name] = parts[field.name](*map(int, text.split()))
        elif field.type is bool:
            values[field.name] = text == "yes"
        else:
            values[field.name] = int(text) if field.type is int else text
    return ModelDescription(**values)  # type: ignore[arg-type]


def _package() -> Path | None:
    """Return the folder of aiconfigurator-core's configurations, without importing it."""
    home = package_folder()
    return home / "model_configs" if home and (home / "model_configs").is_dir() else None


@cache
def _configs() -> dict[str, Path]:
    """Return aiconfigurator-core's configurations by model name."""
    folder = _package()
    paths = sorted(folder.glob(f"*_{CONFIG_FILE}")) if folder else []
    return {
        path.name.removesuffix(f"_{CONFIG_FILE}").replace("--", "/", 1): path
        for path in paths
        if not path.name.endswith(QUANTIZATION_FILE)
    }


def _read(path: Path, name: str) -> ModelDescription:
    quantization = path.name.replace(f"_{CONFIG_FILE}", f"_{QUANTIZATION_FILE}")
    try:
        return read_checkpoint(path, path.with_name(quantization), name)
    except UsageError as e:
        raise UsageError(f"{e} (aiconfigurator-core's copy)") from e
