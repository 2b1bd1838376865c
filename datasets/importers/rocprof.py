"""ROCm's profilers, versions 1 to 3: summaries and traces of kernels.

``rocprof --stats`` and ``rocprofv3 --stats`` write a line per kernel; ``rocprof``, ``rocprofv2``
and ``rocprofv3 --kernel-trace`` one per launch, ``rocprofv3 --pmc`` one per launch and counter.
All times are nanoseconds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_table
from foretune.datasets.importers.ncu import short_name

SUMMARY = ("Name", "Calls", "TotalDurationNs", "AverageNs")


@dataclass(frozen=True)
class _Trace:
    """The columns of a trace: a kernel's name, and its start and end in nanoseconds."""

    name: str
    start: str
    end: str


TRACES = (
    _Trace(name="KernelName", start="BeginNs", end="EndNs"),
    _Trace(name="Kernel_Name", start="Start_Timestamp", end="End_Timestamp"),
)

COUNTER = ("Counter_Name", "Counter_Value")

STATIC = {
    "arch_vgpr": "static.registers",
    "Arch_VGPR": "static.registers",
    "VGPR_Count": "static.registers",
    "lds": "static.shared_bytes",
    "LDS_Per_Workgroup": "static.shared_bytes",
    "LDS_Block_Size": "static.shared_bytes",
    "Workgroup_Size_X": "static.block_x",
    "Workgroup_Size_Y": "static.block_y",
    "Workgroup_Size_Z": "static.block_z",
}
"""Column of a trace -> run-table column."""

AGENTS = ("Agent_Id", "GPU_ID", "gpu-id")
"""Columns of traces with the GPU of a launch."""

_API = re.compile(r"_*(hip[A-Z]|hsa_|roctx|rocdecode|rocjpeg|rccl|nccl)\w*|(KERNEL|MEMORY)_[A-Z_]+")
_DOMAIN = re.compile(r"[A-Z]+(_[A-Z]+)*_(API|DISPATCH|COPY|ALLOCATION)(_\w+)?")
"""Names in summaries of API calls, of copies and of domains: such a name is no kernel."""

_MS = 1e-6  # per nanosecond
_WHAT = "a summary or a trace of kernels of rocprof"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel of a summary (the mean of its launches), or per launch."""
    table = read_table(path, SUMMARY, dialect=request.dialect, notes=request.notes)
    trace = next(
        (t for t in TRACES if {t.name, t.start, t.end} <= set(table.columns)),
        None,
    )
    rows = table.astype(object)
    if set(SUMMARY) <= set(table.columns):
        _require_kernels(rows["Name"], path)
        records = list(_summary_rows(rows, request))
    elif trace is not None and set(COUNTER) <= set(table.columns):
        records = list(_counter_rows(rows, trace, request))
    elif trace is not None:
        records = [_launch(row, trace, request) for row in rows.to_dict("records")]
    else:
        raise WrongFile(
            f"{path} is not {_WHAT}: expected the columns {', '.join(SUMMARY)}, or "
            f"{TRACES[1].name}, {TRACES[1].start} and {TRACES[1].end}"
        )
    device = request.given("device", path)
    for column in AGENTS:
        if column in table and rows[column].nunique() > 1:
            request.notes.append(
                f"{path}: its launches are on {rows[column].nunique()} GPUs ({column}); all count "
                f"as {device}"
            )
    common = {
        "device": device,
        "source": f"rocprof {path.name}",
        "environment": "rocprof",
    }
    return table_from_records(records, common)


def _require_kernels(names: "pd.Series[Any]", path: Path) -> None:
    """Raise WrongFile for a summary of anything but kernels, whose columns are the same."""
    others = [str(n) for n in names if _API.fullmatch(str(n)) or _DOMAIN.fullmatch(str(n))]
    if len(others) == len(names) > 0:
        raise WrongFile(
            f"{path} sums up {others[0]} and alike, not kernels: give the kernel_stats of rocprofv3"
        )


def _summary_rows(table: pd.DataFrame, request: Request) -> Iterator[dict[str, Any]]:
    for row in table.to_dict("records"):
        yield {
            **_named(row["Name"], request),
            "time_ms": float(row["AverageNs"]) * _MS,
            "counter.launches": float(row["Calls"]),
        }


def _launch(row: dict[Any, Any], trace: _Trace, request: Request) -> dict[str, Any]:
    static = {STATIC[name]: float(value) for name, value in row.items() if name in STATIC}
    return {
        **_named(row[trace.name], request),
        "time_ms": (float(row[trace.end]) - float(row[trace.start])) * _MS,
        **static,
    }


def _counter_rows(table: pd.DataFrame, trace: _Trace, request: Request) -> Iterator[dict[str, Any]]:
    """Yield a row per launch, which has a line per counter."""
    keys = [c for c in ("Process_Id", "Agent_Id", "Dispatch_Id", trace.start) if c in table]
    for _, lines in table.groupby(keys, sort=False):
        counters = {
            f"counter.{name}": float(value)
            for name, value in zip(lines[COUNTER[0]], lines[COUNTER[1]], strict=True)
        }
        yield {**_launch(lines.iloc[0].to_dict(), trace, request), **counters}


def _named(name: object, request: Request) -> dict[str, Any]:
    signature = str(name).removesuffix(" [clone .kd]").removesuffix(".kd")
    return {
        "kernel": request.kernel or short_name(signature),
        "config.implementation": str(name),
    }
