"""Keeps results of gates: rows of a run table, and runs in MLflow."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from foretune.collect.devices import local_device
from foretune.datasets.run_log import RunLog
from foretune.device import Device
from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.gate.gate import GateResult
from foretune.tune.gate.verdicts import BenchmarkVerdict

SOURCE = "foretune gate"


def record_runs(
    path: str | os.PathLike[str], result: GateResult, device: Device | None = None
) -> int:
    """Append a row per benchmark and revision to a run table, and return their number.

    The kernel is ``gate``, the problem names the benchmark, the configuration the revision. A time
    is the median over processes of their low quantiles.
    """
    if not str(path).endswith(".parquet"):
        raise UsageError(f"{path}: a run table is a Parquet file: use a name ending in .parquet")
    device = device or local_device("cpu", measure=False)
    rows = list(_rows(result, device))
    with RunLog(Path(path), device) as log:
        for row in rows:
            log.append(row)
    return len(rows)


def _rows(result: GateResult, device: Device) -> Iterator[Measurement]:
    for verdict in result.verdicts:
        if verdict.metric != "time" or verdict.sessions == 0:
            continue
        of_head = (result.head, verdict.comparison.value, verdict.word == "fails")
        for revision, time_ms, fails in ((result.base, verdict.base_value, False), of_head):
            if not fails and not 0 < time_ms < float("inf"):
                continue
            yield Measurement(
                kernel="gate",
                problem=Problem(benchmark=verdict.name),
                config=Configuration(revision=revision),
                device=device.name,
                status=Status.RUNTIME_ERROR if fails else Status.OK,
                time_ms=float("nan") if fails else time_ms,
                error=verdict.advice if fails else "",
                source=SOURCE,
            )


def track_gate(result: GateResult, uri: str | None = None) -> str:
    """Write a run to MLflow: change and interval of each benchmark; return where it is."""
    from foretune.tune.gate.texts import markdown
    from foretune.tune.mlflow.tracking import Tracker

    tracker = Tracker(uri)
    tags = {"foretune.gate.color": result.color}
    run_id = tracker.open_run(f"gate {result.head}", None, tags)
    params = {"base": result.base, "head": result.head, "relevant": result.relevant}
    metrics: dict[str, float] = {"red": float(result.is_red)}
    for verdict in result.verdicts:
        metrics |= _metrics(verdict)
    tracker.log(run_id, params=params, metrics=metrics)
    tracker.describe(run_id, markdown(result))
    tracker.end_run(run_id)
    return tracker.name


def _metrics(verdict: BenchmarkVerdict) -> Mapping[str, float]:
    """Return the metrics of a verdict; MLflow takes few other signs than letters in names."""
    name = "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in verdict.label)
    return {
        f"{name}.change": verdict.change,
        f"{name}.change_low": verdict.change_low,
        f"{name}.change_high": verdict.change_high,
    }
