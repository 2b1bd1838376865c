"""NVBench: the JSON that ``--json FILE`` writes.

``{"devices": [{"id", "name"}, …], "benchmarks": [{"name", "states": [{"device", "axis_values":
[{"name", "type", "value"}], "summaries": [{"tag", "data": [{"name": "value", "value"}]}],
"is_skipped"}]}]}``. Times are seconds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_number, table_from_records
from foretune.datasets.importers.files import Request, read_json, require
from foretune.device import canonical_name
from foretune.measurement import Status

TIMES = ("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean")
"""Tags of a run's time on the GPU, the preferred one first. Cold runs begin with an empty cache."""

_MS = 1e3  # per second
_WHAT = "a result of NVBench (--json)"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per state of a benchmark; its axes are the problem."""
    data = read_json(path, ("devices", "benchmarks"), _WHAT)
    devices = {device["id"]: canonical_name(str(device["name"])) for device in data["devices"]}
    records = []
    for benchmark in data["benchmarks"]:
        require(benchmark, ("name", "states"), path, _WHAT, "key")
        for state in benchmark["states"]:
            require(state, ("axis_values", "summaries"), path, _WHAT, "key")
            device = request.device or devices.get(state.get("device"))
            records.append(
                {
                    "kernel": request.kernel or str(benchmark["name"]),
                    "device": device or request.given("device", path),
                    **_axes(state["axis_values"]),
                    **_outcome(state),
                }
            )
    return table_from_records(records, {"source": f"nvbench {path.name}", "environment": "NVBench"})


def _axes(values: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of the axes; ``{io}`` and ``{ct}`` in their names say how they are used."""
    return {
        f"problem.{str(axis['name']).partition('{')[0]}": as_number(axis["value"])
        for axis in values
    }


def _outcome(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return status and time of a state."""
    if state.get("is_skipped"):
        reason = str(state.get("skip_reason") or "skipped")
        return {"status": Status.INVALID.value, "error": reason}
    seconds = {str(summary["tag"]): _value(summary) for summary in state["summaries"]}
    times = [seconds[tag] for tag in TIMES if isinstance(seconds.get(tag), (int, float))]
    time_ms = times[0] * _MS if times else None
    return {"status": Status.OK.value, "time_ms": time_ms}


def _value(summary: Mapping[str, Any]) -> Any:
    """Return the value of a summary, which is written as a text."""
    for entry in summary.get("data") or ():
        if entry.get("name") == "value":
            return as_number(entry["value"])
    return None
