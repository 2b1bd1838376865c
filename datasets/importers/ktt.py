"""KTT (Kernel Tuning Toolkit): results in its own JSON.

``{"Metadata": {"Device", "KttVersion", "TimeUnit", …}, "Results": [{"KernelName", "Status",
"TotalDuration", "Configuration": [{"Name", "Value"}, …], "ComputationResults": […]}, …]}``
(``Source/Output/JsonConverters.cpp`` of KTT 2.1). KTT also writes T4, which `t4` reads.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_number, is_counter, table_from_records
from foretune.datasets.importers.files import Request, read_json, require
from foretune.datasets.importers.t4 import NAMES
from foretune.datasets.time_units import MS_PER_UNIT
from foretune.device import canonical_name
from foretune.errors import RunTableError
from foretune.measurement import Status

STATUSES = {
    "Ok": Status.OK,
    "ComputationFailed": Status.RUNTIME_ERROR,
    "ValidationFailed": Status.WRONG_RESULT,
    "CompilationFailed": Status.COMPILE_ERROR,
    "DeviceLimitsExceeded": Status.INVALID,
}
"""KTT's ``Status`` -> status; other texts are runtime errors."""

_WHAT = "results of KTT"
_RESULT_KEYS = ("KernelName", "Status", "TotalDuration", "Configuration")


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per result.

    The time is ``TotalDuration``: of all kernels that a configuration launches, and of the work
    between them. The sizes of the problem are not in the file.
    """
    data = read_json(path, ("Metadata", "Results"), _WHAT)
    about = data["Metadata"]
    require(about if isinstance(about, dict) else (), ("TimeUnit",), path, _WHAT, "key")
    unit = str(about["TimeUnit"]).lower()
    if unit not in MS_PER_UNIT:
        raise RunTableError(f"{path}: its TimeUnit is {about['TimeUnit']!r}, which is no time")
    device = request.device or canonical_name(str(about.get("Device", "")).strip())
    common = {
        "device": device or request.given("device", path),
        "source": f"ktt {path.name}",
        "environment": f"ktt {about.get('KttVersion', '')}".strip(),
    }
    records = []
    for result in data["Results"]:
        require(result if isinstance(result, dict) else (), _RESULT_KEYS, path, _WHAT, "key")
        config = {
            f"config.{parameter['Name']}": as_number(parameter["Value"])
            for parameter in result["Configuration"]
        }
        kernel = request.kernel or str(result["KernelName"])
        records.append({"kernel": kernel, **config, **_outcome(result, MS_PER_UNIT[unit])})
    return table_from_records(records, common)


def _outcome(result: Mapping[str, Any], ms_per_unit: float) -> dict[str, Any]:
    """Return status, time, code and counters of a result."""
    status = STATUSES.get(str(result["Status"]), Status.RUNTIME_ERROR)
    outcome: dict[str, Any] = {"status": status.value}
    if status is not Status.OK:
        return {**outcome, "error": str(result["Status"])}
    duration = as_number(result["TotalDuration"])
    is_number = isinstance(duration, (int, float))
    outcome["time_ms"] = duration * ms_per_unit if is_number else duration

    # Registers and counters belong to one kernel: those of several would be mixed up.
    launches = result.get("ComputationResults") or []
    if len(launches) == 1:
        outcome |= _of_kernel(launches[0])
    return outcome


def _of_kernel(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a launch says of its kernel's code, and its profiler's counters."""
    columns = {}
    for name, value in (launch.get("CompilationData") or {}).items():
        column = NAMES.get(name.lower())
        if column and isinstance(value, (int, float)):
            columns[column] = float(value)
    for counter in (launch.get("ProfilingData") or {}).get("Counters") or []:
        if is_counter(str(counter["Name"])):
            columns[f"counter.{counter['Name']}"] = counter["Value"]
    return columns
