"""T4, the results format of several autotuners (KTT among them)."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import PER_MS, as_number, is_counter, table_from_records
from foretune.datasets.importers.files import Request, read_json, require
from foretune.device import canonical_name
from foretune.errors import RunTableError
from foretune.measurement import Status

NAMES = {
    "registerscount": "static.registers",
    "registers": "static.registers",
    "localmemorysize": "static.shared_bytes",  # OpenCL's term for shared memory
    "privatememorysize": "static.private_bytes",
    "constantmemorysize": "static.constant_bytes",
    "maxworkgroupsize": "static.max_threads",
}
"""KTT's name in lower case without underscores -> run-table column."""

STATUSES = {
    "correct": Status.OK,
    "timeout": Status.TIMEOUT,
    "compile": Status.COMPILE_ERROR,
    "runtime": Status.RUNTIME_ERROR,
    "correctness": Status.WRONG_RESULT,
    "constraints": Status.INVALID,
}
"""T4's ``invalidity`` -> status; other texts are runtime errors."""

_WHAT = "a T4 results file"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per result; its time is called ``time``, else the median of the runtimes."""
    data = read_json(path, ("results",), _WHAT)
    about = data.get("metadata", {})
    unit = str(about.get("timeunit", "ms")).lower()
    if unit not in PER_MS:
        raise RunTableError(f"{path}: time unit {unit!r} is not one of {', '.join(PER_MS)}")
    named = [str(about[key]) for key in ("autotuner", "autotuner_version") if key in about]
    tuner = " ".join(named) or f"t4 {data.get('schema_version', '')}".strip()
    device = request.device or canonical_name(about.get("device", ""))
    common = {
        "kernel": request.given("kernel", path),
        "device": device or request.given("device", path),
        "source": f"t4 {path.name}",
        "environment": tuner,
    }
    records = []
    for result in data["results"]:
        keys = result if isinstance(result, dict) else ()
        require(keys, ("configuration", "times", "invalidity"), path, _WHAT, "key")
        configuration = result["configuration"]
        config = {f"config.{name}": as_number(value) for name, value in configuration.items()}
        records.append({**config, **_outcome(result, unit)})
    return table_from_records(records, common)


def _outcome(result: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return status, times, code and counters of a result; its times are in a unit."""
    status = STATUSES.get(result["invalidity"], Status.RUNTIME_ERROR)
    outcome: dict[str, Any] = {"status": status.value}
    for name, value in (result.get("compilation_data") or {}).items():
        column = NAMES.get(name.replace("_", "").lower())
        if column and isinstance(value, (int, float)):
            outcome[column] = float(value)
    if "timestamp" in result:
        outcome["recorded_at"] = str(result["timestamp"]).replace(" ", "T", 1)
    times = result["times"]
    compile_time = times.get("compilation_time", times.get("compilation"))
    if isinstance(compile_time, (int, float)):
        outcome["compile_s"] = compile_time * PER_MS[unit] / 1e3
    if status is not Status.OK:
        return {**outcome, "error": str(result["invalidity"])}

    measured = {measurement["name"]: measurement for measurement in result.get("measurements", ())}
    runtimes_ms = [
        time * PER_MS[unit] for time in times.get("runtimes", ()) if isinstance(time, (int, float))
    ]
    if "time" in measured:
        outcome["time_ms"] = _milliseconds(measured["time"], unit)
    elif runtimes_ms:
        outcome["time_ms"] = statistics.median(runtimes_ms)
    for name, measurement in measured.items():
        if is_counter(name):
            outcome[f"counter.{name}"] = measurement["value"]
    outcome["time_ms_samples"] = runtimes_ms
    return outcome


def _milliseconds(measurement: Mapping[str, Any], unit: str) -> Any:
    """Return a measured time in milliseconds; what is not a number is unchanged."""
    value = as_number(measurement["value"])
    if not isinstance(value, (int, float)):
        return value
    own_unit = str(measurement.get("unit") or unit).lower()
    return value * PER_MS.get(own_unit, PER_MS[unit])
