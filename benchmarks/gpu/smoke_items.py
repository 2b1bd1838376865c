"""The items of `smoke.py`: what only a GPU can show."""

import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from smoke_cases import (
    CASES,
    EXPERTS,
    GEMM,
    GROUPED,
    KERNELS,
    QUICK,
    SOFTMAX,
    TMA_CASE,
    WIDE,
    Call,
    Case,
    _tma,
)
from smoke_rows import REAL, Run, rows_of

import foretune
from foretune.collect.timing import gpu_timer
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
                what, m.ok and m.time_ms > LEAST_OF_ROOFLINE * least_ms,
                f"{m.status.value} {m.error} error {m.relative_error:.2g} (bar {limit:.2g}), "
                f"{m.time_ms:.4f} ms, roofline {least_ms:.4f}",
            )  # fmt: skip
    with run.checking("triton_probe"):
        _probe(run)


def _probe(run: Run) -> None:
    """Check the kernels that take the memory apart: a ring closes, and sums are right."""
    from foretune.collect.dissection import LINE_BYTES
    from foretune.collect.gpu_dissection import BLOCK, latency_ns, link, read_gbps
    from foretune.collect.kernels.triton_probe import chase, read

    kib, programs = 4096, 1056
    where = torch.device("cuda" if REAL else "cpu")
    memory = torch.zeros(kib * 256, dtype=torch.int32, device=where)
    position = link(memory, kib)
    before, lines = int(position), kib * 1024 // LINE_BYTES
    chase[(1,)](memory, position, lines)
    numbers = torch.arange(kib * 256, dtype=torch.int32, device=where) % 7
    sums = torch.zeros(programs * BLOCK, dtype=torch.int32, device=where)
    read[(programs,)](numbers, sums, kib * 256 // BLOCK, 3, BLOCK)
    read[(programs,)](memory, sums.clone(), 64, 64, BLOCK)
    chase[(1,)](memory, position.clone(), 4096)
    if not REAL:
        run.check("triton_probe", True, "compiled")
        return
    ok = int(position) == before and int(sums.sum()) == 3 * int(numbers.sum())
    timer = warm_gpu_timer()
    latency, rate = latency_ns(memory, kib, timer), read_gbps(memory, kib, programs, timer)
    run.check("triton_probe", ok, f"4 MiB: {latency:.0f} ns a load, {rate:,.0f} GB/s")


def warm_gpu_timer() -> Any:
    return gpu_timer(foretune.local_device("gpu"), warm_cache=True)


# ---- 2: the decorator -----------------------------------------------------------------------


def tuned_once(run: Run, case: Case) -> tuple[Call, Any, list[triton.Config], float, float]:
    """Return call, tuner, what it measured, and the seconds and the error of the first launch."""
    call, tuner, measured = case.tuned(store=run.store("tuned"))
    start = time.monotonic()
    call.launch(tuner)
    return call, tuner, measured, time.monotonic() - start, call.error()


def decorator(run: Run) -> None:
    """Tune with the decorator and with stock Triton; both must compute what torch does."""
    for name, case in CASES.items():
        with run.checking(name):
            call, tuner, measured, seconds, error = tuned_once(run, case)
            stock = case.decorated(triton.autotune, **QUICK)
            call.spoil()
            call.launch(stock)
            stock_error = call.error()
            times = {c: float(t[0]) for c, t in stock.configs_timings.items()}
            kept = min(times.values()) / times[tuner.best_config]
            run.check(
                name, max(error, stock_error) <= call.limit and kept > 0,
                f"{len(measured)} of {len(case.configs)} measured in {seconds:.2f} s, keeps "
                f"{kept:.3f} of stock's best {min(times.values()):.4f} ms; error {error:.2g}, "
                f"stock's {stock_error:.2g} (bar {call.limit:.2g})",
                chosen=str(tuner.best_config),
            )  # fmt: skip


def decorator_again(run: Run) -> None:
    """Find in the store what another process has chosen."""
    chosen = {row["what"]: row.get("chosen") for row in rows_of(run.out, "2")}
    for name, case in CASES.items():
        with run.checking(name):
            call, tuner, measured, seconds, error = tuned_once(run, case)
            same = chosen.get(name) == str(tuner.best_config)
            run.check(
                name, not measured and same and error <= call.limit,
                f"{len(measured)} measured, {'the same' if same else 'another'} choice, "
                f"{seconds:.2f} s, error {error:.2g}",
            )  # fmt: skip


# ---- 3: capture -----------------------------------------------------------------------------


@contextmanager
def capturing(run: Run) -> Iterator[Callable[[], None]]:
    """Capture the block into a graph; yield what replays it."""
    if REAL:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph.replay
        return
    run.driver.device_interface.capturing = True
    try:
        yield lambda: None
    finally:
        run.driver.device_interface.capturing = False


def capture(run: Run) -> None:
    """Call new kernels in a capture, replay it, and tune them afterwards."""
    for name in ("softmax", "elementwise", "gemm", "attention"):
        with run.checking(name):
            call, tuner, measured = CASES[name].tuned(store=run.store(f"capture-{name}"))
            with capturing(run) as replay:
                call.launch(tuner)
            during, errors = len(measured), []
            for again in (replay, replay, partial(call.launch, tuner)):
                call.spoil()
                again()
                errors.append(call.error())
            del replay, again  # a graph would else be destroyed while the next one is captured
            later = len(measured) - during
            run.check(
                name, during == 0 and later > 0 and max(errors) <= call.limit,
                f"{during} measured in the capture, {later} in the next call; errors of two "
                f"replays and of that call {', '.join(f'{e:.2g}' for e in errors)}",
            )  # fmt: skip


# ---- 4: descriptors -------------------------------------------------------------------------


def descriptors(run: Run) -> None:
    """Tune a kernel whose descriptors get their block shapes from a hook of the configuration."""
    with run.checking("gemm_tma"):
        check = 1e-2 if REAL else None  # there is nothing to compare
        _, tuner, measured = TMA_CASE.tuned(store=run.store("tma"))
        _, checked, with_check = TMA_CASE.tuned(store=False, check=check, budget=3)
        stock = TMA_CASE.decorated(triton.autotune, **QUICK)
        found = {}
        for name, one in (("tuned", tuner), ("again", tuner), ("checked", checked),
                          ("stock", stock)):  # fmt: skip
            call = _tma()  # with descriptors that no hook has seen
            call.launch(one)
            found[name] = call.error()
        errors = ", ".join(f"{name} {error:.2g}" for name, error in found.items())
        run.check(
            "gemm_tma", max(found.values()) <= call.limit and bool(measured),
            f"errors: {errors} (bar {call.limit:.2g}); {len(measured)} of "
            f"{len(TMA_CASE.configs)} measured, {len(with_check)} with check",
        )  # fmt: skip


# ---- 5: memory of the check -----------------------------------------------------------------

MOST_OF_OUTPUT = 3.0


def check_memory(run: Run) -> None:
    """Compare the most memory that tuning takes with and without a check of outputs."""
    with run.checking("memory"):
        peaks, errors = [], []
        for check in (None, 1e-2) if REAL else (None, None):
            bench = _events_bench if REAL else None
            call, tuner, _ = CASES["gemm"].tuned(store=False, check=check, budget=3, do_bench=bench)
            before = 0
            if REAL:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            call.spoil()
            call.launch(tuner)
            peaks.append(torch.cuda.max_memory_allocated() - before if REAL else 0)
            errors.append(call.error())
        size = call.output.numel() * call.output.element_size()
        multiple = (peaks[1] - peaks[0]) / size
        run.check(
            "memory", multiple <= MOST_OF_OUTPUT and max(errors) <= call.limit,
            f"check takes {multiple:.2f} times the output of {size / 2**20:.0f} MiB more; "
            f"{peaks[0] / 2**20:.1f} MiB without",
        )  # fmt: skip


def _events_bench(call: Callable[[], Any], quantiles: Any) -> list[float]:
    """Time ten calls without the buffer that Triton's own benchmarker allocates."""
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return [sorted(times)[round(q * 9)] for q in quantiles]


# ---- 6: another stream ----------------------------------------------------------------------


def other_stream(run: Run) -> None:
    """Tune in another stream, with an input that arrives late in it."""
    for name in ("softmax", "elementwise"):
        with run.checking(name):
            call, tuner, measured = CASES[name].tuned(store=False)
            if not REAL:
                call.launch(tuner)
                run.check(name, bool(measured), f"{len(measured)} measured")
                continue
            stream, x = torch.cuda.Stream(), call.args[0]
            late = x.clone()
            x.zero_()
            call.spoil()
            torch.cuda.synchronize()
            with _streams() as streams, torch.cuda.stream(stream):
                torch.cuda._sleep(60_000_000)
                x.copy_(late)
                call.launch(tuner)
            error, alone = call.error(), streams == {stream.cuda_stream}
            run.check(
                name, error <= call.limit and alone and bool(measured),
                f"{len(measured)} measured, error {error:.2g}, launched in "
                f"{'this stream only' if alone else sorted(streams)}",
            )  # fmt: skip


@contextmanager
def _streams() -> Iterator[set[int]]:
    """Collect the streams that this thread launches in."""
    driver, thread, seen = triton.runtime.driver.active, threading.get_ident(), set[int]()
    before = driver.get_current_stream

    def noted(device: Any) -> int:
        found = before(device)
        if threading.get_ident() == thread:
            seen.add(found)
        return found

    driver.get_current_stream = noted
    try:
        yield seen
    finally:
        driver.get_current_stream = before


# ---- 7: power -------------------------------------------------------------------------------


def power(run: Run) -> None:
    """Meter a GPU that was selected by its UUID, idle and busy."""
    import pynvml

    from foretune.collect.gpu_handles import visible_gpus
    from foretune.collect.power import find_meter, measure_power

    pynvml.nvmlInit()
    handle, visible = visible_gpus(pynvml)[0], os.environ.get("CUDA_VISIBLE_DEVICES", "")
    same = pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    meter = find_meter("gpu", 0)
    assert meter is not None, "no meter"
    torch.cuda.synchronize()
    time.sleep(1.0)
    with meter.window() as idle:
        time.sleep(1.5)
    a, b = torch.randn(2, 4096, 4096, device="cuda").half()
    launch = partial(torch.matmul, a, b, out=torch.empty_like(a))
    timer = warm_gpu_timer()
    launch()
    time_ms = statistics.median(timer.sample_ms(launch, 1) for _ in range(10))
    watts, millijoules = measure_power(meter, launch, time_ms, timer.wait, torch.cuda)
    limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000
    run.check(
        "power", same and visible.startswith("GPU-") and idle.power_w + 30 < watts < 1.1 * limit,
        f"{meter.name}: idle {idle.power_w:.0f} W, busy {watts:.0f} W (limit {limit:.0f}), "
        f"{millijoules:.1f} mJ a product of {time_ms:.3f} ms; "
        f"{'the same' if same else 'ANOTHER'} GPU as torch's",
    )  # fmt: skip


# ---- 8: torch.compile -----------------------------------------------------------------------


def inductor(run: Run) -> None:
    """Compile a layer with the patch: right, and with few choices timed."""
    import torch._inductor.config as settings

    from foretune.tune.triton.inductor import InductorChooser

    settings.max_autotune_gemm_backends = "TRITON,ATEN"
    settings.benchmark_epilogue_fusion = False
    settings.fx_graph_cache = False
    lists, shorten = list[tuple[int, int]](), InductorChooser.shorten

    def noted(self: InductorChooser, choices: list[Any]) -> list[Any]:
        few = shorten(self, choices)
        lists.append((len(choices), len(few)))
        return few

    InductorChooser.shorten = noted  # type: ignore[method-assign]
    foretune.patch_inductor(store=run.store("inductor"))
    layer = torch.nn.Linear(1024, 2048, device="cuda", dtype=torch.float16)
    x = torch.randn(512, 1024, device="cuda", dtype=torch.float16)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(layer(x), approximate="tanh")

    start = time.monotonic()
    with torch.no_grad():
        output = torch.compile(forward, mode="max-autotune")(x).clone()
        seconds = time.monotonic() - start
        linear = x.double() @ layer.weight.double().t() + layer.bias.double()
        error = GEMM.relative_error(output, torch.nn.functional.gelu(linear, approximate="tanh"))
    every, few = (sum(counts) for counts in zip(*lists, strict=True)) if lists else (0, 0)
    run.check(
        "torch.compile", error <= 5e-3 and 0 < few < every,
        f"{few} of {every} choices timed in {len(lists)} operations, {seconds:.1f} s, "
        f"error {error:.2g}",
    )  # fmt: skip


# ---- 9: calls of several launches -----------------------------------------------------------

LAUNCHES = (1, 2, 4, 8, 32)
SLACK_SHARE, SLACK_MS, GAP_MS = 0.10, 0.003, 0.001
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
    online, host_s = [], 0.0
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
        name, abs(events - replay) <= slack and abs(online_ms - replay) <= slack,
        f"events {events:.4f} ms, online {online_ms:.4f}, graph {replay:.4f}; events / graph "
        f"{events / replay:.2f}; the host takes {1e3 * host_s:.3f} ms",
    )  # fmt: skip


# ---- 10: what is known of the device --------------------------------------------------------


def described(run: Run) -> None:
    """Compare the device's descriptor with what torch says of it; run ``foretune doctor``."""
    from foretune.device import find_device_or_none

    with run.checking("descriptor"):
        device = foretune.local_device("gpu")
        has = torch.cuda.get_device_properties(0)
        pairs = {
            "cores": (device.specs.get("cores", 0), has.multi_processor_count),
            "l2_kib": (device.specs.get("l2_kib", 0), has.L2_cache_size / 1024),
            "memory_gib": (device.specs.get("memory_gib", 0), has.total_memory / 2**30),
        }
        ok = device.name == has.name and device.architecture == f"sm_{has.major}{has.minor}"
        ok = ok and all(abs(ours / theirs - 1) < 0.04 for ours, theirs in pairs.values())
        known = find_device_or_none(has.name)
        differences = ", ".join(f"{n} {a:g} (torch {b:g})" for n, (a, b) in pairs.items())
        run.check(
            "descriptor", ok and known is not None,
            f"{device.name}, {device.architecture}; {differences}; "
            f"{'known' if known else 'UNKNOWN'} to the table",
        )  # fmt: skip
    with run.checking("doctor"):
        command = [sys.executable, "-m", "foretune", "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
        names = [d["name"] for d in json.loads(done.stdout)["devices"]]
        run.check("doctor", torch.cuda.get_device_name() in names, f"lists {', '.join(names)}")


# ---- 11: modes ------------------------------------------------------------------------------

MOST_CALLS, MOST_ONLINE_S = 3000, 10.0


def modes(run: Run) -> None:
    """Tune softmax from replays of graphs, from real calls, and for energy."""
    options: dict[str, dict[str, Any]] = {
        "graph": {"mode": "graph"},
        "online": {"mode": "online"},
        "energy": {"objective": "energy", "budget": 3},
    }
    for name, given in options.items():
        if not REAL and name != "online":  # graphs and meters are not there
            continue
        with run.checking(name):
            call, tuner, _ = CASES["softmax"].tuned(store=run.store(f"mode-{name}"), **given)
            start, calls, errors = time.monotonic(), 0, []
            while calls < MOST_CALLS and time.monotonic() - start < MOST_ONLINE_S:
                call.launch(tuner)
                calls += 1
                if calls in (1, 5, 20):
                    errors.append(call.error())
                    call.spoil()
                if tuner.cache:
                    break
                time.sleep(0.002)
            call.launch(tuner)
            errors.append(call.error())
            store = foretune.Store(run.store(f"mode-{name}"))
            watts = [m.power_w for s in store.subjects() for m in store.measurements(s)]
            metered = name != "energy" or not any(map(math.isnan, watts))
            run.check(
                name, bool(tuner.cache) and max(errors) <= call.limit and metered,
                f"{'chosen' if tuner.cache else 'NOT CHOSEN'} after {calls} calls, "
                f"{time.monotonic() - start:.2f} s, {len(tuner.configs_timings)} measured: "
                f"{tuner.best_config}; error {max(errors):.2g}; "
                f"watts {', '.join(f'{w:.0f}' for w in watts) if name == 'energy' else '–'}",
            )  # fmt: skip


# ---- 12: CUDA sources -----------------------------------------------------------------------

ADD = """
extern "C" __global__ void add(float *c, const float *a, const float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


def cuda_source(run: Run) -> None:
    """Tune a vector addition in CUDA C++, and run one configuration in another process."""
    import numpy as np

    from foretune.collect import IsolatedRunner
    from foretune.collect.wrapped.source import LaunchShape, Source
    from foretune.collect.wrapped.source_kernel import SourceKernel

    n = 4_000_000
    a, b = np.random.default_rng(0).random((2, n), dtype=np.float32)
    arguments, knobs = [np.zeros_like(a), a, b, np.int32(n)], {"block_size_x": [32, 64, 128, 256]}
    answer = [a + b, None, None, None]
    with run.checking("tune_kernel"):
        best = foretune.tune_kernel(
            "add", ADD, n, arguments, knobs, lang="CUDA", answer=answer,
            strategy="brute_force", isolated=False, verify_s=0.05, quiet=True,
        )  # fmt: skip
        rows = best.to_frame()
        ok = int((rows["status"] == "ok").sum())
        run.check(
            "tune_kernel", ok >= len(knobs["block_size_x"]) and ok == len(rows),
            f"{ok} of {len(rows)} right, best {dict(best.config)} {best.time_ms:.4f} ms "
            f"(moves {12 * n / best.time_ms / 1e6:,.0f} GB/s)",
        )  # fmt: skip
    with run.checking("another process"):
        kernel = SourceKernel(
            Source("add", ADD, "CUDA", ".cu", {}), LaunchShape(n, (None, None, None), ()),
            arguments, knobs, answer=answer, device_kind="gpu",
        )  # fmt: skip
        config = foretune.Configuration(block_size_x=128)
        with IsolatedRunner(foretune.local_device("gpu"), limit_s=25.0) as runner:
            (m,) = runner.run(kernel, kernel.problem(), [config])
        run.check(
            "another process", m.ok and not math.isnan(m.power_w),
            f"{m.status.value} {m.error} {m.time_ms:.4f} ms, {m.power_w:.0f} W",
        )  # fmt: skip


# ---- all ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """Something to check: the most seconds it may take, and whether a part of it is replayed."""

    title: str
    function: Callable[[Run], None]
    limit_s: float
    replayed: bool = True


ITEMS = {
    "1": Item("every Triton kernel", kernels, 40),
    "2": Item("the decorator, and stock Triton", decorator, 40),
    "2b": Item("a second process finds the choices", decorator_again, 30),
    "3": Item("first call in a graph capture", capture, 30),
    "4": Item("descriptors set by a hook", descriptors, 30),
    "5": Item("memory that check= takes", check_memory, 30),
    "6": Item("another stream", other_stream, 30),
    "7": Item("power of a GPU given by UUID", power, 15, False),
    "8": Item("torch.compile, patched", inductor, 40, False),
    "9": Item("times of calls with several launches", several_launches, 20),
    "10": Item("descriptor and doctor", described, 40, False),
    "11": Item("modes graph, online; energy", modes, 30),
    "12": Item("a CUDA source", cuda_source, 90, False),
}
