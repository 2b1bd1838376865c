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
    tuner = " ".join(str(about[k]) for k in ("autotuner", "autotuner_version") if k in about)
    common = {
        "kernel": request.given("kernel", path),
        "device": request.device
        or canonical_name(about.get("device", ""))
        or request.given("device", path),
        "source": f"t4 {path.name}",
        "environment": tuner or f"t4 {data.get('schema_version', '')}".strip(),
    }
    records = []
    for result in data["results"]:
        keys = result if isinstance(result, dict) else ()
        require(keys, ("configuration", "times", "invalidity"), path, _WHAT, "key")
        config = {f"config.{n}": as_number(v) for n, v in result["configuration"].items()}
        records.append({**config, **_outcome(result, unit)})
    return table_from_records(records, common)


def _outcome(result: Mapping[str, Any], unit: str) -> dict[str, Any]:
    status = STATUSES.get(result["invalidity"], Status.RUNTIME_ERROR)
    measured = {m["name"]: m for m in result.get("measurements", ())}
    times, scale = result["times"], PER_MS[unit]
    outcome: dict[str, Any] = {
        "status": status.value,
        **{
            NAMES[key]: float(value)
            for name, value in (result.get("compilation_data") or {}).items()
            if (key := name.replace("_", "").lower()) in NAMES and isinstance(value, (int, float))
        },
    }
    if "timestamp" in result:
        outcome["recorded_at"] = str(result["timestamp"]).replace(" ", "T", 1)
    compiling = times.get("compilation_time", times.get("compilation"))
    if isinstance(compiling, (int, float)):
        outcome["compile_s"] = compiling * scale / 1e3
    if status is not Status.OK:
        return {**outcome, "error": str(result["invalidity"])}
    runtimes = [t * scale for t in times.get("runtimes", ()) if isinstance(t, (int, float))]
    if "time" in measured:
        time_unit = str(measured["time"].get("unit") or unit).lower()
        outcome["time_ms"] = as_number(measured["time"]["value"])
        if isinstance(outcome["time_ms"], (int, float)):
            outcome["time_ms"] *= PER_MS.get(time_unit, scale)
    elif runtimes:
        outcome["time_ms"] = statistics.median(runtimes)
    counters = {f"counter.{n}": m["value"] for n, m in measured.items() if is_counter(n)}
    return {**outcome, **counters, "time_ms_samples": runtimes}
