"""Nsight Systems: the summary of kernels.

``nsys stats --report cuda_gpu_kern_sum --format csv`` writes it.
"""

from pathlib import Path

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_table, require
from foretune.datasets.importers.ncu import short_name
from foretune.datasets.time_units import MS_PER_UNIT, unit_in_name

TIMES = ("Med", "Avg", "Average")
"""First words of the columns with a kernel's time, the preferred one first."""

_WHAT = "a summary of kernels of nsys stats"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel: the median of its launches, else their mean."""
    table = read_table(path, ("Name", "Instances"), dialect=request.dialect, notes=request.notes)
    require(set(table.columns), ("Name", "Instances"), path, _WHAT)
    column = _time_column(table.columns, path)
    unit = unit_in_name(column) or "ns"
    common = {
        "device": request.given("device", path),
        "source": f"nsys {path.name}",
        "environment": "Nsight Systems",
    }
    records = [
        {
            "kernel": request.kernel or short_name(str(name)),
            "config.implementation": str(name),
            "time_ms": float(time) * MS_PER_UNIT[unit.lower()],
            "counter.launches": float(launches),
        }
        for name, time, launches in zip(
            table["Name"], table[column], table["Instances"], strict=True
        )
    ]
    return table_from_records(records, common)


def _time_column(columns: pd.Index, path: Path) -> str:
    for word in TIMES:
        for column in columns:
            if column.split(" ")[0].partition("(")[0] == word and unit_in_name(column):
                return str(column)
    raise WrongFile(f"{path} is not {_WHAT}: expected a column Med (ns) or Avg (ns)")
