"""Nsight Systems: kernels in the tables that it writes.

Read are, as CSV of ``nsys stats --format csv``, the reports ``cuda_gpu_kern_sum`` (also by grid and
block), ``cuda_gpu_trace`` and ``cuda_kern_exec_trace``; and the database of ``nsys export --type
sqlite``, whose times are nanoseconds.
"""

import math
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.file_contents import SQLITE
from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_beginning, read_table
from foretune.datasets.importers.ncu import short_name
from foretune.datasets.time_units import MS_PER_UNIT, unit_in_name
from foretune.device import canonical_name
from foretune.errors import RunTableError, UsageError

TIMES = ("Med", "Avg", "Average")
"""First words of the columns with a kernel's time in a summary, the preferred one first."""

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
"""The database's table with a row for each launch of a kernel."""
GPUS = "TARGET_INFO_GPU"
STRINGS = "StringIds"
LAUNCH_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
SHARED_COLUMNS = ("staticSharedMemory", "dynamicSharedMemory")

_STATIC = {
    "gridX": "static.grid_x",
    "gridY": "static.grid_y",
    "gridZ": "static.grid_z",
    "blockX": "static.block_x",
    "blockY": "static.block_y",
    "blockZ": "static.block_z",
    "registersPerThread": "static.registers",
    "staticSharedMemory": "static.shared_static_bytes",
    "dynamicSharedMemory": "static.shared_dynamic_bytes",
    "GrdX": "static.grid_x",
    "GrdY": "static.grid_y",
    "GrdZ": "static.grid_z",
    "BlkX": "static.block_x",
    "BlkY": "static.block_y",
    "BlkZ": "static.block_z",
    "Reg/Trd": "static.registers",
}
"""Column of the database or of a trace -> run-table column."""

_MS = 1e-6  # per nanosecond
_WHAT = "a report of nsys on kernels"
_OTHER_REPORTS = {
    "Num Calls": "a summary of API calls (cuda_api_sum)",
    "Operation": "a summary of memory operations (cuda_gpu_mem_time_sum)",
    "Range": "a summary of NVTX ranges (nvtx_sum)",
}
"""Columns of reports that have no kernels -> the report."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel of a summary, or per launch of a trace.

    A kernel's time is the median of its launches if the summary has it, else their mean.
    """
    common = {"source": f"nsys {path.name}", "environment": "Nsight Systems"}
    if read_beginning(path).startswith(SQLITE):
        return table_from_records(_database_rows(path, request), common)

    table = read_table(
        path,
        ("Name", "Instances"),
        dialect=request.dialect,
        notes=request.notes,
        header_words=("Name", "("),
    )
    columns = set(table.columns)
    if {"Name", "Instances"} <= columns:
        records = list(_summary_rows(table, path, request))
    elif {"GrdX", "Name"} <= columns:
        records = list(_trace_rows(table, "Duration", "Name", path, request))
    elif {"Kernel Name"} <= columns:
        records = list(_trace_rows(table, "Kernel Dur", "Kernel Name", path, request))
    else:
        report = next((what for name, what in _OTHER_REPORTS.items() if name in columns), "")
        raise WrongFile(
            f"{path} is {report or 'not'}{'; not ' if report else ' '}{_WHAT}: give --report "
            "cuda_gpu_kern_sum or cuda_gpu_trace"
        )
    return table_from_records(records, common)


def _summary_rows(table: pd.DataFrame, path: Path, request: Request) -> Iterator[dict[str, Any]]:
    """Yield a row per kernel of a summary."""
    device = request.given("device", path)
    times_ms = _summary_times(table, path)
    for row, time_ms in zip(table.astype(object).to_dict("records"), times_ms, strict=True):
        yield {
            **_named(row["Name"], request),
            "device": device,
            "time_ms": time_ms,
            "counter.launches": float(row["Instances"]),
            **_sizes(row),
        }


def _summary_times(table: pd.DataFrame, path: Path) -> list[float]:
    """Return the time of a launch of every kernel, in milliseconds."""
    for word in TIMES:
        for column in table.columns:
            unit = unit_in_name(column)
            if re.split(r"[ (]", column)[0] == word and unit is not None:
                return [float(time) * MS_PER_UNIT[unit.lower()] for time in table[column]]
    # Old releases give a unit to the total only.
    for column in table.columns:
        unit = unit_in_name(column)
        if column.startswith("Total Time") and unit is not None:
            mean = table[column].astype(float) / table["Instances"].astype(float)
            return [float(time) * MS_PER_UNIT[unit.lower()] for time in mean]
    raise WrongFile(
        f"{path} is not {_WHAT}: expected a column Med (ns), Avg (ns) or Total Time (ns)"
    )


def _device_name(text: object) -> str:
    """Return a device's name without its number, ``NVIDIA H100 (0)``; empty if unknown."""
    return "" if pd.isna(text) else re.sub(r" \(\d+\)$", "", str(text))


def _trace_rows(
    table: pd.DataFrame, time: str, name: str, path: Path, request: Request
) -> Iterator[dict[str, Any]]:
    """Yield a row per launch of a trace; copies of memory, which have no grid, are left out."""
    column = next((c for c in table.columns if re.split(r" \(", c)[0] == time), None)
    unit = None if column is None else unit_in_name(column)
    if column is None or unit is None:
        raise WrongFile(f"{path} is not {_WHAT}: expected a column {time} (ns)")
    launches = table[table["GrdX"].notna()] if "GrdX" in table else table
    names = {_device_name(device) for device in launches.get("Device", ())}
    if len(names) > 1 and request.device:
        raise UsageError(f"{path} has launches on {len(names)} devices: leave --device out")
    for row in launches.astype(object).to_dict("records"):
        named = _device_name(row.get("Device", ""))
        yield {
            **_named(row[name], request),
            "device": request.device or canonical_name(named) or request.given("device", path),
            "time_ms": float(row[column]) * MS_PER_UNIT[unit.lower()],
            **_sizes(row),
        }


def _named(name: object, request: Request) -> dict[str, Any]:
    signature = str(name)
    return {
        "kernel": request.kernel or short_name(signature),
        "config.implementation": signature,
    }


def _sizes(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the grid, the block and the registers of a launch."""
    sizes = {}
    for name, column in _STATIC.items():
        value = row.get(name)
        if isinstance(value, (int, float)) and not math.isnan(value):
            sizes[column] = float(value)
    for part in ("Grid", "Block"):
        listed = re.findall(r"\d+", str(row.get(f"{part}XYZ", "")))
        for axis, size in zip("xyz", listed, strict=False):
            sizes[f"static.{part.lower()}_{axis}"] = float(size)
    return sizes


def _database_rows(path: Path, request: Request) -> list[dict[str, Any]]:
    """Return a row per launch of an exported database."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            tables = {
                str(name)
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                )
            }
            if not {KERNELS, STRINGS} <= tables:
                raise WrongFile(
                    f"{path} is not {_WHAT}: a database of nsys export has the tables {KERNELS} "
                    f"and {STRINGS}"
                )
            gpus = _gpus(database, tables)
            return list(_launches(database, gpus, path, request))
    except sqlite3.Error as e:
        raise RunTableError(f"{path} is damaged: {e}") from e


def _gpus(database: sqlite3.Connection, tables: set[str]) -> dict[int, str]:
    """Return the names of the GPUs by number."""
    if GPUS not in tables:
        return {}
    rows = [dict(row) for row in database.execute(f"SELECT * FROM {GPUS}")]
    # CUDA numbers the devices that the program sees; old releases know only the machine's numbers.
    number = "cuDevice" if any(row.get("cuDevice") is not None for row in rows) else "id"
    return {
        int(row[number]): str(row["name"])
        for row in rows
        if row.get(number) is not None and row.get("name")
    }


def _launches(
    database: sqlite3.Connection, gpus: Mapping[int, str], path: Path, request: Request
) -> Iterator[dict[str, Any]]:
    columns = {str(row["name"]) for row in database.execute(f"PRAGMA table_info({KERNELS})")}
    name = next((c for c in ("demangledName", "shortName") if c in columns), None)
    if name is None or not {"start", "end"} <= columns:
        raise WrongFile(f"{path} is not {_WHAT}: {KERNELS} has no start, end and demangledName")
    wanted = [c for c in (*LAUNCH_COLUMNS, *SHARED_COLUMNS, "deviceId") if c in columns]
    listed = "".join(f", launch.{column}" for column in wanted)
    query = (
        f"SELECT string.value AS name, launch.end - launch.start AS duration_ns{listed} "
        f"FROM {KERNELS} AS launch JOIN {STRINGS} AS string ON string.id = launch.{name} "
        "WHERE launch.end IS NOT NULL ORDER BY launch.start"
    )
    names = {""}
    if "deviceId" in columns:
        numbers = database.execute(f"SELECT DISTINCT deviceId AS number FROM {KERNELS}")
        names = {gpus.get(row["number"], "") for row in numbers}
    if request.device and len(names) > 1:
        raise UsageError(
            f"{path} has launches on {' and '.join(sorted(names))}: leave --device out"
        )
    for row in map(dict, database.execute(query)):
        gpu = gpus.get(row.get("deviceId", -1), "")
        yield {
            **_named(row["name"], request),
            "device": request.device or canonical_name(gpu) or request.given("device", path),
            "time_ms": row["duration_ns"] * _MS,
            **_sizes(row),
        }
