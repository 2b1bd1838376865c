"""Properties of this CPU, and its measured peak rates.

The rates are measured because specifications of virtual machines are unknown.
"""

import math
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from foretune.collect.kernels import numba_codegen as codegen
from foretune.device import available_cores
from foretune.errors import MissingExtra
from foretune.support.lazy import require

CPU_FOLDER = Path("/sys/devices/system/cpu")
"""Linux's folder of processor properties."""
_KIB = {"K": 1.0, "M": 1024.0, "G": 1024.0**2}
"""KiB of each unit in Linux's cache sizes."""
_EXTENSIONS = {
    "avx512f": "avx512",
    "avx2": "avx2",
    "avx": "avx",
    "sse2": "sse",
    "sve": "sve",
    "neon": "neon",
}
"""Vector extensions from wide to narrow: LLVM's feature -> its usual name."""
_VECTOR_BITS = {"avx512f": 512.0, "avx": 256.0, "sse2": 128.0, "neon": 128.0}
"""Width of the registers of a feature, from wide to narrow."""

_LANES = 8
"""Lanes of a 512-bit vector of doubles; narrower machines split it."""
_ACCUMULATORS = 12
"""Independent sums of the loop that measures compute rates; see `fma_rates`."""
_ITERATIONS = 500_000
"""Iterations of that loop: about a millisecond."""
_MAX_TRIAD_SHARE = 0.05
"""Largest share of the free memory that the arrays of the triad take."""
_FAST_QUANTILE = 0.1
"""Quantile of call times that counts as fast; see `fast_seconds`."""

_FILL = """
def fill(a, value, start, stop):
    for i in range(start, stop):
        a[i] = value
"""


def cpu_name() -> str:
    """Return the operating system's name of this CPU."""
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cache_sizes(cpus: Path = CPU_FOLDER) -> dict[str, float]:
    """Return ``l1_kib``, ``l2_kib`` and ``l3_kib`` of the first core; unknown sizes are absent."""
    sizes = {}
    for cache in sorted(cpus.glob("cpu0/cache/index*")):
        with suppress(OSError, ValueError):  # virtual machines may leave files out or empty
            level = (cache / "level").read_text().strip()
            kind = (cache / "type").read_text().strip()
            size = (cache / "size").read_text().strip()
            if kind in ("Data", "Unified"):
                number = int(size[:-1])
                unit = size[-1:]
                sizes[f"l{int(level)}_kib"] = number * _KIB[unit]
    if sizes:
        return sizes

    names = {"l1_kib": "l1d", "l2_kib": "l2", "l3_kib": "l3"}
    bytes_of = {spec: _sysctl(f"hw.{name}cachesize") for spec, name in names.items()}
    return {spec: int(text) / 1024 for spec, text in bytes_of.items() if text.isdigit()}


def _sysctl(name: str) -> str:
    """Return a value of macOS's kernel; "" on other systems, and if it does not exist."""
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def clock_mhz() -> float:
    """Return the highest clock; 0 if unknown."""
    try:
        frequency = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):  # depends on the platform
        return 0.0
    return float(frequency.max) if frequency else 0.0


def host_features() -> set[str]:
    """Return the instruction-set extensions of this CPU, by LLVM's names."""
    try:
        binding = require("llvmlite.binding", "cpu", "the CPU's features")
        return {name for name, has in binding.get_host_cpu_features().items() if has}
    except (MissingExtra, RuntimeError):
        return set()


def architecture(features: set[str]) -> str:
    """Return the machine and its widest vector extension, e.g. ``x86_64+avx512``."""
    name = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
    for feature, extension in _EXTENSIONS.items():
        if feature in features:
            return f"{machine}+{extension}"
    return machine


def vector_bits(features: set[str]) -> float:
    """Return the width of the widest SIMD register; 0 if unknown."""
    # SVE is the only extension whose width its name does not tell.
    if "sve" in features:
        with suppress(OSError, ValueError):
            return 8.0 * int(Path("/proc/sys/abi/sve_default_vector_length").read_text())
        return 128.0
    for feature, bits in _VECTOR_BITS.items():
        if feature in features:
            return bits
    return 0.0


def measure_cpu() -> dict[str, float]:
    """Measure bandwidth (`triad_gbps`) and compute rates (`fma_rates`)."""
    return {
        "memory_gbps": triad_gbps(_triad_elements()),
        "fp32_gflops": max(fma_rates(np.float32).values()),
        "fp64_gflops": max(fma_rates(np.float64).values()),
    }


def triad_gbps(elements: int, seconds: float = 0.4) -> float:
    """Return main-memory bandwidth of all cores by the STREAM triad, in GB/s.

    ``a[i] = b[i] + s·c[i]`` in double precision (McCalpin, IEEE TCCA Newsletter, December 1995).
    The result is the better of ordinary and non-temporal stores, at the faster repeats; these take
    ``seconds``. As in STREAM, three arrays are counted; they must be far larger than the last-level
    cache. An ordinary store also reads its cache line (write-allocate), which is not counted: where
    ordinary stores won, the memory moved a third more.
    """
    elements -= elements % _LANES
    ranges = codegen.split_range(elements, available_cores(), _LANES)
    arrays = [aligned(elements, np.float64) for _ in range(3)]

    # First touch: the core that uses a page allocates it in its own memory.
    fill = codegen.compile_function(_FILL, "fill")
    for array in arrays:
        codegen.run_parallel(partial(fill, array, 1.0), ranges)

    best_s = math.inf
    for store in ("store", "store_past_cache"):
        triad = codegen.compile_function(_triad_source(store), "triad")
        run = partial(codegen.run_parallel, partial(triad, *arrays, 3.0), ranges)
        best_s = min(best_s, fast_seconds(run, seconds / 2))
    return 3 * 8 * elements / best_s / 1e9


def _triad_source(store: str) -> str:
    # Explicit vectors: Numba leaves a loop over three arrays scalar, at half the bandwidth.
    body = [
        f"s = splat(scalar, {_LANES})",
        f"for i in range(start, stop, {_LANES}):",
        f"    {store}(a, i, fma(s, load(c, i, {_LANES}), load(b, i, {_LANES})))",
    ]
    return codegen.function_source("triad", "a, b, c, scalar, start, stop", body)


def aligned(elements: int, dtype: type[np.generic]) -> Any:
    """Return an array of 8-byte elements from a cache line on; its pages are not allocated yet."""
    array = np.empty(elements + _LANES, dtype)
    skip = -array.ctypes.data // 8 % _LANES
    return array[skip : skip + elements]


def _triad_elements() -> int:
    """Return a length that exceeds all caches and takes at most 5 % of the memory."""
    all_caches = 1024 * cache_sizes().get("l3_kib", 0.0) * _last_level_caches()
    wanted = max(4 * all_caches, 64 * 2**20)
    affordable = psutil.virtual_memory().available * _MAX_TRIAD_SHARE / 3
    return int(min(wanted, affordable) / 8)


def _last_level_caches(cpus: Path = CPU_FOLDER) -> int:
    """Return the number of third-level caches; AMD's larger processors have several."""
    shared = set()
    for path in cpus.glob("cpu[0-9]*/cache/index3/shared_cpu_list"):
        with suppress(OSError):
            shared.add(path.read_text().strip())
    return max(1, len(shared))


def fma_rates(dtype: type[np.floating[Any]], seconds: float = 0.1) -> dict[int, float]:
    """Return the rates of fused multiply-adds on all cores, 1e9 operations/s, by vector bits.

    Each core keeps a dozen accumulators in registers: enough to hide the latency of two pipelines,
    few enough for sixteen registers. The widest vector is not the fastest on every machine.

    All cores run at once. Each core is timed separately in slices of a millisecond, and its faster
    slices count. Another process that shares a core therefore does not lower the result.
    """
    threads = available_cores()
    rates = {}
    # Many cores need longer slices, because their threads queue to start the next slice.
    iterations = _ITERATIONS * max(1, threads // 32)
    for bits in (128, 256, 512):
        lanes = bits // (8 * np.dtype(dtype).itemsize)
        loop = codegen.compile_function(_fma_source(lanes), "accumulate")
        call = partial(loop, dtype(0.5), dtype(1e-3), iterations)
        operations = 2.0 * _ACCUMULATORS * lanes * iterations
        rates[bits] = operations * _calls_per_second(call, threads, seconds) / 1e9
    return rates


def _calls_per_second(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Return the calls per second of all threads together, from each thread's faster calls."""
    fast_s = [0.0] * threads

    def repeat(thread: int, _: int) -> None:
        fast_s[thread] = fast_seconds(call, seconds)

    # The first call compiles.
    call()
    codegen.run_parallel(repeat, [(i, i + 1) for i in range(threads)])
    return sum(1 / s for s in fast_s)


def _fma_source(lanes: int) -> str:
    accumulators = [f"s{i}" for i in range(_ACCUMULATORS)]
    body = [f"x = splat(factor, {lanes})", f"y = splat(addend, {lanes})"]
    # Different start values, or the compiler would merge the accumulators.
    body += [f"{s} = fma({before}, x, y)" for before, s in pairwise(["y", *accumulators])]
    body += ["for _ in range(iterations):"]
    body += [f"    {s} = fma({s}, x, y)" for s in accumulators]
    # The sum keeps every accumulator alive.
    terms = " + ".join(f"total({s})" for s in accumulators)
    return codegen.function_source(
        "accumulate", "factor, addend, iterations", [*body, f"return {terms}"]
    )


def fast_seconds(call: Callable[[], object], seconds: float) -> float:
    """Call for ``seconds``, and return the first decile of the call times.

    The minimum is not a good estimate: on shared machines, some calls appear to take half of the
    possible time. The first call, which may compile, does not count.
    """
    call()
    ends = [time.perf_counter()]
    while ends[-1] < ends[0] + seconds or len(ends) < 4:
        call()
        ends.append(time.perf_counter())
    return float(np.quantile(np.diff(ends), _FAST_QUANTILE))
