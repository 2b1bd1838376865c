"""Does all that only a GPU can show work? Right or wrong, item by item, in two minutes.

    PYTHONPATH=src python benchmarks/gpu/smoke.py --out smoke.jsonl
    PYTHONPATH=src python benchmarks/gpu/smoke.py --replay        # no GPU: runs through, compiles
    PYTHONPATH=src python benchmarks/gpu/smoke.py --minutes 0 --out smoke.jsonl    # prints a file

Every item runs in a process of its own, with a limit: none stops another one. All processes start
at once and wait for their turn; what is timed runs alone. Rows go to ``--out`` as they are made.

With ``--replay`` nothing is launched and nothing is compared, but Triton really compiles for
``--device``. With TRITON_CACHE_DIR set, a GPU of that kind then finds its programs there
(`torch.compile`, CUDA sources, and the small C modules that launch programs aside).
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
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
from gpu_cases import _attention_arguments, _gemm_arguments, _norm_arguments, _softmax_arguments
from machine import markdown
from triton.tools.tensor_descriptor import TensorDescriptor

import foretune
from foretune.collect.kernels import triton_gemm, triton_quantized_gemm
from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.collect.timing import gpu_timer
from foretune.collect.versions import versions
from foretune.errors import ForetuneWarning, describe_error
from foretune.kernel import Launch

HERE = Path(__file__).resolve()
REAL = torch.cuda.is_available()
"""Whether anything is launched."""
READY_S = 30.0
"""What is waited for processes to import everything and to reach the device."""
GRACE_S = 10.0
"""What an item that has begun may take after the time is over."""


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

    def check(self, what: str, ok: bool, detail: str, **values: Any) -> None:
        """Write down whether something works."""
        seconds = round(time.monotonic() - self.start, 2)
        row = {"item": self.item, "what": what, "ok": bool(ok), "detail": detail, **values}
        append(self.out, {**row, "seconds": seconds})

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Turn an error in the block into a row."""
        try:
            yield
        except Exception as e:
            self.check(what, False, describe_error(e)[:300], trace=traceback.format_exc()[-3000:])

    def store(self, name: str) -> Path:
        """Return the path of a tuning store."""
        return self.folder / f"{name}.db"


def append(out: Path, row: Mapping[str, Any]) -> None:
    """Append a row; several processes do."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, default=str) + "\n")


def rows_of(out: Path, item: str) -> list[dict[str, Any]]:
    """Return the rows of an item."""
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
_WIDE = {"R": 4096, "C": 4096, "dtype": "fp16"}

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
    (SOFTMAX, _WIDE, {}),
    (SOFTMAX, {"R": 1000, "C": 5000, "dtype": "bf16"}, {}),
    (SOFTMAX, {"R": 64, "C": 131072, "dtype": "fp32"}, {}),
    (NORM, {**_WIDE, "norm": "rms"}, {}),
    (NORM, {"R": 1000, "C": 5000, "dtype": "bf16", "norm": "layer"}, {}),
    (NORM, {"R": 64, "C": 131072, "dtype": "fp32", "norm": "layer"}, {}),
]
"""Kernels, problems, and what differs from the default configuration."""
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
    timer = _gpu_timer()
    latency, rate = latency_ns(memory, kib, timer), read_gbps(memory, kib, programs, timer)
    run.check("triton_probe", ok, f"4 MiB: {latency:.0f} ns a load, {rate:,.0f} GB/s")


def _gpu_timer() -> Any:
    return gpu_timer(foretune.local_device("gpu"), warm_cache=True)


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
        right: what that must be; None where nothing runs.
        limit: relative error allowed.
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    grid: Any
    output: torch.Tensor
    right: torch.Tensor | None
    limit: float

    def launch(self, tuner: Any) -> None:
        """Call the decorated kernel."""
        tuner[self.grid](*self.args, **self.named)

    def spoil(self) -> None:
        """Overwrite the output, so that nothing old can pass."""
        self.output.fill_(3.0)

    def error(self) -> float:
        """Return the relative error; zero where nothing runs."""
        if self.right is None:
            return 0.0
        torch.cuda.synchronize()
        return GEMM.relative_error(self.output, self.right)


@dataclass(frozen=True)
class Case:
    """A kernel to tune.

    Attributes:
        function: the plain ``@triton.jit`` function.
        configs: what autotuners choose from.
        key: names of the arguments that make a problem.
        make: makes a call.
        heuristics: constants that follow from the others, or None.
    """

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

    def tuned(self, **options: Any) -> tuple[Call, Any, list[triton.Config]]:
        """Return a call, the kernel under Foretune's decorator, and a list of what it measures."""
        call, tuner = self.make(), self.decorated(foretune.autotune, **options)
        measured, bench = list[triton.Config](), tuner._bench

        def noted(*args: Any, config: triton.Config, **named: Any) -> Any:
            measured.append(config)
            return bench(*args, config=config, **named)

        tuner._bench = noted
        return call, tuner, measured


def _of_kernel(kernel: TritonKernel, values: dict[str, Any], arguments: Any, out: int) -> Call:
    problem = kernel.problem(values)
    inputs = kernel.make_inputs(problem) if REAL else kernel.inputs_without_data(problem)
    args, named, grid = arguments(problem, inputs)
    right = kernel.reference(inputs) if REAL else None
    limit = kernel.error_limit(problem, kernel.default(problem))
    return Call(args, named, grid, args[out], right, limit)


ELEMENTS = 5_000_000


def _elementwise() -> Call:
    x, y = torch.randn(2, ELEMENTS, device="cuda" if REAL else "meta")
    out, right = torch.empty_like(x), None
    if REAL:
        right = torch.nn.functional.gelu(x.double(), approximate="tanh") + y.double()

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(ELEMENTS, meta["BLOCK"]),)

    return Call((x, y, out, ELEMENTS), {}, grid, out, right, 1e-5)


def _tma() -> Call:
    """Return a call with descriptors whose block shapes are set by the configurations' hook."""
    n = 2048
    a, b = torch.randn(2, n, n, device="cuda" if REAL else "meta").half()
    c = torch.empty_like(a)
    described = [TensorDescriptor.from_tensor(t, [1, 1]) for t in (a, b, c)]

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    right = a.float() @ b.float().t() if REAL else None
    limit = TMA.error_limit(TMA.problem(_SQUARE), foretune.Configuration())
    return Call((*described, n, n, n), {}, grid, c, right, limit)


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

CASES = {
    "gemm": Case(
        triton_gemm._gemm,
        [_config(w, s, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, SPLIT_K=1, PERSISTENT=False)
         for m, n, k, w, s in _TILES],
        ["M", "N", "K"],
        partial(_of_kernel, GEMM, {"M": 4096, "N": 4096, "K": 2048}, _gemm_arguments, 2),
        {"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0},
    ),
    "attention": Case(
        triton_attention._attention, [_config(w, s, BLOCK_M=m, BLOCK_N=n) for m, n, w, s in _KEYS],
        ["heads", "length"], partial(_of_kernel, ATTENTION, _HEADS, _attention_arguments, 3),
    ),
    "softmax": Case(
        triton_softmax._whole_rows, _LIST_OF_ROWS, ["rows", "columns"],
        partial(_of_kernel, SOFTMAX, _WIDE, _softmax_arguments, 1), _BLOCK_OF_ROW,
    ),
    "norm": Case(
        triton_norm._whole_rows, _LIST_OF_ROWS, ["rows", "columns"],
        partial(_of_kernel, NORM, _WIDE, _norm_arguments, 3), _BLOCK_OF_ROW,
    ),
    "elementwise": Case(
        gelu_add, [_config(w, 3, BLOCK=b) for b, w in _BLOCKS], ["n"], _elementwise,
    ),
}  # fmt: skip
TMA_CASE = Case(
    triton_gemm_tma._gemm_tma,
    [_config(w, s, set_blocks, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, WARP_SPECIALIZE=False)
     for m, n, k, w, s in _TILES if m >= 64],
    ["M", "N", "K"], _tma,
)  # fmt: skip


QUICK = {"do_bench": partial(triton.testing.do_bench, warmup=5, rep=20)} if REAL else {}
"""Lets stock Triton measure in a fifth of its time."""


# ---- 2: the decorator -----------------------------------------------------------------------


def decorator(run: Run) -> None:
    """Tune with the decorator and with stock Triton; both must compute what torch does."""
    for name, case in CASES.items():
        with run.checking(name):
            call, tuner, measured = case.tuned(store=run.store("tuned"))
            start = time.monotonic()
            call.launch(tuner)
            seconds, error = time.monotonic() - start, call.error()
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
            call, tuner, measured = case.tuned(store=run.store("tuned"))
            start = time.monotonic()
            call.launch(tuner)
            seconds, error = time.monotonic() - start, call.error()
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
    timer = _gpu_timer()
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
    for name, values in (("small", {"R": 512, "C": 1024}), ("large", _WIDE)):
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
    problem = GROUPED.problem({**_EXPERTS, "dtype": "bf16"})
    if (library := GROUPED.library(problem, GROUPED.make_inputs(problem))) is not None:
        calls[library[0]] = library[1], _EXPERTS["experts"]
    timer = _gpu_timer()
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


# ---- running --------------------------------------------------------------------------------


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
    if options.minutes <= 0 and not options.out.exists():
        raise SystemExit(f"there is no file {options.out}")
    if options.minutes > 0:
        if options.replay == REAL:
            raise SystemExit("--replay is for machines without a GPU, and all that these can do")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.unlink(missing_ok=True)
        device = f"replay of {options.device}" if options.replay else torch.cuda.get_device_name()
        append(options.out, {"item": "", "device": device, "versions": versions()})
        with tempfile.TemporaryDirectory() as folder:
            (replay if options.replay else run_items)(options, Path(folder))
    print(report(options))


def perform(run: Run) -> None:
    """Run an item, and write down that it came to its end."""
    run.start, programs = time.monotonic(), Counter[bool]()
    triton.knobs.compilation.listener = lambda **now: programs.update([bool(now["cache_hit"])])
    with run.checking("all"):
        if REAL or ITEMS[run.item].replayed:
            ITEMS[run.item].function(run)
        else:
            run.check("all", True, "not replayed")
    run.check("programs", True, f"{programs[False]} compiled, {programs[True]} found in the cache")
    run.check("end", True, "")


def child(run: Run) -> None:
    """Get ready, wait for the turn, run an item, and end this process."""
    torch.zeros(1, device="cuda")
    if run.item != "12":  # which may say that other processes are busy
        warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
    (run.folder / f"ready-{run.item}").touch()
    if sys.stdin.readline():
        perform(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that still compile do not count


def replay(options: argparse.Namespace, folder: Path) -> None:
    """Run the items here, on a device that launches nothing."""
    from replay_driver import ReplayDriver

    driver: Any = ReplayDriver(lambda launch: 0.1, device=options.device, compile=True)
    interface, real = driver.device_interface, triton_gemm.device_limits
    limits = triton_gemm.Limits(
        shared_bytes=interface.target.limits.shared_bytes_per_cta, threads=32,
        cores=int(interface.device.specs["cores"]), reads_shared=True,
    )  # fmt: skip
    for module in list(sys.modules.values()):
        if getattr(module, "device_limits", None) is real:
            setattr(module, "device_limits", lambda: limits)  # noqa: B010
    with driver.active(), warnings.catch_warnings():
        warnings.simplefilter("error", ForetuneWarning)
        for item in options.items:
            perform(Run(item, options.out, folder, driver))
            driver.launches.clear()


def run_items(options: argparse.Namespace, folder: Path) -> None:
    """Start a process per item, and let them run in turns."""
    deadline = time.monotonic() + 60 * options.minutes
    turns = [[item for item in turn if item in options.items] for turn in TURNS]
    processes = {item: start(options, folder, item) for turn in turns for item in turn}
    until = time.monotonic() + READY_S
    while time.monotonic() < until and any(
        process.poll() is None and not (folder / f"ready-{item}").exists()
        for item, process in processes.items()
    ):
        time.sleep(0.05)
    for turn in turns:
        if (began := time.monotonic()) > deadline:
            break
        for item in turn:
            with suppress(OSError):  # it has ended already, and says why
                processes[item].stdin.write("go\n")
                processes[item].stdin.flush()
        for item in turn:
            last = min(began + ITEMS[item].limit_s, deadline + GRACE_S)
            finish(options.out, folder, item, processes[item], last)
    for process in processes.values():
        kill(process)


def start(options: argparse.Namespace, folder: Path, item: str) -> Any:
    """Start the process of an item; it waits for its turn."""
    environment = {**os.environ, "FORETUNE_STORE": str(folder / f"store-{item}.db")}
    environment.setdefault("FORETUNE_CACHE", str(folder / "cache"))
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    if item == "7":
        environment["CUDA_VISIBLE_DEVICES"] = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = [sys.executable, str(HERE), "--child", item, "--out", str(options.out.resolve()),
               "--folder", str(folder)]  # fmt: skip
    with (folder / f"log-{item}").open("w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip


def finish(out: Path, folder: Path, item: str, process: Any, until: float) -> None:
    """Wait for a process; write down what was wrong with it."""
    try:
        code = process.wait(max(0.1, until - time.monotonic()))
        failed = f"it ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        failed = "it took too long"
    kill(process)
    if failed:
        log = (folder / f"log-{item}").read_text(errors="replace")[-6000:]
        append(out, {"item": item, "what": "end", "ok": False, "detail": failed, "log": log})


def kill(process: Any) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def report(options: argparse.Namespace) -> str:
    """Return a table of items, and every row that is not right."""
    table, details = [], []
    for name in options.items:
        rows = rows_of(options.out, name)
        checks = [r for r in rows if r["what"] != "end"]
        ends = [r for r in rows if r["what"] == "end"] or [{"ok": False, "detail": "no end"}]
        passed = bool(checks) and all(r["ok"] for r in [*checks, *ends])
        table.append(
            [name, ITEMS[name].title, "PASS" if passed else "FAIL",
             f"{sum(r['ok'] for r in checks)} of {len(checks)}",
             f"{ends[-1]['seconds']:.1f}" if "seconds" in ends[-1] else "–"]
        )  # fmt: skip
        details += [
            f"{'ok  ' if r['ok'] else 'FAIL'} {name:>2} {r['what']}: {r['detail']}" for r in checks
        ]
        details += [f"FAIL {name:>2} {r['detail']}" for r in ends if not r["ok"]]
    (head,) = rows_of(options.out, "")
    columns = ["item", "what", "result", "right", "seconds"]
    return "\n".join([
        *details, "", "### What only a GPU can show", "", f"{head['device']}; {head['versions']}",
        "", markdown(columns, table),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
