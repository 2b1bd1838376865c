"""Items of `smoke.py`: kernels are right, and their times are those of a graph."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from smoke_problems import EXPERTS, GEMM, GROUPED, KERNELS, SOFTMAX, WIDE, KernelRun
from smoke_rows import REAL, Run, warm_gpu_timer

import foretune
from foretune.kernel import Launch

MIN_ROOFLINE_SHARE = 0.4
"""A launch that is faster was not timed: what it writes may stay in the cache, no more."""
LAUNCHES = (1, 2, 4, 8, 32)
"""Launches of one kernel in a call."""
SLACK_SHARE = 0.10
SLACK_MS = 0.003
"""Difference between two timers that is allowed: a share of the time, and milliseconds."""
GAP_MS = 0.001
"""A stream's kernels have a longer gap between them than a graph's."""
WARMUP_LAUNCHES = 3
TIMED_LAUNCHES = 30
ONLINE_LAUNCHES = 15


@dataclass(frozen=True)
class RepeatedLaunch:
    """A call that launches ``n_kernels`` kernels."""

    launch: Launch
    n_kernels: int


def kernels(run: Run) -> None:
    """Measure kernels as the stages do."""
    from bench import Bench

    bench = Bench() if REAL else None
    for kernel_run in KERNELS:
        name = _name(kernel_run)
        with run.checking(name):
            _measure(run, name, kernel_run, bench)


def _name(kernel_run: KernelRun) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in kernel_run.problem.items())
    changed = f" {kernel_run.changed}" if kernel_run.changed else ""
    return f"{kernel_run.kernel.name} {sizes}{changed}"


def _measure(run: Run, name: str, kernel_run: KernelRun, bench: Any) -> None:
    kernel = kernel_run.kernel
    problem = kernel.problem(kernel_run.problem)
    config = foretune.Configuration({**kernel.default(problem), **kernel_run.changed})
    if bench is None:
        kernel.build(problem, config, kernel.inputs_without_data(problem))
        run.check(name, True, "compiled")
        return

    measured = bench.measure(kernel, problem, config)
    limit = kernel.error_limit(problem, config)
    roofline_ms = float(bench.device.roofline_ms(kernel.cost(problem, config)))
    run.check(
        name,
        measured.ok and measured.time_ms > MIN_ROOFLINE_SHARE * roofline_ms,
        f"{measured.status.value} {measured.error} error {measured.relative_error:.2g} "
        f"(bar {limit:.2g}), {measured.time_ms:.4f} ms, roofline {roofline_ms:.4f}",
    )


def several_launches(run: Run) -> None:
    """Compare times of calls that launch several kernels with those of a graph."""
    calls = _repeated_softmax()
    if not REAL:
        run.check("launches", True, "compiled")
        return

    # A product whose partial sums are added by a second kernel.
    problem = GEMM.problem(M=64, N=1024, K=8192, dtype="fp16")
    split = foretune.Configuration({**GEMM.default(problem), "SPLIT_K": 4})
    launch = GEMM.build(problem, split, GEMM.make_inputs(problem))
    calls["GEMM with split sums"] = RepeatedLaunch(launch, n_kernels=2)

    # The library's grouped product may launch a kernel per expert.
    problem = GROUPED.problem({**EXPERTS, "dtype": "bf16"})
    library = GROUPED.library(problem, GROUPED.make_inputs(problem))
    if library is not None:
        library_name, launch = library
        calls[library_name] = RepeatedLaunch(launch, n_kernels=EXPERTS["experts"])

    timer = warm_gpu_timer()
    for name, repeated in calls.items():
        with run.checking(name):
            _compare_times(run, name, repeated, timer)


def _repeated_softmax() -> dict[str, RepeatedLaunch]:
    """Return calls that launch a small or a large softmax several times."""
    calls = {}
    for size, values in (("small", {"R": 512, "C": 1024}), ("large", WIDE)):
        problem = SOFTMAX.problem(values)
        inputs = SOFTMAX.make_inputs(problem) if REAL else SOFTMAX.inputs_without_data(problem)
        launch = SOFTMAX.build(problem, SOFTMAX.default(problem), inputs)
        for count in LAUNCHES:
            calls[f"{count} {size}"] = RepeatedLaunch(_repeated(launch, count), n_kernels=count)
    return calls


def _repeated(launch: Launch, count: int) -> Launch:
    def repeat() -> None:
        for _ in range(count):
            launch()

    return repeat


def _compare_times(run: Run, name: str, repeated: RepeatedLaunch, timer: Any) -> None:
    """Time a call by events around many launches, by those of online tuning, and as a graph."""
    from foretune.tune.triton.runtime import EventTimer

    launch = repeated.launch
    _repeated(launch, WARMUP_LAUNCHES)()
    torch.cuda.synchronize()
    events_ms = _median_ms(launch, timer)

    # Online tuning delays the device by what the host needed for the launch before.
    online = []
    host_s = 0.0
    for _ in range(ONLINE_LAUNCHES):
        event = EventTimer(host_s)
        event.start()
        launch()
        event.stop()
        host_s = event.host_s
        torch.cuda.synchronize()
        online.append(event.elapsed_ms() or math.nan)
    online_ms = statistics.median(online)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    graph_ms = _median_ms(graph.replay, timer)

    slack_ms = SLACK_SHARE * graph_ms + SLACK_MS + GAP_MS * repeated.n_kernels
    run.check(
        name,
        abs(events_ms - graph_ms) <= slack_ms and abs(online_ms - graph_ms) <= slack_ms,
        f"events {events_ms:.4f} ms, online {online_ms:.4f}, graph {graph_ms:.4f}; events / graph "
        f"{events_ms / graph_ms:.2f}; the host takes {1e3 * host_s:.3f} ms",
    )


def _median_ms(launch: Launch, timer: Any) -> float:
    return statistics.median(timer.sample_ms(launch, 1) for _ in range(TIMED_LAUNCHES))
