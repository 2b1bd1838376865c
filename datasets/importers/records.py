"""One dictionary per run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import as_categories
from foretune.datasets.schema import NUMBER_GROUPS, NUMBERS, PLAIN_GROUPS, TEXT
from foretune.measurement import Status
from foretune.values import parse_value

PER_MS = {"ns": 1e-6, "nanoseconds": 1e-6, "us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "": 1.0,
          "ms": 1.0, "milliseconds": 1.0, "s": 1e3, "seconds": 1e3}  # fmt: skip
"""Unit of time, lower case -> how many milliseconds one is; without a unit, milliseconds."""

_PROFILER_COUNTER = re.compile(r"[a-z0-9]+__\w")
"""What names of NVIDIA's profiler counters look like: ``dram__bytes_read.sum``."""


def is_counter(name: str) -> bool:
    """Return whether a measurement's name is that of a profiler counter."""
    return _PROFILER_COUNTER.match(name) is not None


def table_from_records(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return records whose keys are run-table columns as a table.

    Measurements that are no number become gaps; failed runs keep none.
    """
    rows = pd.DataFrame(list(records))
    if rows.empty:
        return rows
    for column in rows.columns:
        if column in NUMBERS or column.startswith(("device.", "static.", "counter.")):
            rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    if "time_ms" not in rows:
        rows["time_ms"] = np.nan
    if "time_ms_samples" in rows:  # gaps as Parquet gives them back
        samples = [s if isinstance(s, list) else None for s in rows["time_ms_samples"]]
        rows["time_ms_samples"] = pd.Series(samples, dtype=object)
    failed = rows["status"] != Status.OK.value
    rows.loc[failed, [c for c in ("time_ms", "power_w", "energy_mj") if c in rows]] = np.nan
    return as_categories(rows)


def as_number(text: Any) -> Any:
    """Return the number or switch a text spells, and anything else as it is."""
    return parse_value(text) if isinstance(text, str) else text


GROUPS = (*PLAIN_GROUPS, *NUMBER_GROUPS)


def is_run_column(column: str) -> bool:
    """Return whether a run table may have a column of that name."""
    group, dot, name = column.partition(".")
    return column in (*NUMBERS, *TEXT) or (bool(dot and name) and f"{group}." in GROUPS)
