"""Builds run tables from one dictionary per run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import as_categories
from foretune.datasets.schema import NUMBER_GROUPS, NUMBERS, PLAIN_GROUPS, TEXT
from foretune.files import require_cells
from foretune.measurement import Status
from foretune.values import parse_value

PER_MS = {"ns": 1e-6, "nanoseconds": 1e-6, "us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "": 1.0,
          "ms": 1.0, "milliseconds": 1.0, "s": 1e3, "seconds": 1e3}  # fmt: skip
"""Time unit in lower case -> milliseconds per unit; without a unit, milliseconds."""

_PROFILER_COUNTER = re.compile(r"[a-z0-9]+__\w")
"""Pattern of NVIDIA profiler counters, e.g. ``dram__bytes_read.sum``."""


def is_counter(name: str) -> bool:
    """Return whether ``name`` is a profiler counter."""
    return _PROFILER_COUNTER.match(name) is not None


def table_from_records(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return records keyed by run-table columns as a table.

    Measurements that are not numbers become gaps, as do those of failed runs.
    """
    listed = list(records)
    columns = len({column for record in listed for column in record})
    require_cells(len(listed) * columns, columns, 0)
    rows = pd.DataFrame(listed)
    if rows.empty:
        return rows
    for column in rows.columns:
        if column in NUMBERS or column.startswith(NUMBER_GROUPS):
            rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    if "time_ms" not in rows:
        rows["time_ms"] = np.nan
    if "time_ms_samples" in rows:  # the gaps that Parquet returns
        samples = [s if isinstance(s, list) else None for s in rows["time_ms_samples"]]
        rows["time_ms_samples"] = pd.Series(samples, dtype=object)
    failed = rows["status"] != Status.OK.value
    rows.loc[failed, [c for c in ("time_ms", "power_w", "energy_mj") if c in rows]] = np.nan
    return as_categories(rows)


def as_number(text: Any) -> Any:
    """Parse numbers and booleans; return other values unchanged."""
    return parse_value(text) if isinstance(text, str) else text


GROUPS = (*PLAIN_GROUPS, *NUMBER_GROUPS)


def is_run_column(column: str) -> bool:
    """Return whether ``column`` is a valid run-table column."""
    group, dot, name = column.partition(".")
    return column in (*NUMBERS, *TEXT) or (bool(dot and name) and f"{group}." in GROUPS)
