"""TVM: tuning records of the auto-scheduler (Ansor) and of AutoTVM, one JSON object a line."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile
from foretune.datasets.importers.json_records import read_records
from foretune.measurement import Status

STATUSES = {
    0: Status.OK,
    1: Status.INVALID,
    2: Status.COMPILE_ERROR,
    3: Status.COMPILE_ERROR,
    4: Status.RUNTIME_ERROR,
    5: Status.WRONG_RESULT,
    6: Status.TIMEOUT,
    7: Status.TIMEOUT,
}
"""TVM's MeasureErrorNo -> status; other numbers are runtime errors."""

FAILED_SECONDS = 1e9
"""Seconds from which a record of MetaSchedule stands for a failed run; TVM writes 1e10."""
RUNTIME_ERROR = 4
ANSOR_PARTS = 2
"""Parts of a record of Ansor: its task and its schedule. AutoTVM's first format has six."""

_WHAT = "tuning records of TVM"
_MS = 1e3  # per second


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per record: the mean of its repeats, which are seconds."""
    device = request.given("device", path)
    records = []
    for record in read_records(path, (), _WHAT, kinds=(dict, list)):
        if isinstance(record, list):
            task, config, costs, error = _metaschedule(record, path)
        elif {"i", "r"} <= set(record) and len(record["i"]) > ANSOR_PARTS:
            task, config = _first_autotvm(record)
            costs, error = record["r"][0], record["r"][1]
        elif {"i", "r"} <= set(record):
            task, config = _ansor(record)
            costs, error = record["r"][0], record["r"][1]
        elif {"input", "config", "result"} <= set(record):
            task, config = _autotvm(record)
            costs, error = record["result"][0], record["result"][1]
        else:
            raise WrongFile(f"{path} is not {_WHAT}: expected i and r, or input and result")
        name, *arguments = task
        status = STATUSES.get(error, Status.RUNTIME_ERROR)
        row: dict[str, Any] = {
            "kernel": request.kernel or str(name),
            "device": device,
            **{f"problem.arg_{i}": _plain(a) for i, a in enumerate(arguments)},
            **config,
            "status": status.value,
        }
        if not arguments:
            row["problem.workload"] = str(name)
        if status is Status.OK:
            row["time_ms"] = statistics.mean(costs) * _MS
            row["time_ms_samples"] = [cost * _MS for cost in costs]
        records.append(row)
    return table_from_records(records, {"source": f"tvm {path.name}", "environment": "TVM"})


def _ansor(record: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a record's task, a name and its arguments, and its schedule."""
    (key, *_), (_, steps, *_) = record["i"]
    task = json.loads(key) if key.startswith("[") else [key]
    return task, {"config.schedule": json.dumps(steps)}


def _autotvm(record: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a record's task, a name and its arguments, and its knobs."""
    _, name, arguments, *_ = record["input"]
    knobs = {f"config.{knob}": _plain(value) for knob, _, value in record["config"]["entity"]}
    return [name, *arguments], knobs


def _first_autotvm(record: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return task and knobs of a record in AutoTVM's first format, of version 0.1."""
    _, name, arguments, *_, config = record["i"]
    knobs = {f"config.{knob}": _plain(value) for knob, _, value in config["e"]}
    return [name, *arguments], knobs


def _metaschedule(
    record: list[Any], path: Path
) -> tuple[list[Any], dict[str, Any], list[float], int]:
    """Return a record's task, schedule, seconds and error of ``database_tuning_record.json``.

    Its first entry is the line of the task in ``database_workload.json``.
    """
    try:
        workload, (trace, seconds, _, arguments) = record
        task = [f"workload_{int(workload)}", *(json.dumps(argument) for argument in arguments)]
    except (TypeError, ValueError) as e:
        raise WrongFile(
            f"{path} is not {_WHAT}: a record of MetaSchedule is [workload, [trace, seconds, "
            "target, arguments]]"
        ) from e
    failed = not seconds or max(seconds) >= FAILED_SECONDS
    error = RUNTIME_ERROR if failed else 0
    return task, {"config.schedule": json.dumps(trace)}, list(seconds or ()), error


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
