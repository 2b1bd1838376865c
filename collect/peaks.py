"""Peak rates of this CPU, measured: nobody publishes those of the virtual machine one is given.

Bandwidth is that of the STREAM triad, arithmetic that of a loop of independent fused multiply-adds.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from foretune.collect.cpu import CPU_FOLDER, cache_sizes
from foretune.collect.numba_source import compile_function, function_source
from foretune.collect.threads import run_parallel, split_range
from foretune.device import available_cores


def measure_cpu() -> dict[str, float]:
    """Measure this CPU now; see `triad_gbps` and `fma_gflops`."""
    return {
        "memory_gbps": triad_gbps(_triad_elements()),
        "fp32_gflops": fma_gflops(np.float32),
        "fp64_gflops": fma_gflops(np.float64),
    }


_LANES = 8  # of a 512-bit vector of doubles; narrower machines split it

_FILL = """
def fill(a, value, start, stop):
    for i in range(start, stop):
        a[i] = value
"""


def triad_gbps(elements: int, seconds: float = 0.4) -> float:
    """Return main-memory bandwidth of all cores by the STREAM triad, in GB/s.

    ``a[i] = b[i] + s·c[i]`` in double precision (McCalpin, IEEE TCCA Newsletter, December 1995),
    at the faster repeats, with ordinary stores or with stores past the cache, whichever are better.
    As in STREAM, three arrays are counted: that an ordinary store first reads its cache line
    (write-allocate) is not, so where those won, the memory itself moved a third more.

    Args:
        elements: length of each array; together they must be far larger than the last-level cache.
        seconds: how long to repeat, in all.
    """
    elements -= elements % _LANES
    ranges = split_range(elements, available_cores(), _LANES)
    arrays = [_aligned(elements) for _ in range(3)]
    fill, best_s = compile_function(_FILL, "fill"), math.inf
    for array in arrays:
        # Pages land in the memory of the core that touches them first: the one that will use them.
        run_parallel(_bind_arrays(fill, array, 1.0), ranges)
    for store in ("store", "store_past_cache"):
        work = _bind_arrays(compile_function(_triad_source(store), "triad"), *arrays, 3.0)
        best_s = min(best_s, _fast_seconds(partial(run_parallel, work, ranges), seconds / 2))
    return 3 * 8 * elements / best_s / 1e9


def _triad_source(store: str) -> str:
    # In explicit vectors: Numba's own loop over three arrays stays scalar, at half the bandwidth.
    body = [
        f"s = splat(scalar, {_LANES})",
        f"for i in range(start, stop, {_LANES}):",
        f"    {store}(a, i, fma(s, load(c, i, {_LANES}), load(b, i, {_LANES})))",
    ]
    return function_source("triad", "a, b, c, scalar, start, stop", body)


def _aligned(elements: int) -> Any:
    """Return an array of doubles that starts at a cache line, not yet backed by memory."""
    array = np.empty(elements + _LANES)
    skip = -array.ctypes.data // 8 % _LANES
    return array[skip : skip + elements]


def _triad_elements() -> int:
    """Return a length that is out of reach of all caches and takes at most 5 % of the memory."""
    all_caches = 1024 * cache_sizes().get("l3_kib", 0.0) * _last_level_caches()
    wanted = max(4 * all_caches, 64 * 2**20)
    return int(min(wanted, psutil.virtual_memory().available * 0.05 / 3) / 8)


def _last_level_caches(cpus: Path = CPU_FOLDER) -> int:
    """Return how many third-level caches the machine has: several on AMD's larger processors."""
    shared = set()
    for path in cpus.glob("cpu[0-9]*/cache/index3/shared_cpu_list"):
        try:
            shared.add(path.read_text().strip())
        except OSError:
            continue
    return max(1, len(shared))


def fma_gflops(dtype: type[np.floating[Any]], seconds: float = 0.1) -> float:
    """Return the rate of independent fused multiply-adds on all cores, in 1e9 operations/s.

    Each core keeps a dozen accumulators in registers: enough to hide the latency of two pipelines,
    few enough for sixteen registers. The best of three vector widths counts, since the widest is
    not the fastest on every machine.

    All cores run at once, but each is timed on its own, in slices of a millisecond, and its rate
    is that of its faster slices: another process that takes turns on one core costs nothing.

    Args:
        dtype: single or double precision.
        seconds: how long to run each width.
    """
    threads, best = available_cores(), 0.0
    # Longer slices on many cores, where the threads queue to start the next one.
    iterations = _ITERATIONS * max(1, threads // 32)
    for bits in (128, 256, 512):
        lanes = bits // (8 * np.dtype(dtype).itemsize)
        loop = compile_function(_fma_source(lanes), "accumulate")
        call = partial(loop, dtype(0.5), dtype(1e-3), iterations)
        operations = 2.0 * _ACCUMULATORS * lanes * iterations
        best = max(best, operations * _calls_per_second(call, threads, seconds) / 1e9)
    return best


_ACCUMULATORS = 12
_ITERATIONS = 500_000  # about a millisecond


def _calls_per_second(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Return how often a second all threads together call, each at its faster times."""
    fast_s = [0.0] * threads

    def repeat(thread: int, _: int) -> None:
        fast_s[thread] = _fast_seconds(call, seconds)

    call()  # compiles, once
    run_parallel(repeat, [(i, i + 1) for i in range(threads)])
    return sum(1 / s for s in fast_s)


def _fma_source(lanes: int) -> str:
    accumulators = [f"s{i}" for i in range(_ACCUMULATORS)]
    body = [f"x = splat(factor, {lanes})", f"y = splat(addend, {lanes})"]
    # Started differently, or the compiler would find a dozen times the same number.
    body += [f"{s} = fma({before}, x, y)" for before, s in pairwise(["y", *accumulators])]
    body += ["for _ in range(iterations):"]
    body += [f"    {s} = fma({s}, x, y)" for s in accumulators]
    # Added up, so that no accumulator is dead code.
    terms = " + ".join(f"total({s})" for s in accumulators)
    return function_source("accumulate", "factor, addend, iterations", [*body, f"return {terms}"])


def _bind_arrays(function: Any, *args: Any) -> Callable[[int, int], object]:
    """Return ``function`` with all arguments fixed but the range."""
    return lambda start, stop: function(*args, start, stop)


def _fast_seconds(call: Callable[[], object], seconds: float) -> float:
    """Call for ``seconds``, and return the time that one call in ten undercuts.

    Not the shortest: on shared machines single ones come out at half of what is possible. The
    first call, which may compile, does not count.
    """
    call()
    times: list[float] = []
    begin = time.perf_counter()
    before = begin
    while before < begin + seconds or len(times) < 3:
        call()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return float(np.quantile(times, 0.1))
