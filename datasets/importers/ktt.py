"""KTT: its own JSON results, ``{"Metadata": {…}, "Results": [{"Configuration": […], …}, …]}``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.files import read_json, require_keys
from foretune.datasets.importers.records import PER_MS, table_from_records
from foretune.datasets.importers.request import Request
from foretune.datasets.importers.t4 import static_columns
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
"""KTT's status -> how the run ended; other texts are runtime errors."""

_WHAT = "a result file of KTT"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per result; KTT does not write the problem's size down.

    The time is the total of all kernels of the configuration; counters and compilation data are
    those of the first.

    Raises:
        WrongFile: it is no result file of KTT.
        RunTableError: it is damaged, or its unit of time is unknown.
    """
    data = read_json(path, ("Metadata", "Results"), _WHAT)
    about = data["Metadata"]
    require_keys(about, ("Device", "TimeUnit"), path, _WHAT)
    unit = str(about["TimeUnit"]).lower()
    if unit not in PER_MS:
        raise RunTableError(f"{path}: time unit {unit!r} is none of {', '.join(PER_MS)}")
    common = {
        "device": request.device or canonical_name(str(about["Device"])),
        "source": f"ktt {path.name}",
        "environment": f"KTT {about.get('KttVersion', '')} {about.get('ComputeApi', '')}".strip(),
    }
    records = []
    for result in data["Results"]:
        require_keys(result, ("KernelName", "Status", "Configuration"), path, _WHAT)
        kernel = {"kernel": request.kernel or result["KernelName"]}
        config = {f"config.{p['Name']}": p["Value"] for p in result["Configuration"]}
        recorded = str(result.get("Timestamp", about.get("Timestamp", ""))).replace(" ", "T", 1)
        outcome = _outcome(result, PER_MS[unit])
        records.append({**kernel, **common, **config, **outcome, "recorded_at": recorded})
    return table_from_records(records)


def _outcome(result: Mapping[str, Any], scale: float) -> dict[str, Any]:
    status = STATUSES.get(result["Status"], Status.RUNTIME_ERROR)
    if status is not Status.OK:
        return {"status": status.value, "error": str(result["Status"])}
    first: Mapping[str, Any] = next(iter(result.get("ComputationResults", ())), {})
    counters = first.get("ProfilingData", {}).get("Counters", ())
    outcome = {
        "status": status.value,
        "time_ms": result.get("TotalDuration"),
        **static_columns(first.get("CompilationData")),
        **{f"counter.{c['Name']}": c["Value"] for c in counters},
    }
    if outcome["time_ms"] is not None:
        outcome["time_ms"] *= scale
    if "CompilationOverhead" in result:
        outcome["compile_s"] = result["CompilationOverhead"] * scale / 1e3
    return outcome
