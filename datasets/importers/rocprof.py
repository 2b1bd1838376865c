"""ROCm's profiler: the summary of kernels that ``rocprof --stats`` writes."""

from pathlib import Path

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, read_table, require
from foretune.datasets.importers.ncu import short_name

COLUMNS = ("Name", "Calls", "TotalDurationNs", "AverageNs")
_MS = 1e-6  # per nanosecond


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel: the mean of its launches."""
    table = read_table(path, COLUMNS, dialect=request.dialect, notes=request.notes)
    require(set(table.columns), COLUMNS, path, "a summary of rocprof --stats")
    common = {
        "device": request.given("device", path),
        "source": f"rocprof {path.name}",
        "environment": "rocprof",
    }
    records = [
        {
            "kernel": request.kernel or short_name(str(name).removesuffix(".kd")),
            "config.implementation": str(name),
            "time_ms": float(mean) * _MS,
            "counter.launches": float(calls),
        }
        for name, calls, mean in zip(table["Name"], table["Calls"], table["AverageNs"], strict=True)
    ]
    return table_from_records(records, common)
