"""T4, the results format of several autotuners (KTT among them)."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_number, is_counter, table_from_records
from foretune.datasets.importers.files import Request, read_json, require
from foretune.datasets.time_units import MS_PER_UNIT
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
_ADD_UNIT = 'add "metadata": {"timeunit": "milliseconds"}, or what it is, to the file'


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per result; its time is called ``time``, else the median of the runtimes."""
    data = read_json(path, ("results",), _WHAT)
    about = data.get("metadata", {})
    unit = str(about.get("timeunit", "")).lower()
    if unit and unit not in MS_PER_UNIT:
        raise RunTableError(f"{path}: its metadata has the timeunit {unit!r}, which is no time")
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
    if isinstance(compile_time, (int, float)) and unit:
        outcome["compile_s"] = compile_time * MS_PER_UNIT[unit] / 1e3
    if status is not Status.OK:
        return {**outcome, "error": str(result["invalidity"])}

    measured = {measurement["name"]: measurement for measurement in result.get("measurements", ())}
    runtimes = [time for time in times.get("runtimes", ()) if isinstance(time, (int, float))]
    runtimes_ms = [time * MS_PER_UNIT[unit] for time in runtimes] if unit else []
    if "time" in measured:
        outcome["time_ms"] = _milliseconds(measured["time"], unit)
    elif runtimes:
        outcome["time_ms"] = _median(runtimes_ms)
    for name, measurement in measured.items():
        if is_counter(name):
            outcome[f"counter.{name}"] = measurement["value"]
    outcome["time_ms_samples"] = runtimes_ms or None
    return outcome


def _median(runtimes_ms: Sequence[float]) -> float:
    if not runtimes_ms:
        raise RunTableError(f"its runtimes have no unit: {_ADD_UNIT}")
    return statistics.median(runtimes_ms)


def _milliseconds(measurement: Mapping[str, Any], unit: str) -> Any:
    """Return a measured time in milliseconds; what is not a number is unchanged.

    Raises RunTableError if its own unit is not one of time.
    """
    value = as_number(measurement["value"])
    if not isinstance(value, (int, float)):
        return value
    own_unit = str(measurement.get("unit") or unit).lower()
    if not own_unit:
        raise RunTableError(f"the measurement 'time' has no unit: {_ADD_UNIT}")
    if own_unit not in MS_PER_UNIT:
        raise RunTableError(f"the measurement 'time' has the unit {own_unit!r}, which is no time")
    return value * MS_PER_UNIT[own_unit]
