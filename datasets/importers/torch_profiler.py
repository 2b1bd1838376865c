"""torch.profiler: chrome traces from ``prof.export_chrome_trace("trace_batch8.json")``.

One row per kernel on a GPU, named by the operator that launched it; in traces of a CPU, one per
outermost operator. ``counter.launch_queue_us`` is the time from the launch on the host to the
kernel's start. Its sum is TKLQT, total kernel launch and queueing time (SKIP, arXiv 2504.11750): it
is flat over batch sizes while launches on the host are the limit, and rises with the queue once the
kernels are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
RISE = 1.5  # factor over smaller batches from which launch and queueing time counts as rising
QUEUE, BATCH = "counter.launch_queue_us", "problem.batch"
_BATCH_IN_NAME = [
    re.compile(rf"(?:^|[^a-z])(?:{word})[_=-]?(\d+)", re.IGNORECASE) for word in ("batch|bs", "b")
]  # a B200 is a device

Event = Mapping[str, Any]


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per kernel, or per outermost operator if there are no kernels.

    ``problem.batch`` is the number after ``batch`` or ``bs``, else ``b``, in the file's name.
    """
    trace = read_json(path, ("traceEvents",), "a chrome trace of torch.profiler")
    events = [e for e in trace["traceEvents"] if _is_complete(e)]
    operators, launches, kernels = (
        [e for e in events if str(e.get("cat")).lower() in kind]
        for kind in (OPERATORS, LAUNCHES, KERNELS)
    )
    found = next(filter(None, (word.search(path.stem) for word in _BATCH_IN_NAME)), None)
    batch = {BATCH: int(found[1])} if found else {}
    owners = dict(_owners(operators, launches))
    if kernels:
        rows = list(_kernel_rows(kernels, launches, owners, trace, path, request))
    else:
        outermost = [o for o in operators if id(o) not in owners]
        rows = [{"device": request.given("device", path), **_about(o)} for o in outermost]
    if request.kernel:
        rows = [row for row in rows if row["kernel"] == request.kernel]
    common = {"source": f"torch.profiler {path.name}", "environment": "torch.profiler"}
    return table_from_records(({**batch, **row} for row in rows), common)


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
    by_correlation = {key: e for e in launches if (key := _number(e, "correlation"))}
    by_id = {key: o for o in owners.values() if (key := _number(o, *EXTERNAL))}
    properties = trace.get("deviceProperties", trace.get("computeProperties", []))
    properties = properties if isinstance(properties, list) else []
    names = {str(p.get("id")): p.get("name") for p in properties if isinstance(p, dict)}
    for kernel in kernels:
        args, name = _args(kernel), str(kernel.get("name"))
        launch = by_correlation.get(_number(kernel, "correlation"))
        owner = owners.get(id(launch)) or by_id.get(_number(kernel, *EXTERNAL))
        row: dict[str, Any] = _about(owner) if owner else {"kernel": short_name(name)}
        device = request.device or names.get(str(args.get("device")))
        row |= {
            "device": device or request.given("device", path),
            "config.implementation": name,
            "time_ms": float(kernel["dur"]) / 1e3,
        }
        if launch:
            row["counter.launch_us"] = float(launch["dur"])
            row[QUEUE] = max(float(kernel["ts"]) - float(launch["ts"]), 0.0)
        for part in ("grid", "block"):
            sizes = args.get(part)
            sizes = sizes if isinstance(sizes, list) else []
            row |= {f"static.{part}_{a}": s for a, s in zip("xyz", sizes, strict=False)}
        if "registers per thread" in args:
            row["static.registers"] = args["registers per thread"]
        yield row


def _about(operator: Event) -> dict[str, Any]:
    """Return an operator's name, time and, if recorded, the shapes of its inputs."""
    row: dict[str, Any] = {"kernel": str(operator["name"]), "time_ms": float(operator["dur"]) / 1e3}
    if shapes := _args(operator).get("Input Dims"):
        row["problem.shapes"] = str(shapes)
    return row


def _owners(operators: Iterable[Event], launches: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Yield the id of each operator and launch in an operator, and its innermost operator."""
    nested: dict[tuple[str, str], list[Event]] = {}
    kinds = [*((o, True) for o in operators), *((e, False) for e in launches)]
    # of events that begin together, the longer one is outside
    for event, is_operator in sorted(kinds, key=lambda p: (float(p[0]["ts"]), -float(p[0]["dur"]))):
        open_ = nested.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        start = float(event["ts"])
        while open_ and float(open_[-1]["ts"]) + float(open_[-1]["dur"]) <= start:
            open_.pop()
        if open_:
            yield id(event), open_[-1]
        if is_operator:
            open_.append(event)


def _is_complete(event: Any) -> bool:
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
    return next((str(_args(event)[name]) for name in names if name in _args(event)), "")
