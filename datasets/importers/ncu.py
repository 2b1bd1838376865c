"""Nsight Compute: the CSV output of ``ncu --csv``."""

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.decimal_marks import COMMA, POINT, decimal_mark, plain_number
from foretune.datasets.file_contents import printed_by
from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_text
from foretune.datasets.text_rows import SEPARATORS
from foretune.errors import RunTableError, UsageError

PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Prefix of a unit -> its factor."""
AMOUNTS = ("byte", "hz", "Hz", "inst", "cycle", "sector")
NANOSECONDS = {
    f"{prefix}{unit}": size
    for prefix, size in {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}.items()
    for unit in ("s", "sec", "second")
} | {"minute": 60e9, "hour": 3600e9}
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

_THREE_DIGITS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
_HEADER = ("ID", "Kernel Name")
_LONG = ("Metric Name", "Metric Value")
_MESSAGES = ("==ERROR==", "==WARNING==")
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


WHOLE = ("ns", "nsecond", "byte", "cycle", "inst", "sector")
"""Units of whole numbers: three digits after a mark are thousands, not decimals."""


def to_base(text: str, unit: str, decimal: str = POINT) -> float | None:
    """Return a value in base units; None if it is not a number (``n/a``, names, bit masks)."""
    number = plain_number(text.strip(), decimal)
    if number is None:
        return None
    value = float(number)
    if not math.isfinite(value):
        return None
    amount, _, per = unit.strip().partition("/")
    return value * UNITS.get(amount, 1.0) * 1e9 / NANOSECONDS.get(per, 1e9)


@dataclass(frozen=True)
class _Table:
    """One run's table; a file may hold several, one after the other."""

    header: list[str]
    body: list[list[str]]


@dataclass
class _Launch:
    """A launch of a kernel: what its line says of it, and its metrics.

    A metric is keyed by its section and its name, its value is a text with a unit.
    """

    about: dict[str, str]
    metrics: dict[tuple[str, str], tuple[str, str]]


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per launch: its duration, launch statistics and counters.

    Counters are in base units: bytes, nanoseconds, hertz. The profiler does not know the problem;
    add constants such as ``problem.M`` to the import.
    """
    tables = _tables(path)
    launches = [launch for table in tables for launch in _launches(table, path)]
    cells = [cell for launch in launches for cell in launch.metrics.values()]
    decimal = request.dialect.decimal or _decimal_mark(cells, path)
    if decimal != POINT:
        request.notes.append(f"{path}: decimal comma")
    if len(tables) > 1:
        request.notes.append(f"{path}: {len(tables)} tables, one after the other")

    common = {
        "device": request.given("device", path),
        "source": f"ncu {path.name}",
        "environment": "Nsight Compute",
    }
    _require_one_gpu(launches, path)
    for launch in launches:
        _require_units_of_times(launch, path)
    metrics = [_named_values(launch.metrics, decimal) for launch in launches]
    if not any(time in named for named in metrics for time in TIMES):
        raise RunTableError(
            f"{path} has no duration: profile with --metrics {TIMES[0]}, beside the metrics that "
            "it has"
        )
    records = [
        {**_about(launch.about, request), **_measured(named)}
        for launch, named in zip(launches, metrics, strict=True)
    ]
    return table_from_records(records, common)


def _tables(path: Path) -> list[_Table]:
    """Return the tables of a file, without the program's own output around them."""
    tables: list[_Table] = []
    text = read_text(path, "an output of ncu --csv", _HEADER)
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    for cells in csv.reader(lines, delimiter=_separator(lines)):
        if set(_HEADER) <= set(cells):
            tables.append(_Table(header=cells, body=[]))
        elif not tables:
            continue
        elif len(cells) == len(tables[-1].header):
            tables[-1].body.append(cells)
        elif len(cells) > len(_HEADER) and cells[0].isdigit():
            width = len(tables[-1].header)
            raise RunTableError(f"{path} is damaged: a line has {len(cells)} cells, not {width}")
    if not tables:
        raise WrongFile(_explain_no_table(text, path))
    return tables


def _separator(lines: Iterable[str]) -> str:
    """Return what separates the cells: a comma, unless another program saved the table again."""
    for separator in SEPARATORS:
        for line in lines:
            names = {name.strip('"') for name in line.split(separator)}
            if set(_HEADER) <= names:
                return separator
    return COMMA


def _explain_no_table(text: str, path: Path) -> str:
    """Return why a file has no table: what printed it, or what ncu says in it."""
    if printed := printed_by(text):
        return f"{path} is {printed}"
    said = [line for line in text.splitlines() if line.startswith(_MESSAGES)]
    if said:
        return f"{path} has no table, and says: {said[0]}"
    return f"{path} is not output of ncu --csv: a header with {', '.join(_HEADER)}, … is missing"


def _launches(table: _Table, path: Path) -> list[_Launch]:
    return _long(table, path) if set(_LONG) <= set(table.header) else _wide(table)


def _long(table: _Table, path: Path) -> list[_Launch]:
    """Return the launches of a details page, which has a line per metric.

    Processes number their launches from zero, each on its own.
    """
    launches: dict[tuple[str, str, str], _Launch] = {}
    for cells in table.body:
        line = dict(zip(table.header, cells, strict=True))
        key = (line.get("Host Name", ""), line.get("Process ID", ""), line["ID"])
        launch = launches.setdefault(key, _Launch(about=line, metrics={}))
        if launch.about["Kernel Name"] != line["Kernel Name"]:
            raise RunTableError(
                f"{path}: launch {line['ID']} is of two kernels, {launch.about['Kernel Name']} and "
                f"{line['Kernel Name']}: give each run as a file of its own"
            )
        if not line["Metric Name"]:
            continue
        metric = (line.get("Section Name", ""), line["Metric Name"])
        value = (line["Metric Value"], line.get("Metric Unit", ""))
        if launch.metrics.setdefault(metric, value) != value:
            raise RunTableError(
                f"{path}: launch {line['ID']} has two values of {line['Metric Name']}, "
                f"{launch.metrics[metric][0]} and {value[0]}: give each run as a file of its own"
            )
    return list(launches.values())


def _wide(table: _Table) -> list[_Launch]:
    """Return the launches of a raw page, which has a column per metric, units in its first line."""
    header, body = table.header, table.body
    units = dict.fromkeys(header, "")
    if body and not body[0][header.index("ID")]:
        units = dict(zip(header, body[0], strict=True))
        body = body[1:]
    launches = []
    for cells in body:
        line = dict(zip(header, cells, strict=True))
        metrics = {("", n): (v, units[n]) for n, v in line.items() if n not in _ABOUT}
        launches.append(_Launch(about=line, metrics=metrics))
    return launches


def _require_one_gpu(launches: Iterable[_Launch], path: Path) -> None:
    """Raise UsageError if launches ran on GPUs of several kinds: one device is given for all."""
    capabilities = sorted({launch.about.get("CC", "") for launch in launches} - {""})
    if len(capabilities) > 1:
        raise UsageError(
            f"{path} has launches on GPUs of compute capability {' and '.join(capabilities)}: give "
            "those of each GPU as a file of its own"
        )


def _require_units_of_times(launch: _Launch, path: Path) -> None:
    """Raise RunTableError if a duration has no unit of time that is known."""
    for (_, name), (text, unit) in launch.metrics.items():
        is_number = plain_number(text.strip(), POINT) or plain_number(text.strip(), COMMA)
        if name in TIMES and is_number and unit.strip() not in NANOSECONDS:
            raise RunTableError(
                f"{path}: launch {launch.about['ID']} has {name} {text} in the unit {unit!r}, "
                f"which is none of {', '.join(sorted(NANOSECONDS))}"
            )


def _decimal_mark(cells: Iterable[tuple[str, str]], path: Path) -> str:
    """Return the decimal mark of the profiler's locale; UsageError if no number shows it."""
    numbers = []
    for text, unit in cells:
        number = text.strip()
        groups = _THREE_DIGITS.fullmatch(number)
        if groups is not None and unit.strip() in WHOLE:
            # "13,312" nanoseconds: the mark is not the decimal mark. Say so by a second group.
            number = f"{number}{groups[1]}000"
        numbers.append(number)
    return decimal_mark(numbers, where=str(path))


def _named_values(
    metrics: Mapping[tuple[str, str], tuple[str, str]], decimal: str
) -> dict[str, float]:
    """Return the metrics that are numbers, by name; the section is added to a name of several."""
    sections: dict[str, set[tuple[str, str]]] = {}
    for (_, name), cell in metrics.items():
        sections.setdefault(name, set()).add(cell)
    named = {}
    for (section, name), (text, unit) in metrics.items():
        value = to_base(text, unit, decimal)
        if value is not None:
            named[name if len(sections[name]) == 1 else f"{section} {name}"] = value
    return named


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
