"""Google Benchmark: ``--benchmark_out_format=json`` or ``csv``."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_number, table_from_records
from foretune.datasets.importers.files import Request, read_json, read_table, require
from foretune.datasets.time_units import MS_PER_UNIT
from foretune.errors import RunTableError
from foretune.measurement import Status

COLUMNS = ("name", "iterations", "real_time", "time_unit")
AGGREGATES = ("_mean", "_median", "_stddev", "_cv", "_min", "_max", "_BigO", "_RMS")
"""Ends of names of rows that sum others up; they are left out if the runs are there."""
READ_AGGREGATES = ("_median", "_mean")
"""Of a file without runs (``--benchmark_report_aggregates_only``), the preferred one first."""
TIMING_ARGUMENTS = {"iterations", "repeats", "repetitions", "min_time", "min_warmup_time"}
"""Parts of names, before a colon, that say how long a benchmark ran."""

_WHAT = "a result of Google Benchmark"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per run: its real time per iteration.

    ``BM_Gemm/64/batch:8`` is the kernel ``BM_Gemm`` with ``problem.arg_0`` 64 and
    ``problem.batch`` 8.
    """
    common = {
        "device": request.given("device", path),
        "source": f"google-benchmark {path.name}",
        "environment": "Google Benchmark",
    }
    records = [_record(run, path, request) for run in _timed(_runs(path, request))]
    return table_from_records(records, common)


def _timed(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs, or one aggregate of each benchmark if only aggregates are reported."""
    listed = list(rows)
    runs = [
        row
        for row in listed
        if row.get("run_type") != "aggregate" and not str(row.get("name")).endswith(AGGREGATES)
    ]
    if runs:
        return runs
    for ending in READ_AGGREGATES:
        found = [row for row in listed if str(row.get("name")).endswith(ending)]
        if found:
            return [{**row, "name": str(row["name"]).removesuffix(ending)} for row in found]
    return []


def _runs(path: Path, request: Request) -> Iterable[Mapping[str, Any]]:
    if ".json" in path.name.lower():
        runs = read_json(path, ("context", "benchmarks"), _WHAT)["benchmarks"]
        return [run for run in runs if isinstance(run, dict)]
    # The file begins with what the console shows: the machine, and warnings.
    table = read_table(
        path, COLUMNS, dialect=request.dialect, notes=request.notes, header_words=COLUMNS
    )
    require(set(table.columns), COLUMNS, path, _WHAT)
    return [
        {name: value for name, value in row.items() if not _is_gap(value)}
        for row in table.astype(object).to_dict("records")
    ]


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _record(run: Mapping[str, Any], path: Path, request: Request) -> dict[str, Any]:
    name, *arguments = str(run.get("name", "")).split("/")
    record: dict[str, Any] = {
        "kernel": request.kernel or name,
        "config.benchmark": name,
        **_problem(arguments),
    }
    if run.get("error_occurred") in (True, "true"):
        message = str(run.get("error_message", "failed"))
        return {**record, "status": Status.RUNTIME_ERROR.value, "error": message}
    if run.get("skipped") in (True, "true"):
        message = str(run.get("skip_message", "skipped"))
        return {**record, "status": Status.INVALID.value, "error": message}
    unit = str(run.get("time_unit"))
    if unit not in MS_PER_UNIT:
        raise RunTableError(
            f"{path}: {run.get('name')} has the time unit {unit!r}, which is unknown"
        )
    time = as_number(run.get("real_time", math.nan))
    return {**record, "status": Status.OK.value, "time_ms": time * MS_PER_UNIT[unit]}


def _problem(arguments: Iterable[str]) -> dict[str, Any]:
    """Return the arguments in a name; a word alone (``real_time``) says how it was timed."""
    problem = {}
    for i, argument in enumerate(arguments):
        name, colon, value = argument.partition(":")
        if name in TIMING_ARGUMENTS:
            continue
        if colon:
            problem[f"problem.{name}"] = as_number(value)
        elif isinstance(as_number(argument), (int, float)):
            problem[f"problem.arg_{i}"] = as_number(argument)
    return problem
