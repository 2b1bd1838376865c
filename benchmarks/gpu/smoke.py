"""Does all that only a GPU can show work? Right or wrong, item by item, in two minutes.

    PYTHONPATH=src python benchmarks/gpu/smoke.py --out smoke.jsonl
    PYTHONPATH=src python benchmarks/gpu/smoke.py --replay        # no GPU: runs through, compiles

Every item runs in a process of its own, with a limit: none stops another one. All processes start
at once and wait for their turn; what is timed runs alone. Rows go to ``--out`` as they are made.

With ``--replay`` nothing is launched and nothing is compared, but Triton really compiles for
``--device``. With TRITON_CACHE_DIR set, a GPU of that kind then compiles nothing (`torch.compile`
and CUDA sources aside).
"""

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

import torch
import triton
import triton.language as tl
import triton_attention
import triton_attention_tma
import triton_gemm_tma
import triton_grouped_gemm
import triton_norm
import triton_softmax
from gpu_cases import (
    _attention_arguments,
    _gemm_arguments,
    _norm_arguments,
    _softmax_arguments,
)
from machine import markdown
from triton.tools.tensor_descriptor import TensorDescriptor

import foretune
from foretune.collect.kernels import triton_gemm, triton_quantized_gemm
from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.errors import ForetuneWarning, describe_error
from foretune.kernel import Launch

HERE = Path(__file__).resolve()
READY_S = 30.0
"""What is waited for processes to import everything and to reach the device."""
GRACE_S = 10.0
"""What an item that has begun may take after the time is over."""
LOST = 3
"""How a process ends whose device a launch broke."""


# ---- rows -----------------------------------------------------------------------------------


@dataclass
class Run:
    """What an item needs.

    Attributes:
        item: its number.
        out: the file of rows.
        folder: of this run; stores of tuned results are in it.
        driver: what stands for the device, or None.
    """

    item: str
    out: Path
    folder: Path
    driver: Any = None
    start: float = field(default_factory=time.monotonic)

    @property
    def replayed(self) -> bool:
        """Whether nothing really runs."""
        return self.driver is not None

    def check(self, what: str, ok: bool, detail: str, **values: Any) -> None:
        """Write down whether something works."""
        seconds = round(time.monotonic() - self.start, 2)
        row = {"item": self.item, "what": what, "ok": bool(ok), "detail": detail, **values}
        append(self.out, {**row, "replayed": self.replayed, "at_s": seconds})

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Turn an error in the block into a row, unless the device is lost."""
        try:
            yield
        except Exception as e:
            trace = traceback.format_exc()
            self.check(what, False, describe_error(e)[:300], trace=trace[-3000:])
            print(trace, flush=True)
            self.synchronize(lost=True)

    def synchronize(self, lost: bool = False) -> None:
        """Wait for the device; with ``lost``, end this process if it does not answer."""
        if self.replayed:
            return
        try:
            torch.cuda.synchronize()
        except Exception:
            if lost:
                os._exit(LOST)
            raise

    def store(self, name: str) -> Path:
        """Return the path of a tuning store."""
        return self.folder / f"{name}.db"


def append(out: Path, row: Mapping[str, Any]) -> None:
    """Append a row; several processes do."""
    line = json.dumps(row, default=str) + "\n"
    with out.open("a", encoding="utf-8") as file:
        file.write(line)


def rows_of(out: Path, item: str) -> list[dict[str, Any]]:
    """Return the rows of an item."""
    if not out.exists():
        return []
    rows = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["item"] == item]


# ---- 1: kernels -----------------------------------------------------------------------------

GEMM = triton_gemm.TritonGemm()
QUANTIZED = triton_quantized_gemm.TritonQuantizedGemm()
TMA = triton_gemm_tma.TritonGemmTma()
GROUPED = triton_grouped_gemm.TritonGroupedGemm()
ATTENTION = triton_attention.TritonAttention()
ATTENTION_TMA = triton_attention_tma.TritonAttentionTma()
SOFTMAX, NORM = triton_softmax.TritonSoftmax(), triton_norm.TritonNorm()

_SQUARE = {"M": 2048, "N": 2048, "K": 2048}
_ODD = {"M": 1000, "N": 1500, "K": 700}
_HEADS = {"batch": 1, "seq_len": 2048, "heads": 8, "kv_heads": 2, "head_dim": 128, "dtype": "bf16"}
_SHORT = {"seq_len": 1000, "heads": 8, "head_dim": 64, "dtype": "fp16", "mask": "none"}
_EXPERTS = {"tokens": 512, "experts": 16, "top_k": 2, "N": 1024, "K": 1024}
_WEIGHTS = {"M": 64, "N": 4096, "K": 4096}

KERNELS: list[tuple[TritonKernel, dict[str, Any], dict[str, Any]]] = [
    *((GEMM, {**_SQUARE, "dtype": dtype}, {}) for dtype in ("fp16", "bf16", "fp8", "int8")),
    *((GEMM, {**_ODD, "dtype": dtype, "layout": "nn"}, {}) for dtype in ("fp16", "int8")),
    (GEMM, {**_SQUARE, "dtype": "bf16", "layout": "tn"}, {"PERSISTENT": True}),
    (GEMM, {"M": 64, "N": 1024, "K": 8192, "dtype": "fp16"}, {"SPLIT_K": 4}),
    (QUANTIZED, {**_WEIGHTS, "bits": 4, "dtype": "fp16"}, {}),
    (QUANTIZED, {**_WEIGHTS, "bits": 8, "dtype": "bf16", "zeros": "group"}, {"ORDER": "k"}),
    (QUANTIZED, {"M": 19, "N": 830, "K": 3000, "group": 32, "zeros": "group"}, {"SPLIT_K": 4}),
    *((TMA, {**_SQUARE, "dtype": dtype}, {}) for dtype in ("fp16", "bf16", "fp8")),
    (TMA, {"M": 1000, "N": 1504, "K": 720, "dtype": "fp16"}, {}),
    (TMA, {**_SQUARE, "dtype": "fp16"}, {"PERSISTENT": True}),
    (GROUPED, {**_EXPERTS, "dtype": "bf16"}, {}),
    (GROUPED, {**_EXPERTS, "dtype": "fp16", "skew": 1.0}, {"PERSISTENT": True}),
    (GROUPED, {**_EXPERTS, "dtype": "fp8", "skew": 1.0}, {}),
    *((k, p, {}) for k in (ATTENTION, ATTENTION_TMA) for p in (_HEADS, _SHORT)),
    (SOFTMAX, {"R": 4096, "C": 4096, "dtype": "fp16"}, {}),
    (SOFTMAX, {"R": 1000, "C": 5000, "dtype": "bf16"}, {}),
    (SOFTMAX, {"R": 64, "C": 131072, "dtype": "fp32"}, {}),
    (NORM, {"R": 4096, "C": 4096, "dtype": "fp16", "norm": "rms"}, {}),
    (NORM, {"R": 1000, "C": 5000, "dtype": "bf16", "norm": "layer"}, {}),
    (NORM, {"R": 64, "C": 131072, "dtype": "fp32", "norm": "layer"}, {}),
]
"""Kernels, problems, and what differs from the default configuration."""
LEAST_OF_ROOFLINE = 0.4
"""A launch that is faster was not timed: what it writes may stay in the cache, no more."""


def kernels(run: Run) -> None:
    """Measure kernels as the stages do; skip what an earlier process of this run has done."""
    done = {row["what"] for row in rows_of(run.out, run.item)}
    bench = None if run.replayed else _bench()
    for kernel, values, changed in KERNELS:
        knobs = f" {changed}" if changed else ""
        what = f"{kernel.name} {', '.join(f'{k}={v}' for k, v in values.items())}{knobs}"
        if what in done:
            continue
        with run.checking(what):
            problem = kernel.problem(values)
            config = foretune.Configuration({**kernel.default(problem), **changed})
            if bench is None:
                kernel.build(problem, config, kernel.inputs_without_data(problem))
                run.check(what, True, "compiled")
                continue
            m = bench.measure(kernel, problem, config)
            if bench.device_lost:
                run.check(what, False, f"it broke the device: {m.error}")
                os._exit(LOST)
            limit = kernel.error_limit(problem, config)
            least_ms = float(bench.device.roofline_ms(kernel.cost(problem, config)))
            prepared = bench.prepared(kernel, problem)
            library, library_ms = "", math.nan
            if (call := bench.library(kernel, problem, prepared.inputs)) is not None:
                library, library_ms = call[0], _median_ms(bench, kernel, problem, call[1])
            ok = m.ok and m.time_ms > LEAST_OF_ROOFLINE * least_ms
            run.check(
                what, ok,
                f"{m.status.value} {m.error} error {m.relative_error:.2g} (bar {limit:.2g}), "
                f"{m.time_ms:.4f} ms, roofline {least_ms:.4f}, {library} {library_ms:.4f} ms",
                error=m.relative_error, limit=limit, time_ms=m.time_ms, roofline_ms=least_ms,
                library=library, library_ms=library_ms, samples=len(m.time_ms_samples),
            )  # fmt: skip
    with run.checking("triton_probe"):
        _probe(run)


def _bench() -> Any:
    from bench import Bench

    return Bench()


def _median_ms(bench: Any, kernel: Any, problem: Any, launch: Launch) -> float:
    from foretune.collect.timing import time_launch, timer_for

    timer = timer_for(kernel, problem, bench.device)
    return float(statistics.median(time_launch(launch, bench.timing, timer=timer)))


def _probe(run: Run) -> None:
    """Check the kernels that take the memory apart: a ring closes, and sums are right."""
    from foretune.collect.dissection import LINE_BYTES
    from foretune.collect.gpu_dissection import BLOCK, latency_ns, link, read_gbps
    from foretune.collect.kernels.triton_probe import chase, read
    from foretune.collect.timing import gpu_timer

    kib, programs = 4096, 1056
    where = torch.device("cpu" if run.replayed else "cuda")
    memory = torch.zeros(kib * 256, dtype=torch.int32, device=where)
    position = link(memory, kib)
    before, lines = int(position), kib * 1024 // LINE_BYTES
    chase[(1,)](memory, position, lines)
    numbers = torch.arange(kib * 256, dtype=torch.int32, device=where) % 7
    sums = torch.zeros(programs * BLOCK, dtype=torch.int32, device=where)
    read[(programs,)](numbers, sums, kib * 256 // BLOCK, 3, BLOCK)
    read[(programs,)](memory, sums.clone(), 64, 64, BLOCK)
    chase[(1,)](memory, position.clone(), 4096)
    if run.replayed:
        run.check("triton_probe", True, "compiled")
        return
    ok = int(position) == before and int(sums.sum()) == 3 * int(numbers.sum())
    timer = gpu_timer(foretune.local_device("gpu"), warm_cache=True)
    latency, rate = latency_ns(memory, kib, timer), read_gbps(memory, kib, programs, timer)
    detail = f"4 MiB: {latency:.0f} ns a load, {rate:,.0f} GB/s"
    run.check("triton_probe", ok, detail, latency_ns=latency, read_gbps=rate)


# ---- what is tuned --------------------------------------------------------------------------


@triton.jit
def gelu_add(x, y, out, n, BLOCK: tl.constexpr):
    """Store ``gelu(x) + y``, with the approximation by tanh."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    inner = 1.5957691216057308 * (v + 0.044715 * v * v * v)
    tl.store(out + i, v / (1.0 + tl.exp(-inner)) + tl.load(y + i, mask=i < n), mask=i < n)


@dataclass(frozen=True)
class Call:
    """A call of a kernel, where its result is, and what is right.

    Attributes:
        args: positional arguments.
        named: others.
        grid: of the launch.
        output: what it writes.
        expected: computes what is right from the arguments; not where nothing runs.
        limit: relative error allowed.
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    grid: Any
    output: torch.Tensor
    expected: Callable[[], torch.Tensor]
    limit: float

    def launch(self, tuner: Any) -> None:
        """Call the decorated kernel."""
        tuner[self.grid](*self.args, **self.named)

    def spoil(self) -> None:
        """Overwrite the output, so that nothing old can pass."""
        self.output.fill_(3.0)

    def error(self, run: Run, right: torch.Tensor | None) -> float:
        """Return the relative error; zero where nothing runs."""
        if run.replayed:
            return 0.0
        torch.cuda.synchronize()
        return GEMM.relative_error(self.output, right)

    def right(self, run: Run) -> torch.Tensor | None:
        """Return what is right, once and for all; None where nothing runs."""
        return None if run.replayed else self.expected()


@dataclass(frozen=True)
class Case:
    """A kernel to tune.

    Attributes:
        name: of the kernel.
        function: the plain ``@triton.jit`` function.
        configs: what autotuners choose from.
        key: names of the arguments that make a problem.
        make: makes a call.
        heuristics: constants that follow from the others, or None.
    """

    name: str
    function: Any
    configs: list[triton.Config]
    key: list[str]
    make: Callable[[], Call]
    heuristics: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None

    def decorated(self, autotune: Callable[..., Any], **options: Any) -> Any:
        """Return the kernel under an autotuner, as if it had never been called."""
        fn = triton.jit(self.function.fn)
        if self.heuristics:
            fn = triton.heuristics(self.heuristics)(fn)
        return autotune(self.configs, self.key, **options)(fn)


def _of_kernel(kernel: TritonKernel, values: dict[str, Any], arguments: Any, out: int) -> Call:
    problem = kernel.problem(values)
    real = torch.cuda.is_available()
    inputs = kernel.make_inputs(problem) if real else kernel.inputs_without_data(problem)
    args, named, grid = arguments(problem, inputs)
    limit = kernel.error_limit(problem, kernel.default(problem))
    return Call(args, named, grid, args[out], partial(kernel.reference, inputs), limit)


ELEMENTS = 5_000_000


def _elementwise() -> Call:
    where = "cuda" if torch.cuda.is_available() else "meta"
    x, y = torch.randn(2, ELEMENTS, device=where)
    out = torch.empty_like(x)

    def expected() -> torch.Tensor:
        return torch.nn.functional.gelu(x.double(), approximate="tanh") + y.double()

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(ELEMENTS, meta["BLOCK"]),)

    return Call((x, y, out, ELEMENTS), {}, grid, out, expected, 1e-5)


def _tma() -> Call:
    """Return a call with descriptors whose block shapes are set by the configurations' hook."""
    where, n = "cuda" if torch.cuda.is_available() else "meta", 2048
    a, b = torch.randn(2, n, n, device=where).half()
    c = torch.empty_like(a)
    described = [TensorDescriptor.from_tensor(t, [1, 1]) for t in (a, b, c)]

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    limit = TMA.error_limit(TMA.problem(_SQUARE), foretune.Configuration())
    return Call((*described, n, n, n), {}, grid, c, lambda: a.float() @ b.float().t(), limit)


def set_blocks(arguments: dict[str, Any]) -> None:
    """Set the block shapes of the descriptors."""
    m, n, k = (arguments[f"BLOCK_{axis}"] for axis in "MNK")
    for name, block in (("a", [m, k]), ("b", [n, k]), ("c", [m, n])):
        arguments[name].block_shape = block


def _config(warps: int, stages: int, hook: Any = None, **values: Any) -> triton.Config:
    return triton.Config(values, num_warps=warps, num_stages=stages, pre_hook=hook)


_TILES = [(128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
          (128, 256, 64, 8, 3), (64, 64, 64, 4, 4), (64, 256, 32, 4, 4),
          (32, 64, 64, 2, 3)]  # fmt: skip
_KEYS = [(128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2),
         (64, 32, 4, 3), (128, 32, 4, 3), (64, 128, 4, 2)]  # fmt: skip
_ROWS = [(1, 1, 4), (1, 1, 8), (1, 1, 16), (2, 1, 8), (4, 1, 8), (4, 1, 16), (1, 2, 8), (2, 2, 8)]
_BLOCKS = [(256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16)]

_BLOCK_OF_ROW = {"BLOCK": lambda args: triton.next_power_of_2(args["columns"])}
_LIST_OF_ROWS = [_config(w, s, ROWS=r, STAGES=s) for r, s, w in _ROWS]
_WIDE = {"R": 4096, "C": 4096, "dtype": "fp16"}

CASES = {
    "gemm": Case(
        "gemm", triton_gemm._gemm,
        [_config(w, s, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, SPLIT_K=1, PERSISTENT=False)
         for m, n, k, w, s in _TILES],
        ["M", "N", "K"],
        partial(_of_kernel, GEMM, {"M": 4096, "N": 4096, "K": 2048}, _gemm_arguments, 2),
        {"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0},
    ),
    "attention": Case(
        "attention", triton_attention._attention,
        [_config(w, s, BLOCK_M=m, BLOCK_N=n) for m, n, w, s in _KEYS],
        ["heads", "length"], partial(_of_kernel, ATTENTION, _HEADS, _attention_arguments, 3),
    ),
    "softmax": Case(
        "softmax", triton_softmax._whole_rows, _LIST_OF_ROWS, ["rows", "columns"],
        partial(_of_kernel, SOFTMAX, _WIDE, _softmax_arguments, 1), _BLOCK_OF_ROW,
    ),
    "norm": Case(
        "norm", triton_norm._whole_rows, _LIST_OF_ROWS, ["rows", "columns"],
        partial(_of_kernel, NORM, _WIDE, _norm_arguments, 3), _BLOCK_OF_ROW,
    ),
    "elementwise": Case(
        "elementwise", gelu_add, [_config(w, 3, BLOCK=b) for b, w in _BLOCKS], ["n"], _elementwise,
    ),
}  # fmt: skip
TMA_CASE = Case(
    "gemm_tma", triton_gemm_tma._gemm_tma,
    [_config(w, s, set_blocks, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, WARP_SPECIALIZE=False)
     for m, n, k, w, s in _TILES if m >= 64],
    ["M", "N", "K"], _tma,
)  # fmt: skip


def counted(tuner: Any) -> list[triton.Config]:
    """Return a list that gets every configuration that this tuner measures from now on."""
    seen, bench = list[triton.Config](), tuner._bench

    def noted(*args: Any, config: triton.Config, **named: Any) -> Any:
        seen.append(config)
        return bench(*args, config=config, **named)

    tuner._bench = noted
    return seen


def quick_bench(call: Callable[[], Any], quantiles: Any = (0.5, 0.2, 0.8)) -> Any:
    """Time a call for stock Triton, in a fifth of its time."""
    driver = triton.runtime.driver.active
    if not hasattr(driver, "launches"):
        return triton.testing.do_bench(call, warmup=5, rep=20, quantiles=quantiles)
    return driver.do_bench(call, quantiles=quantiles)


# ---- 2: the decorator -----------------------------------------------------------------------


def decorator(run: Run) -> None:
    """Tune with the decorator and with stock Triton; both must compute what torch does."""
    for case in CASES.values():
        with run.checking(case.name):
            call = case.make()
            right = call.right(run)
            tuner = case.decorated(foretune.autotune, store=run.store("tuned"))
            measured = counted(tuner)
            start = time.monotonic()
            call.launch(tuner)
            seconds, error = time.monotonic() - start, call.error(run, right)
            stock = case.decorated(triton.autotune, do_bench=quick_bench)
            call.spoil()
            start = time.monotonic()
            call.launch(stock)
            stock_seconds, stock_error = time.monotonic() - start, call.error(run, right)
            times = {c: float(t[0]) for c, t in stock.configs_timings.items()}
            kept = min(times.values()) / times[tuner.best_config]
            ours = tuner.configs_timings
            run.check(
                case.name, error <= call.limit and stock_error <= call.limit and kept > 0,
                f"{len(measured)} of {len(case.configs)} measured in {seconds:.2f} s (stock "
                f"{stock_seconds:.2f}), keeps {kept:.3f} of stock's best {min(times.values()):.4f} "
                f"ms; error {error:.2g}, stock's {stock_error:.2g} (bar {call.limit:.2g})",
                measured=len(measured), seconds=seconds, stock_seconds=stock_seconds, kept=kept,
                error=error, stock_error=stock_error, limit=call.limit,
                chosen=str(tuner.best_config),
                ours_ms={str(c): float(t[0]) for c, t in ours.items()},
                stock_ms={str(c): t for c, t in times.items()},
            )  # fmt: skip
    run.store("tuned").with_suffix(".done").touch()


def decorator_again(run: Run) -> None:
    """Find in the store what another process has chosen."""
    if not run.store("tuned").with_suffix(".done").exists():
        run.check("store", False, "item 2 has not come to its end")
    for case in CASES.values():
        with run.checking(case.name):
            call = case.make()
            tuner = case.decorated(foretune.autotune, store=run.store("tuned"))
            measured = counted(tuner)
            right = call.right(run)
            start = time.monotonic()
            call.launch(tuner)
            seconds, error = time.monotonic() - start, call.error(run, right)
            before = [r for r in rows_of(run.out, "2") if r["what"] == case.name]
            same = bool(before) and before[-1].get("chosen") == str(tuner.best_config)
            run.check(
                case.name, not measured and same and error <= call.limit,
                f"{len(measured)} measured, {'the same' if same else 'another'} choice, "
                f"{seconds:.2f} s, error {error:.2g}",
                measured=len(measured), seconds=seconds, error=error,
            )  # fmt: skip


# ---- 3: capture -----------------------------------------------------------------------------


@contextmanager
def capturing(run: Run) -> Iterator[Callable[[], None]]:
    """Capture the block into a graph; yield what replays it."""
    if run.replayed:
        run.driver.device_interface.capturing = True
        try:
            yield lambda: None
        finally:
            run.driver.device_interface.capturing = False
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        yield graph.replay


def capture(run: Run) -> None:
    """Call new kernels in a capture, replay it, and tune them afterwards."""
    for name in ("softmax", "elementwise", "gemm", "attention"):
        case = CASES[name]
        with run.checking(name):
            call = case.make()
            right = call.right(run)
            tuner = case.decorated(foretune.autotune, store=run.store(f"capture-{name}"))
            measured = counted(tuner)
            with capturing(run) as replay:
                call.launch(tuner)
            during, errors = len(measured), []
            for _ in range(2):
                call.spoil()
                replay()
                errors.append(call.error(run, right))
            call.spoil()
            call.launch(tuner)
            errors.append(call.error(run, right))
            del replay  # its graph would else be destroyed while the next one is captured
            later = len(measured) - during
            run.check(
                name, during == 0 and later > 0 and max(errors) <= call.limit,
                f"{during} measured in the capture, {later} in the next call; errors of two "
                f"replays and of that call {', '.join(f'{e:.2g}' for e in errors)}",
                during=during, later=later, errors=errors,
            )  # fmt: skip


# ---- 4: descriptors -------------------------------------------------------------------------


def descriptors(run: Run) -> None:
    """Tune a kernel whose descriptors get their block shapes from a hook of the configuration."""
    with run.checking("gemm_tma"):
        stock = TMA_CASE.decorated(triton.autotune, do_bench=quick_bench)
        tuner = TMA_CASE.decorated(foretune.autotune, store=run.store("tma"))
        check = None if run.replayed else 1e-2  # there is nothing to compare
        checked = TMA_CASE.decorated(foretune.autotune, store=False, check=check, budget=3)
        found = {}
        counts = {"tuned": counted(tuner), "checked": counted(checked)}
        for name, one in (("tuned", tuner), ("again", tuner), ("checked", checked),
                          ("stock", stock)):  # fmt: skip
            call = _tma()  # with descriptors that no hook has seen
            right = call.right(run)
            call.launch(one)
            found[name] = call.error(run, right)
        ok = max(found.values()) <= call.limit and len(counts["tuned"]) > 0
        errors = ", ".join(f"{name} {error:.2g}" for name, error in found.items())
        run.check(
            "gemm_tma", ok,
            f"errors: {errors} (bar {call.limit:.2g}); {len(counts['tuned'])} of "
            f"{len(TMA_CASE.configs)} measured, {len(counts['checked'])} with check",
            errors=found, measured=len(counts["tuned"]),
            statuses=[f"{r.config}: {r.error}" for r in tuner.rank(*_tma().args)
                      if getattr(r, "error", "")],
        )  # fmt: skip


# ---- 5: memory of the check -----------------------------------------------------------------

MOST_OF_OUTPUT = 3.0


def check_memory(run: Run) -> None:
    """Compare the most memory that tuning takes with and without a check of outputs."""
    case = CASES["gemm"]
    with run.checking("memory"):
        call = case.make()
        right, peaks, errors = call.right(run), {}, {}
        for checked, check in ((False, None), (True, None if run.replayed else 1e-2)):
            tuner = case.decorated(
                foretune.autotune, store=False, check=check, budget=3, do_bench=_events_bench
            )
            if not run.replayed:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            call.spoil()
            call.launch(tuner)
            peaks[checked] = 0 if run.replayed else torch.cuda.max_memory_allocated() - before
            errors[checked] = call.error(run, right)
        size = call.output.numel() * call.output.element_size()
        multiple = (peaks[True] - peaks[False]) / size
        run.check(
            "memory", multiple <= MOST_OF_OUTPUT and max(errors.values()) <= call.limit,
            f"check takes {multiple:.2f} times the output of {size / 2**20:.0f} MiB more; "
            f"{peaks[False] / 2**20:.1f} MiB without",
            multiple=multiple, output_bytes=size, peak_with=peaks[True], peak_without=peaks[False],
        )  # fmt: skip


def _events_bench(call: Callable[[], Any], quantiles: Any = (0.5, 0.2, 0.8)) -> list[float]:
    """Time ten calls without the buffer that Triton's own benchmarker allocates."""
    if not torch.cuda.is_available():
        return list(triton.runtime.driver.active.do_bench(call, quantiles=quantiles))
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
        case = CASES[name]
        with run.checking(name):
            call = case.make()
            right = call.right(run)
            tuner = case.decorated(foretune.autotune, store=False)
            measured, streams = counted(tuner), set[int]()
            if run.replayed:
                call.launch(tuner)
                run.check(name, bool(measured), f"{len(measured)} measured")
                continue
            with _streams(streams):
                stream, x = torch.cuda.Stream(), call.args[0]
                late = x.clone()
                x.zero_()
                call.spoil()
                torch.cuda.synchronize()
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(60_000_000)
                    x.copy_(late)
                    call.launch(tuner)
                stream.synchronize()
            error = call.error(run, right)
            run.check(
                name, error <= call.limit and streams == {stream.cuda_stream} and bool(measured),
                f"{len(measured)} measured, error {error:.2g}, launched in "
                f"{'this stream only' if streams == {stream.cuda_stream} else sorted(streams)}",
                error=error, streams=sorted(streams), stream=stream.cuda_stream,
            )  # fmt: skip


@contextmanager
def _streams(seen: set[int]) -> Iterator[None]:
    """Collect the streams that this thread launches in."""
    driver, thread = triton.runtime.driver.active, threading.get_ident()
    before = driver.get_current_stream

    def noted(device: Any) -> int:
        found = before(device)
        if threading.get_ident() == thread:
            seen.add(found)
        return found

    driver.get_current_stream = noted
    try:
        yield
    finally:
        driver.get_current_stream = before


# ---- 7: power -------------------------------------------------------------------------------


def power(run: Run) -> None:
    """Meter a GPU that was selected by its UUID, idle and busy."""
    if run.replayed:
        run.check("power", True, "not replayed")
        return
    import pynvml

    from foretune.collect.gpu_handles import visible_gpus
    from foretune.collect.power import explain_missing_meter, find_meter, measure_power

    with run.checking("power"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        pynvml.nvmlInit()
        handle = visible_gpus(pynvml)[0]
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        same = pynvml.nvmlDeviceGetUUID(handle) == uuid
        meter = find_meter("gpu", 0)
        if meter is None:
            run.check("power", False, f"no meter: {explain_missing_meter('gpu')}")
            return
        torch.cuda.synchronize()
        time.sleep(1.0)
        with meter.window() as idle:
            time.sleep(1.5)
        a, b = torch.randn(2, 4096, 4096, device="cuda").half()
        out = torch.empty_like(a)
        launch = partial(torch.matmul, a, b, out=out)
        timer = _gpu_timer()
        launch()
        time_ms = statistics.median(timer.sample_ms(launch, 1) for _ in range(10))
        watts, millijoules = measure_power(meter, launch, time_ms, timer.wait, torch.cuda)
        sampled = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        counter = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000
        ok = same and visible.startswith("GPU-") and idle.power_w + 30 < watts < 1.1 * limit
        run.check(
            "power", ok,
            f"{meter.name}: idle {idle.power_w:.0f} W, busy {watts:.0f} W (limit {limit:.0f}), "
            f"{millijoules:.1f} mJ a product of {time_ms:.3f} ms, so {millijoules / time_ms:.0f} W;"
            f" driver's sample {sampled:.0f} W; energy counter {counter / 1e3:.0f} J; "
            f"{visible}: {'the same' if same else 'ANOTHER'} GPU as torch's",
            idle_w=idle.power_w, busy_w=watts, energy_mj=millijoules, time_ms=time_ms,
            sampled_w=sampled, limit_w=limit, uuid=uuid,
        )  # fmt: skip


def _gpu_timer() -> Any:
    from foretune.collect.timing import gpu_timer

    return gpu_timer(foretune.local_device("gpu"), warm_cache=True)


# ---- 8: torch.compile -----------------------------------------------------------------------


def inductor(run: Run) -> None:
    """Compile a layer with the patch: right, and with few choices timed."""
    if run.replayed:
        run.check("torch.compile", True, "not replayed")
        return
    import torch._inductor.config as settings

    from foretune.tune.triton.inductor import InductorChooser

    with run.checking("torch.compile"):
        settings.max_autotune_gemm_backends = "TRITON,ATEN"
        settings.benchmark_epilogue_fusion = False
        settings.fx_graph_cache = False
        lists, shorten = list[tuple[int, int]](), InductorChooser.shorten

        def noted(self: InductorChooser, choices: list[Any]) -> list[Any]:
            few = shorten(self, choices)
            lists.append((len(choices), len(few)))
            return few

        InductorChooser.shorten = noted  # type: ignore[method-assign]
        undo = foretune.patch_inductor(store=run.store("inductor"))
        layer = torch.nn.Linear(1024, 2048, device="cuda", dtype=torch.float16)
        x = torch.randn(512, 1024, device="cuda", dtype=torch.float16)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(layer(x), approximate="tanh")

        start = time.monotonic()
        with torch.no_grad():
            compiled = torch.compile(forward, mode="max-autotune")
            output = compiled(x).clone()
            seconds = time.monotonic() - start
            torch.cuda.synchronize()
            right = torch.nn.functional.gelu(
                x.double() @ layer.weight.double().t() + layer.bias.double(), approximate="tanh"
            )
        error = GEMM.relative_error(output, right)
        every, few = (sum(counts) for counts in zip(*lists, strict=True)) if lists else (0, 0)
        run.check(
            "torch.compile", error <= 5e-3 and 0 < few < every,
            f"{few} of {every} choices timed in {len(lists)} operations, {seconds:.1f} s, "
            f"error {error:.2g}",
            lists=lists, seconds=seconds, error=error,
        )  # fmt: skip
        undo()


# ---- 9: calls of several launches -----------------------------------------------------------

LAUNCHES = (1, 2, 4, 8, 32)
PROFILED = ("1", "8")
"""Of these; a profile takes half a second."""
SLACK_SHARE, SLACK_MS, GAP_MS = 0.10, 0.003, 0.001
"""A stream's kernels have a longer gap between them than a graph's."""


def several_launches(run: Run) -> None:
    """Compare times of calls that launch several kernels with those of a graph and a profiler."""
    problems: dict[str, dict[str, Any]] = {"small": {"R": 512, "C": 1024}, "large": _WIDE}
    if run.replayed:
        for values in problems.values():
            problem = SOFTMAX.problem(values)
            SOFTMAX.build(problem, SOFTMAX.default(problem), SOFTMAX.inputs_without_data(problem))
        run.check("launches", True, "compiled")
        return
    calls: dict[str, tuple[Launch, str]] = {}
    kernels: dict[str, int] = {f"{n} {name}": n for n in LAUNCHES for name in problems}
    for name, values in problems.items():
        problem = SOFTMAX.problem(values)
        one = SOFTMAX.build(problem, SOFTMAX.default(problem), SOFTMAX.make_inputs(problem))
        calls |= {f"{count} {name}": (partial(_repeat, one, count), "_whole_rows")
                  for count in LAUNCHES}  # fmt: skip
    problem = GEMM.problem(M=64, N=1024, K=8192, dtype="fp16")
    split = foretune.Configuration({**GEMM.default(problem), "SPLIT_K": 4})
    calls["GEMM with split sums"] = GEMM.build(problem, split, GEMM.make_inputs(problem)), ""
    problem = GROUPED.problem({**_EXPERTS, "dtype": "bf16"})
    if (library := GROUPED.library(problem, GROUPED.make_inputs(problem))) is not None:
        calls[library[0]], kernels[library[0]] = (library[1], ""), _EXPERTS["experts"]
    timer = _gpu_timer()
    for name, (launch, _) in calls.items():
        with run.checking(name):
            _compare_times(run, name, launch, kernels.get(name, 2), timer)
    for name, (launch, wanted) in calls.items():  # last: a profiler slows launches down
        if wanted and name.split()[0] in PROFILED:
            with run.checking(f"profiler, {name}"):
                run.check(f"profiler, {name}", True, f"{_profiled_ms(launch, wanted):.4f} ms")


def _repeat(launch: Launch, count: int) -> None:
    for _ in range(count):
        launch()


def _compare_times(run: Run, name: str, launch: Launch, kernels: int, timer: Any) -> None:
    from foretune.tune.triton.runtime import EventTimer

    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    start = time.perf_counter()
    launch()
    host_ms = (time.perf_counter() - start) * 1e3
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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    replay = statistics.median(timer.sample_ms(graph.replay, 1) for _ in range(30))
    online_ms = statistics.median(online)
    slack = SLACK_SHARE * replay + SLACK_MS + GAP_MS * kernels
    ok = abs(events - replay) <= slack and abs(online_ms - replay) <= slack
    run.check(
        name, ok,
        f"events {events:.4f} ms, online {online_ms:.4f}, graph {replay:.4f}; events / graph "
        f"{events / replay:.2f}; the host takes {host_ms:.3f} ms",
        events_ms=events, online_ms=online_ms, graph_ms=replay, host_ms=host_ms,
    )  # fmt: skip


def _profiled_ms(launch: Launch, kernel: str) -> float:
    """Return the time of a call's kernels as a profiler has it: without gaps between them."""
    from torch.profiler import ProfilerActivity, profile

    calls = 10
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            launch()
        torch.cuda.synchronize()
    spent = sum(e.device_time_total for e in seen.key_averages() if kernel in e.key)
    return spent / 1e3 / calls


# ---- 10: what is known of the device --------------------------------------------------------


def described(run: Run) -> None:
    """Compare the device's descriptor with what torch says of it; run ``foretune doctor``."""
    if run.replayed:
        run.check("descriptor", True, "not replayed")
        return
    from foretune.device import find_device_or_none

    with run.checking("descriptor"):
        device = foretune.local_device("gpu")
        has = torch.cuda.get_device_properties(0)
        pairs = {
            "cores": (device.specs.get("cores", 0), has.multi_processor_count),
            "l2_kib": (device.specs.get("l2_kib", 0), has.L2_cache_size / 1024),
            "memory_gib": (device.specs.get("memory_gib", 0), has.total_memory / 2**30),
        }
        architecture = f"sm_{has.major}{has.minor}"
        ok = device.name == has.name and device.architecture == architecture
        ok = ok and all(abs(ours / theirs - 1) < 0.04 for ours, theirs in pairs.values())
        known = find_device_or_none(has.name)
        differences = ", ".join(f"{n} {a:g} (torch {b:g})" for n, (a, b) in pairs.items())
        run.check(
            "descriptor", ok and known is not None,
            f"{device.name}, {device.architecture}; {differences}; "
            f"{'known' if known else 'UNKNOWN'} to the table",
            specs=dict(device.specs), source=device.source,
        )  # fmt: skip
    with run.checking("doctor"):
        command = [sys.executable, "-m", "foretune", "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
        print(done.stdout, done.stderr, flush=True)
        says = json.loads(done.stdout) if done.returncode == 0 else {}
        names = [d["name"] for d in says.get("devices", [])]
        last = (done.stderr.strip().splitlines() or ["says nothing"])[-1]
        run.check(
            "doctor", torch.cuda.get_device_name() in names,
            f"lists {', '.join(names)}" if names else last,
            checks={c["what"]: f"{c['works']} {c['note']}" for c in says.get("checks", [])},
        )  # fmt: skip


# ---- 11: modes ------------------------------------------------------------------------------

MOST_CALLS, MOST_ONLINE_S = 3000, 10.0


def modes(run: Run) -> None:
    """Tune softmax from replays of graphs, from real calls, and for energy."""
    case = CASES["softmax"]
    options: dict[str, dict[str, Any]] = {
        "graph": {"mode": "graph"},
        "online": {"mode": "online"},
        "energy": {"objective": "energy", "budget": 3},
    }
    for name, given in options.items():
        if run.replayed and name != "online":  # graphs and meters are not there
            continue
        with run.checking(name):
            call = case.make()
            right = call.right(run)
            tuner = case.decorated(foretune.autotune, store=run.store(f"mode-{name}"), **given)
            start, calls, errors = time.monotonic(), 0, [0.0]
            while calls < MOST_CALLS and time.monotonic() - start < MOST_ONLINE_S:
                call.launch(tuner)
                calls += 1
                if calls in (1, 5, 20):
                    errors.append(call.error(run, right))
                    call.spoil()
                if tuner.cache:
                    break
                time.sleep(0.002)
            call.launch(tuner)
            errors.append(call.error(run, right))
            seconds, found = time.monotonic() - start, tuner.configs_timings
            energies = _energies(run, name) if name == "energy" else []
            metered = not any("nan" in energy for energy in energies)
            run.check(
                name, bool(tuner.cache) and max(errors) <= call.limit and metered,
                f"{'chosen' if tuner.cache else 'NOT CHOSEN'} after {calls} calls, {seconds:.2f} s,"
                f" {len(found)} measured: {tuner.best_config}; error {max(errors):.2g} "
                f"{'; '.join(energies)}",
                calls=calls, seconds=seconds,
                times={str(c): float(t[0]) for c, t in found.items()},
            )  # fmt: skip


def _energies(run: Run, name: str) -> list[str]:
    """Return what the store has of time, power and energy."""
    store = foretune.Store(run.store(f"mode-{name}"))
    rows = [m for subject in store.subjects() for m in store.measurements(subject)]
    return [f"{m.time_ms:.4f} ms {m.power_w:.0f} W {m.energy_mj:.2f} mJ" for m in rows]


# ---- 12: CUDA sources -----------------------------------------------------------------------

ADD = """
extern "C" __global__ void add(float *c, const float *a, const float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


def cuda_source(run: Run) -> None:
    """Tune a vector addition in CUDA C++, and run one configuration in another process."""
    if run.replayed:
        run.check("tune_kernel", True, "not replayed")
        return
    import numpy as np

    from foretune.collect import IsolatedRunner
    from foretune.collect.wrapped.source import LaunchShape, Source
    from foretune.collect.wrapped.source_kernel import SourceKernel

    n = 4_000_000
    a, b = np.random.default_rng(0).random((2, n), dtype=np.float32)
    arguments, knobs = [np.zeros_like(a), a, b, np.int32(n)], {"block_size_x": [32, 64, 128, 256]}
    answer = [a + b, None, None, None]
    with run.checking("tune_kernel"):
        start = time.monotonic()
        best = foretune.tune_kernel(
            "add", ADD, n, arguments, knobs, lang="CUDA", answer=answer,
            strategy="brute_force", isolated=False, verify_s=0.05, quiet=True,
        )  # fmt: skip
        rows, seconds = best.to_frame(), time.monotonic() - start
        ok = int((rows["status"] == "ok").sum())
        run.check(
            "tune_kernel", ok >= len(knobs["block_size_x"]) and ok == len(rows),
            f"{ok} of {len(rows)} right, best {dict(best.config)} {best.time_ms:.4f} ms "
            f"(moves {12 * n / best.time_ms / 1e6:,.0f} GB/s), {seconds:.1f} s",
            time_ms=best.time_ms, seconds=seconds,
        )  # fmt: skip
    with run.checking("another process"):
        start = time.monotonic()
        kernel = SourceKernel(
            Source("add", ADD, "CUDA", ".cu", {}), LaunchShape(n, (None, None, None), ()),
            arguments, knobs, answer=answer, device_kind="gpu",
        )  # fmt: skip
        config = foretune.Configuration(block_size_x=128)
        with IsolatedRunner(foretune.local_device("gpu"), limit_s=25.0) as runner:
            (m,) = runner.run(kernel, kernel.problem(), [config])
        run.check(
            "another process", m.ok and not math.isnan(m.power_w),
            f"{m.status.value} {m.error} {m.time_ms:.4f} ms, {m.power_w:.0f} W, "
            f"{time.monotonic() - start:.1f} s",
        )  # fmt: skip


# ---- running --------------------------------------------------------------------------------


class Programs:
    """Counts the Triton programs that were compiled, and those that were found in the cache."""

    def __init__(self) -> None:
        self.compiled, self.found, self.seconds = list[str](), 0, 0.0
        triton.knobs.compilation.listener = self

    def __call__(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        """Note one; Triton calls this."""
        if cache_hit:
            self.found += 1
        else:
            self.compiled.append(getattr(src, "name", "?"))
            self.seconds += times.total / 1e6

    def __str__(self) -> str:
        names = ", ".join(sorted(set(self.compiled)))
        return f"{len(self.compiled)} compiled ({self.seconds:.1f} s) {names}; {self.found} found"


@dataclass(frozen=True)
class Item:
    """Something to check: a title, a function, and the most seconds that it may take."""

    title: str
    function: Callable[[Run], None]
    limit_s: float


ITEMS = {
    "1": Item("every Triton kernel", kernels, 40),
    "2": Item("the decorator, and stock Triton", decorator, 40),
    "2b": Item("a second process finds the choices", decorator_again, 30),
    "3": Item("first call in a graph capture", capture, 30),
    "4": Item("descriptors set by a hook", descriptors, 30),
    "5": Item("memory that check= takes", check_memory, 30),
    "6": Item("another stream", other_stream, 30),
    "7": Item("power of a GPU given by UUID", power, 15),
    "8": Item("torch.compile, patched", inductor, 40),
    "9": Item("times of calls with several launches", several_launches, 20),
    "10": Item("descriptor and doctor", described, 40),
    "11": Item("modes graph, online; energy", modes, 30),
    "12": Item("a CUDA source", cuda_source, 90),
}
TURNS = (("1",), ("2",), ("2b", "3", "4", "5", "6", "10", "8", "12"), ("7",), ("9",), ("11",))
"""What runs at the same time: times matter where an item is alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("smoke.jsonl"))
    parser.add_argument("--minutes", type=float, default=2.0, help="begin nothing new after them")
    parser.add_argument("--items", nargs="*", default=list(ITEMS), choices=list(ITEMS))
    parser.add_argument("--replay", action="store_true", help="no GPU: compile, launch nothing")
    parser.add_argument("--device", default="NVIDIA H100 80GB HBM3", help="to compile for")
    parser.add_argument("--child", choices=list(ITEMS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Run(options.child, options.out, options.folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.unlink(missing_ok=True)
    if options.replay:
        replay(options)
    else:
        if not torch.cuda.is_available():
            raise SystemExit("no GPU here: --replay shows that it runs, and compares nothing")
        run_items(options)
    print(report(options))


def child(run: Run) -> None:
    """Get ready, wait for the turn, run an item, and end this process."""
    code = 1
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        if run.item != "12":  # which may say that other processes are busy
            warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
        (run.folder / f"ready-{run.item}").touch()
        programs = Programs()
        if sys.stdin.readline():
            run.start = time.monotonic()
            ITEMS[run.item].function(run)
            run.check("programs", True, str(programs))
            seconds = time.monotonic() - run.start
            (run.folder / f"done-{run.item}").write_text(f"{seconds}")
            code = 0
    except BaseException as e:
        traceback.print_exc()
        append(run.out, {"item": run.item, "what": "all", "ok": False, "detail": describe_error(e)}
               if isinstance(e, Exception) else
               {"item": run.item, "what": "all", "ok": False, "detail": repr(e)})  # fmt: skip
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still compile do not count


def replay(options: argparse.Namespace) -> None:
    """Run the items here, on a device that launches nothing."""
    from replay_driver import ReplayDriver

    driver = ReplayDriver(lambda launch: 0.1, device=options.device, compile=True)
    limits = triton_gemm.Limits(
        shared_bytes=driver.device_interface.target.limits.shared_bytes_per_cta, threads=32,
        cores=int(driver.device_interface.device.specs["cores"]), reads_shared=True,
    )  # fmt: skip
    for module in list(sys.modules.values()):
        if getattr(module, "device_limits", None) is triton_gemm.device_limits and (
            module is not triton_gemm
        ):
            setattr(module, "device_limits", lambda: limits)  # noqa: B010
    triton_gemm.device_limits = lambda: limits  # type: ignore[assignment]
    build_launchers(driver)
    with tempfile.TemporaryDirectory() as folder, driver.active(), warnings.catch_warnings():
        warnings.simplefilter("error", ForetuneWarning)
        for name in options.items:
            run, start = Run(name, options.out, Path(folder), driver), time.monotonic()
            programs = Programs()
            with run.checking("all"):
                ITEMS[name].function(run)
            run.check("programs", True, str(programs))
            seconds = time.monotonic() - start
            append(options.out, {"item": name, "what": "end", "ok": True, "seconds": seconds})
            driver.launches.clear()


def build_launchers(driver: Any) -> None:
    """Let a replay also put into Triton's cache what calls kernels: a C module per signature.

    Triton 3.6 builds these where it launches, with the C compiler. In place of the driver's library
    they are linked with one of the same name and functions that do nothing; none is loaded here.
    """
    from triton.backends.nvidia import driver as nvidia

    launcher = driver.launcher_cls
    folder = tempfile.mkdtemp()
    utilities = (Path(nvidia.dirname) / "driver.c").read_text()
    names = re.findall(r"\bcu[A-Z]\w*", utilities + nvidia.make_launcher({}, {0: "*fp32"}, None))
    subprocess.run(
        ["cc", "-shared", "-o", f"{folder}/libcuda.so.1", "-Wl,-soname,libcuda.so.1",
         "-x", "c", "-"],
        input="".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(set(names))),
        text=True, check=True,
    )  # fmt: skip
    _build_module("cuda_utils", utilities, folder)

    def building(source: Any, metadata: Any) -> Any:
        constants = {
            (source.fn.arg_names.index(i),) if isinstance(i, str) else i: value
            for i, value in source.constants.items()
        }
        described = getattr(metadata, "tensordesc_meta", None)
        text = nvidia.make_launcher(constants, dict(source.signature), described)
        _build_module("__triton_launcher", text, folder)
        return launcher(source, metadata)

    driver.launcher_cls = building


def _build_module(name: str, text: str, folder: str) -> None:
    """Build a C module under the name in the cache that Triton looks for, unless it is there."""
    import hashlib
    import sysconfig

    from triton.backends.nvidia import driver as nvidia
    from triton.runtime.build import _build, platform_key
    from triton.runtime.cache import get_cache_manager

    cache = get_cache_manager(hashlib.sha256((text + platform_key()).encode()).hexdigest())
    file = f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if cache.get_file(file) is not None:
        return
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / f"{name}.c"
        source.write_text(text)
        libraries = [nvidia.libdevice_dir, folder]
        built = _build(
            name, str(source), temporary, libraries, nvidia.include_dirs, nvidia.libraries, []
        )
        cache.put(Path(built).read_bytes(), file, binary=True)


@dataclass
class Process:
    """A process of an item: what it is, when its turn came, and what was wrong with it."""

    item: str
    popen: subprocess.Popen[str]
    began: float = math.nan
    failed: str = ""


def run_items(options: argparse.Namespace) -> None:
    """Start a process per item, let them run in turns, and write down how each one ended."""
    deadline = time.monotonic() + 60 * options.minutes
    ahead = _is_shared()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = [item for turn in TURNS for item in turn if item in options.items]
        started = {item: _start(options, folder, item) for item in chosen if ahead}
        _wait_ready(folder, started)
        for turn in TURNS:
            processes = []
            for item in (i for i in turn if i in options.items):
                if time.monotonic() > deadline:
                    append(options.out, _ending(item, "no time was left", 0.0))
                    if item in started:
                        _kill(started[item])
                    continue
                processes.append(started.get(item) or _start(options, folder, item))
            _wait_ready(folder, {process.item: process for process in processes})
            for process in processes:
                _go(process)
            most_s = max(5.0, deadline + GRACE_S - time.monotonic())
            for process in processes:
                _finish(options, folder, process, most_s)


def _is_shared() -> bool:
    """Return whether several processes may use the device at the same time."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
    except pynvml.NVMLError:
        return True


def _uuid() -> str:
    """Return the UUID of the GPU that this process uses, by NVML."""
    import pynvml

    from foretune.collect.gpu_handles import visible_gpus

    pynvml.nvmlInit()
    return str(pynvml.nvmlDeviceGetUUID(visible_gpus(pynvml)[0]))


def _start(options: argparse.Namespace, folder: Path, item: str) -> Process:
    """Start the process of an item; it waits for its turn."""
    environment = {**os.environ, "FORETUNE_STORE": str(folder / f"store-{item}.db")}
    environment.setdefault("FORETUNE_CACHE", str(folder / "cache"))
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    if item == "7":
        environment["CUDA_VISIBLE_DEVICES"] = _uuid()
    command = [sys.executable, str(HERE), "--child", item, "--out", str(options.out.resolve()),
               "--folder", str(folder)]  # fmt: skip
    (folder / f"ready-{item}").unlink(missing_ok=True)
    with (folder / f"log-{item}").open("a") as log:
        return Process(
            item,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True,
                env=environment, start_new_session=True,
            ),
        )  # fmt: skip


def _wait_ready(folder: Path, started: Mapping[str, Process]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and any(
        p.popen.poll() is None and not (folder / f"ready-{item}").exists()
        for item, p in started.items()
    ):
        time.sleep(0.05)


def _go(process: Process) -> None:
    process.began = time.monotonic()
    assert process.popen.stdin is not None
    try:
        process.popen.stdin.write("go\n")
        process.popen.stdin.flush()
    except OSError:  # it has ended already, and says why
        process.failed = "it did not start"


def _finish(options: argparse.Namespace, folder: Path, process: Process, most_s: float) -> None:
    """Wait for a process until its limit; start it again if a launch broke its device."""
    limit = min(ITEMS[process.item].limit_s, most_s)
    for _ in range(4):
        try:
            code = process.popen.wait(max(0.1, process.began + limit - time.monotonic()))
            process.failed = "" if code == 0 else f"it ended with {code}"
        except subprocess.TimeoutExpired:
            code, process.failed = 0, f"it took more than {limit:.0f} s"
        _kill(process)
        if code != LOST or process.item != "1":
            break
        began, process = process.began, _start(options, folder, process.item)
        _wait_ready(folder, {process.item: process})
        _go(process)
        process.began = began
    done = folder / f"done-{process.item}"
    seconds = float(done.read_text()) if done.exists() else time.monotonic() - process.began
    log = (folder / f"log-{process.item}").read_text(errors="replace")
    row = _ending(process.item, process.failed, seconds)
    append(options.out, {**row, "log": log[-6000:]})


def _ending(item: str, failed: str, seconds: float) -> dict[str, Any]:
    ok = not failed
    return {"item": item, "what": "end", "ok": ok, "detail": failed, "seconds": seconds}


def _kill(process: Process) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.popen.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    with suppress(subprocess.TimeoutExpired):
        process.popen.wait(5)


def report(options: argparse.Namespace) -> str:
    """Return a table of items, and every row that is not right."""
    table, details = [], []
    for name in options.items:
        rows = rows_of(options.out, name)
        end = [r for r in rows if r["what"] == "end"]
        checks = [r for r in rows if r["what"] != "end"]
        wrong = [r for r in rows if not r["ok"]]
        passed = bool(end) and bool(checks) and not wrong
        table.append(
            [name, ITEMS[name].title, "PASS" if passed else "FAIL",
             f"{sum(r['ok'] for r in checks)} of {len(checks)}",
             f"{end[-1].get('seconds', 0.0):.1f}" if end else ""]
        )  # fmt: skip
        details += [
            f"{'ok  ' if r['ok'] else 'FAIL'} {name:>2} {r['what']}: {r['detail']}" for r in checks
        ]
        details += [f"FAIL {name:>2} {r['detail']}" for r in end if not r["ok"]]
    where = f"replay of {options.device}" if options.replay else torch.cuda.get_device_name()
    head = f"{where}; torch {torch.__version__}, Triton {triton.__version__}"
    columns = ["item", "what", "result", "right", "seconds"]
    return "\n".join([*details, "", head, "", markdown(columns, table)])


if __name__ == "__main__":
    main()
