"""torch.profiler: chrome traces from ``prof.export_chrome_trace("trace_batch8.json")``.

One row per kernel on a GPU, named by the operator that launched it; in traces of a CPU, one per
outermost operator. ``counter.launch_queue_us`` is the time from the launch on the host to the
kernel's start. Its sum is TKLQT, total kernel launch and queueing time (SKIP, arXiv 2504.11750): it
is flat over batch sizes while launches on the host are the limit, and rises with the queue once the
kernels are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, read_json
from foretune.datasets.importers.ncu import short_name

OPERATORS = ("cpu_op", "operator")
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime")
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
"""Categories of events, in lower case, in old and new versions."""
EXTERNAL = ("External id", "external id")
"""Arguments of events that an operator and its kernels share."""
RISE = 1.5
"""Factor over smaller batches from which launch and queueing time counts as rising."""
QUEUE = "counter.launch_queue_us"
BATCH = "problem.batch"
_BATCH_IN_NAME = [
    re.compile(rf"(?:^|[^a-z])(?:{word})[_=-]?(\d+)", re.IGNORECASE) for word in ("batch|bs", "b")
]
"""Patterns of the batch in a file's name. ``b`` comes last: a B200 is a device."""

Event = Mapping[str, Any]


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel, or per outermost operator if there are no kernels.

    ``problem.batch`` is the number after ``batch`` or ``bs``, else ``b``, in the file's name.
    """
    trace = read_json(path, ("traceEvents",), "a chrome trace of torch.profiler", request.notes)
    events = [event for event in trace["traceEvents"] if _is_complete(event)]
    operators = _of_category(events, OPERATORS)
    launches = _of_category(events, LAUNCHES)
    kernels = _of_category(events, KERNELS)

    owners = dict(_owners(operators, launches))
    if kernels:
        rows = list(_kernel_rows(kernels, launches, owners, trace, path, request))
    else:
        outermost = [operator for operator in operators if id(operator) not in owners]
        rows = [{"device": request.given("device", path), **_about(o)} for o in outermost]
    if request.kernel:
        rows = [row for row in rows if row["kernel"] == request.kernel]

    batch = _batch_in_name(path)
    problem = {} if batch is None else {BATCH: batch}
    common = {"source": f"torch.profiler {path.name}", "environment": "torch.profiler"}
    return table_from_records([{**problem, **row} for row in rows], common)


def _of_category(events: Iterable[Event], categories: Sequence[str]) -> list[Event]:
    return [event for event in events if str(event.get("cat")).lower() in categories]


def _batch_in_name(path: Path) -> int | None:
    for pattern in _BATCH_IN_NAME:
        match = pattern.search(path.stem)
        if match:
            return int(match[1])
    return None


def launch_summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return launch and queueing time by batch size, ascending; empty without kernels or batches.

    Columns: ``batch``, ``kernels``, ``tklqt_ms``, ``kernel_ms`` (sums over the trace) and
    ``launch_us``, the mean per kernel, which does not depend on a trace's length.
    """
    if not {QUEUE, BATCH} <= set(runs):
        return pd.DataFrame()
    known = runs[runs[QUEUE].notna() & runs[BATCH].notna()]
    groups = known.groupby(known[BATCH].astype(int))
    return (
        pd.DataFrame(
            {
                "kernels": groups.size(),
                "tklqt_ms": groups[QUEUE].sum() / 1e3,
                "kernel_ms": groups["time_ms"].sum(),
                "launch_us": groups[QUEUE].mean(),
            }
        )
        .rename_axis("batch")
        .reset_index()
    )


def first_compute_bound(summary: pd.DataFrame) -> int | None:
    """Return the batch size from which launch and queueing time stays raised, or None."""
    times = summary["launch_us"].tolist()
    for i in range(1, len(times)):
        flat = sum(times[:i]) / i
        if all(time > RISE * flat for time in times[i:]):
            return int(summary["batch"].iloc[i])
    return None


def _kernel_rows(
    kernels: Iterable[Event],
    launches: Iterable[Event],
    owners: Mapping[int, Event],
    trace: Mapping[str, Any],
    path: Path,
    request: Request,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel, with its launch and the operator that launched it."""
    launch_of = _by_number(launches, "correlation")
    operator_of = _by_number(owners.values(), *EXTERNAL)
    device_names = _device_names(trace)
    for kernel in kernels:
        args = _args(kernel)
        name = str(kernel.get("name"))
        launch = launch_of.get(_number(kernel, "correlation"))
        operator = owners.get(id(launch)) or operator_of.get(_number(kernel, *EXTERNAL))
        row: dict[str, Any] = _about(operator) if operator else {"kernel": short_name(name)}
        device = request.device or device_names.get(str(args.get("device")))
        row["device"] = device or request.given("device", path)
        row["config.implementation"] = name
        row["time_ms"] = float(kernel["dur"]) / 1e3
        if launch:
            row["counter.launch_us"] = float(launch["dur"])
            row[QUEUE] = max(float(kernel["ts"]) - float(launch["ts"]), 0.0)
        for part in ("grid", "block"):
            sizes = args.get(part)
            if not isinstance(sizes, list):
                continue
            for axis, size in zip("xyz", sizes, strict=False):
                row[f"static.{part}_{axis}"] = size
        if "registers per thread" in args:
            row["static.registers"] = args["registers per thread"]
        yield row


def _by_number(events: Iterable[Event], *names: str) -> dict[str, Event]:
    """Return the events with one of these arguments, by its value."""
    numbered = [(_number(event, *names), event) for event in events]
    return {number: event for number, event in numbered if number}


def _device_names(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of a trace's devices by number; old versions call them otherwise."""
    properties = trace.get("deviceProperties", trace.get("computeProperties", []))
    if not isinstance(properties, list):
        return {}
    devices = [device for device in properties if isinstance(device, dict)]
    return {str(device.get("id")): device.get("name") for device in devices}


def _about(operator: Event) -> dict[str, Any]:
    """Return an operator's name, time and, if recorded, the shapes of its inputs."""
    row: dict[str, Any] = {"kernel": str(operator["name"]), "time_ms": float(operator["dur"]) / 1e3}
    shapes = _args(operator).get("Input Dims")
    if shapes:
        row["problem.shapes"] = str(shapes)
    return row


def _owners(operators: Iterable[Event], launches: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Yield the id of each operator and launch in an operator, and its innermost operator."""
    # By start; of events that begin together, the longer one is outside.
    events = [(operator, True) for operator in operators]
    events += [(launch, False) for launch in launches]
    events.sort(key=lambda pair: (float(pair[0]["ts"]), -float(pair[0]["dur"])))

    # Each thread has a stack of the operators that have not ended.
    running: dict[tuple[str, str], list[Event]] = {}
    for event, is_operator in events:
        thread = (str(event.get("pid")), str(event.get("tid")))
        stack = running.setdefault(thread, [])
        start = float(event["ts"])
        while stack and float(stack[-1]["ts"]) + float(stack[-1]["dur"]) <= start:
            stack.pop()
        if stack:
            yield id(event), stack[-1]
        if is_operator:
            stack.append(event)


def _is_complete(event: Any) -> bool:
    """Return whether an event has a name, a start and a duration."""
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and all(type(event.get(key)) in (int, float) for key in ("ts", "dur"))
        and "name" in event
    )


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(event: Event, *names: str) -> str:
    """Return the argument that an operator, a launch and its kernels share; "" without one."""
    args = _args(event)
    for name in names:
        if name in args:
            return str(args[name])
    return ""
