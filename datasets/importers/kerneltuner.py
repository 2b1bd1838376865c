"""Kernel Tuner: cache files, finished or not, as in the benchmark hub's ``cachefiles``.

``{"device_name", "kernel_name", "problem_size", "tune_params", "cache": {"16,1": {…}, …}}``. While
a tuner runs, or if it was stopped, its file lacks the closing braces.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import is_counter, table_from_records
from foretune.datasets.importers.files import Request, read_text, require
from foretune.device import canonical_name
from foretune.errors import RunTableError
from foretune.measurement import Status
from foretune.support.files import parse_json

FAILURES = {
    "InvalidConfig": Status.INVALID,
    "CompilationFailedConfig": Status.COMPILE_ERROR,
    "RuntimeFailedConfig": Status.RUNTIME_ERROR,
}
"""Text in place of a time -> status; other texts are runtime errors."""

FAILED_TIME = 1e20
"""Time that old releases write for failed configurations."""

POWER = ("nvml_power", "ps_power", "pmt_power", "hip_power")
ENERGY = ("nvml_energy", "ps_energy", "pmt_energy", "hip_energy")
"""Watts and joules from Kernel Tuner's observers."""

_WHAT = "a cache file of Kernel Tuner"
_KEYS = ("device_name", "kernel_name", "tune_params", "cache")


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per cached configuration.

    Parameters with one value become part of the problem, like the problem size. The time is the
    mean of the repeats. User-defined metrics are not imported.
    """
    data = parse(path)
    require(data if isinstance(data, dict) else (), _KEYS, path, _WHAT, "key")
    names = data.get("tune_params_keys") or list(data["tune_params"])
    columns = {}
    for name in names:
        is_fixed = len(data["tune_params"].get(name, ())) == 1
        columns[name] = f"problem.{name}" if is_fixed else f"config.{name}"
    common = {
        "kernel": request.kernel or str(data["kernel_name"]),
        "device": request.device or canonical_name(str(data["device_name"]).strip()),
        "source": f"kerneltuner {path.name}",
        "environment": f"kerneltuner cache {data.get('schema_version', 'unversioned')}",
    }
    problem_size = data.get("problem_size", ())
    sizes = problem_size if isinstance(problem_size, (list, tuple)) else [problem_size]
    problem = {f"problem.size_{i}": _plain(size) for i, size in enumerate(sizes)}
    records = []
    for entry in data["cache"].values():
        values = {columns[name]: _plain(entry[name]) for name in names if name in entry}
        records.append({**problem, **values, **_outcome(entry)})
    if without_time := [e for e in data["cache"].values() if not {"time", "__error__"} & set(e)]:
        request.notes.append(
            f"{path}: {len(without_time)} of {len(records)} configurations have no time; the "
            f"objective {data.get('objective', 'of the file')!r} is not read as one"
        )
    return table_from_records(records, common)


def _outcome(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return status, time, power and counters of an entry."""
    time_or_error = entry.get("__error__", entry.get("time"))
    if isinstance(time_or_error, str) or time_or_error == FAILED_TIME:
        status = FAILURES.get(str(time_or_error), Status.RUNTIME_ERROR)
        error = time_or_error if isinstance(time_or_error, str) else "failed"
        return {"status": status.value, "error": error, **_notes(entry)}

    energy_j = _first_number(entry, ENERGY)
    counters = {f"counter.{name}": value for name, value in entry.items() if is_counter(name)}
    return {
        "status": Status.OK.value,
        "time_ms": time_or_error,
        "time_ms_samples": entry.get("times"),
        "power_w": _first_number(entry, POWER),
        "energy_mj": None if energy_j is None else energy_j * 1e3,
        **counters,
        **_notes(entry),
    }


def _notes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what successes and failures may have: compile time, registers, time of the run."""
    notes: dict[str, Any] = {}
    if isinstance(entry.get("compile_time"), (int, float)):
        notes["compile_s"] = entry["compile_time"] / 1e3
    if "num_regs" in entry:
        notes["static.registers"] = entry["num_regs"]
    if "timestamp" in entry:
        notes["recorded_at"] = str(entry["timestamp"]).replace(" ", "T", 1)
    return notes


def _first_number(entry: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the first of several values that is a number."""
    for name in names:
        if isinstance(entry.get(name), (int, float)):
            return float(entry[name])
    return None


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


def parse(path: Path) -> Any:
    """Return the content of a cache file, finished or not; raise RunTableError if it is damaged."""
    text = read_text(path, _WHAT, _KEYS).strip()
    # A stopped tuner leaves a trailing comma or half a line, and no closing braces.
    without_comma = text.rstrip(",")
    whole_lines = text.rpartition("\n")[0].rstrip().rstrip(",")
    for candidate in (text, without_comma + "}}", whole_lines + "}}"):
        with suppress(ValueError):
            return parse_json(candidate, object)
    raise RunTableError(
        f"{path} is not {_WHAT}: it is not readable JSON, finished or not, with {', '.join(_KEYS)}"
    )
