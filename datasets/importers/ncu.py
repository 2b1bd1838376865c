"""Nsight Compute: the CSV output of ``ncu --csv``."""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_text
from foretune.errors import RunTableError

PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Prefix of a unit -> its factor."""
AMOUNTS = ("byte", "hz", "Hz", "inst", "cycle", "sector")
NANOSECONDS = {
    f"{prefix}{unit}": size
    for prefix, size in {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}.items()
    for unit in ("s", "sec", "second")
}
UNITS = {f"{p}{unit}": size for p, size in PREFIXES.items() for unit in AMOUNTS} | NANOSECONDS
"""Unit -> size in bytes, nanoseconds, hertz or instructions; other units count as 1."""

TIMES = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration", "Duration")
"""Metrics that hold the duration, the preferred one first."""

STATIC = {
    "launch__registers_per_thread": "static.registers",
    "Registers Per Thread": "static.registers",
    "launch__shared_mem_per_block_static": "static.shared_static_bytes",
    "Static Shared Memory Per Block": "static.shared_static_bytes",
    "launch__shared_mem_per_block_dynamic": "static.shared_dynamic_bytes",
    "Dynamic Shared Memory Per Block": "static.shared_dynamic_bytes",
}
"""Launch metrics -> run-table columns; other ``launch__`` metrics keep their name."""

_HEADER = ("ID", "Kernel Name")
_LONG = ("Metric Name", "Metric Value")
_ABOUT = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
)
_SKIPPED = ("device__attribute_", "profiler__", "Block Size", "Grid Size", "Threads")


def to_base(text: str, unit: str) -> float | None:
    """Return a value in base units; None if it is not a number (``n/a``, names, bit masks)."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    amount, _, per = unit.strip().partition("/")
    return value * UNITS.get(amount, 1.0) * 1e9 / NANOSECONDS.get(per, 1e9)


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per launch: its duration, launch statistics and counters.

    Counters are in base units: bytes, nanoseconds, hertz. The profiler does not know the problem;
    add constants such as ``problem.M`` to the import.
    """
    header, *body = _lines(path)
    is_long = set(_LONG) <= set(header)
    launches = _long(header, body) if is_long else _wide(header, body)
    common = {
        "device": request.given("device", path),
        "source": f"ncu {path.name}",
        "environment": "Nsight Compute",
    }
    records = [{**_about(launch.line, request), **_measured(launch.metrics)} for launch in launches]
    return table_from_records(records, common)


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the header and the table's lines, without the program's own output."""
    width = 0
    lines = read_text(path, "an output of ncu --csv", _HEADER).splitlines()
    for cells in csv.reader(line for line in lines if not line.startswith("==")):
        if not width and set(_HEADER) <= set(cells):
            width = len(cells)
        if width and len(cells) == width:
            yield cells
        elif width and len(cells) > len(_HEADER) and cells[0].isdigit():
            raise RunTableError(f"{path} is damaged: a line has {len(cells)} cells, not {width}")
    if not width:
        raise WrongFile(
            f"{path} is not output of ncu --csv: a header with {', '.join(_HEADER)}, … is missing"
        )


@dataclass(frozen=True)
class _Launch:
    """A launch: a line of the table that describes it, and its metrics in base units."""

    line: dict[str, str]
    metrics: dict[str, float]


def _long(header: list[str], body: list[list[str]]) -> list[_Launch]:
    """Read a table with a line per launch and metric."""
    launches: dict[str, _Launch] = {}
    for cells in body:
        line = dict(zip(header, cells, strict=True))
        launch = launches.setdefault(line["ID"], _Launch(line=line, metrics={}))
        value = to_base(line["Metric Value"], line.get("Metric Unit", ""))
        if value is not None and line["Metric Name"]:
            launch.metrics.setdefault(line["Metric Name"], value)
    return list(launches.values())


def _wide(header: list[str], body: list[list[str]]) -> list[_Launch]:
    """Read a table with a line per launch and a column per metric."""
    # The first line may hold the units.
    units = dict.fromkeys(header, "")
    if body and not body[0][header.index("ID")]:
        units = dict(zip(header, body[0], strict=True))
        body = body[1:]

    launches = []
    for cells in body:
        line = dict(zip(header, cells, strict=True))
        metrics = {}
        for name, text in line.items():
            value = None if name in _ABOUT else to_base(text, units[name])
            if value is not None:
                metrics[name] = value
        launches.append(_Launch(line=line, metrics=metrics))
    return launches


def _about(line: Mapping[str, str], request: Request) -> dict[str, Any]:
    """Return name, signature, grid and block of a launch."""
    signature = line["Kernel Name"]
    about: dict[str, Any] = {
        "kernel": request.kernel or short_name(signature),
        "config.implementation": signature,
    }
    for part in ("Block", "Grid"):
        sizes = zip("xyz", re.findall(r"\d+", line.get(f"{part} Size", "")), strict=False)
        about |= {f"static.{part.lower()}_{axis}": float(size) for axis, size in sizes}
    return about


def _measured(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return time, launch statistics and counters of a launch as run-table columns."""
    measured = {}
    durations_ns = [metrics[name] for name in TIMES if name in metrics]
    if durations_ns:
        measured["time_ms"] = durations_ns[0] / 1e6
    for name, value in metrics.items():
        if name in STATIC:
            measured[STATIC[name]] = value
        elif name.startswith("launch__"):
            measured[f"static.{name.removeprefix('launch__')}"] = value
        elif name not in TIMES and not name.startswith(_SKIPPED):
            measured[f"counter.{name}"] = value
    return measured


def short_name(signature: str) -> str:
    """Return a kernel's name without return type, namespaces, template and arguments."""
    plain = re.sub(r"<unnamed>::|\(anonymous namespace\)::", "", signature)
    without_arguments = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    without_namespaces = without_arguments.split("::")[-1]
    return without_namespaces.split(" ")[-1]
