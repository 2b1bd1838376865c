"""Items of `smoke.py`: kernels are right, and their times are those of a graph."""

import math
import statistics
from functools import partial
from typing import Any

import torch
from smoke_cases import EXPERTS, GEMM, GROUPED, KERNELS, SOFTMAX, WIDE
from smoke_rows import REAL, Run, warm_gpu_timer

import foretune
from foretune.kernel import Launch

LEAST_OF_ROOFLINE = 0.4
"""A launch that is faster was not timed: what it writes may stay in the cache, no more."""


def kernels(run: Run) -> None:
    """Measure kernels as the stages do."""
    from bench import Bench

    bench = Bench() if REAL else None
    for kernel, values, changed in KERNELS:
        knobs = f" {changed}" if changed else ""
        what = f"{kernel.name} {', '.join(f'{k}={v}' for k, v in values.items())}{knobs}"
        with run.checking(what):
            problem = kernel.problem(values)
            config = foretune.Configuration({**kernel.default(problem), **changed})
            if bench is None:
                kernel.build(problem, config, kernel.inputs_without_data(problem))
                run.check(what, True, "compiled")
                continue
            m = bench.measure(kernel, problem, config)
            limit = kernel.error_limit(problem, config)
            least_ms = float(bench.device.roofline_ms(kernel.cost(problem, config)))
            run.check(
                what,
                m.ok and m.time_ms > LEAST_OF_ROOFLINE * least_ms,
                f"{m.status.value} {m.error} error {m.relative_error:.2g} (bar {limit:.2g}), "
                f"{m.time_ms:.4f} ms, roofline {least_ms:.4f}",
            )


LAUNCHES = (1, 2, 4, 8, 32)
SLACK_SHARE = 0.10
SLACK_MS = 0.003
GAP_MS = 0.001
"""A stream's kernels have a longer gap between them than a graph's."""


def several_launches(run: Run) -> None:
    """Compare times of calls that launch several kernels with those of a graph."""
    calls: dict[str, tuple[Launch, int]] = {}
    for name, values in (("small", {"R": 512, "C": 1024}), ("large", WIDE)):
        problem = SOFTMAX.problem(values)
        inputs = SOFTMAX.make_inputs(problem) if REAL else SOFTMAX.inputs_without_data(problem)
        one = SOFTMAX.build(problem, SOFTMAX.default(problem), inputs)
        calls |= {f"{count} {name}": (partial(_repeat, one, count), count) for count in LAUNCHES}
    if not REAL:
        run.check("launches", True, "compiled")
        return
    problem = GEMM.problem(M=64, N=1024, K=8192, dtype="fp16")
    split = foretune.Configuration({**GEMM.default(problem), "SPLIT_K": 4})
    calls["GEMM with split sums"] = GEMM.build(problem, split, GEMM.make_inputs(problem)), 2
    problem = GROUPED.problem({**EXPERTS, "dtype": "bf16"})
    if (library := GROUPED.library(problem, GROUPED.make_inputs(problem))) is not None:
        calls[library[0]] = library[1], EXPERTS["experts"]
    timer = warm_gpu_timer()
    for name, (launch, kernels) in calls.items():
        with run.checking(name):
            _compare_times(run, name, launch, kernels, timer)


def _repeat(launch: Launch, count: int) -> None:
    for _ in range(count):
        launch()


def _compare_times(run: Run, name: str, launch: Launch, kernels: int, timer: Any) -> None:
    from foretune.tune.triton.runtime import EventTimer

    _repeat(launch, 3)
    torch.cuda.synchronize()
    events = statistics.median(timer.sample_ms(launch, 1) for _ in range(30))
    online = []
    host_s = 0.0
    for _ in range(15):
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
    replay = statistics.median(timer.sample_ms(graph.replay, 1) for _ in range(30))
    slack = SLACK_SHARE * replay + SLACK_MS + GAP_MS * kernels
    run.check(
        name,
        abs(events - replay) <= slack and abs(online_ms - replay) <= slack,
        f"events {events:.4f} ms, online {online_ms:.4f}, graph {replay:.4f}; events / graph "
        f"{events / replay:.2f}; the host takes {1e3 * host_s:.3f} ms",
    )
