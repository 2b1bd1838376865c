"""The devices of this machine: what the system says of them, and what a short probe measures.

Nobody publishes the peak rates of the processor a virtual machine happens to run on, so the two
numbers a roofline needs are measured once and remembered: bandwidth by the STREAM triad, and
arithmetic by a loop of independent fused multiply-adds.
"""

import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import psutil

from foretune.collect.numba_source import compiled, define
from foretune.collect.threads import in_parallel, split
from foretune.device import Device, available_cores, find_device
from foretune.errors import MissingExtra, UnknownName
from foretune.extras import require

PROBE_VERSION = 1
"""Raised when the probe changes, so that figures of an older one are measured again."""

_CPUS = Path("/sys/devices/system/cpu")
_memo: dict[Path, dict[str, float]] = {}  # where the cache cannot be written


def local_devices() -> list[Device]:
    """Return this machine's CPU and the NVIDIA GPUs this process may use."""
    return [local_cpu(), *local_gpus()]


def local_device(name: str | None = None) -> Device:
    """Return one device of this machine.

    Args:
        name: ``cpu`` (the default), ``cuda:0`` and so on, ``cuda`` for the first GPU, or the
            name of a device as its driver gives it.

    Raises:
        UnknownName: this machine has no such device.
    """
    if name is None or name.lower() == "cpu":
        return local_cpu()
    gpus = local_gpus()
    named = {f"cuda:{i}": gpu for i, gpu in enumerate(gpus)}
    wanted = "cuda:0" if name.lower() in ("cuda", "gpu") else name.lower()
    if wanted in named:
        return named[wanted]
    for gpu in gpus:
        if _same(name, gpu.name):
            return gpu
    if _same(name, cpu_name()):
        return local_cpu()
    raise UnknownName("device", name, ["cpu", *named, *{gpu.name for gpu in gpus}])


def _same(name: str, driver_name: str) -> bool:
    if name.lower() == driver_name.lower():
        return True
    try:
        return find_device(name).name == driver_name
    except UnknownName:
        return False


# The CPU ------------------------------------------------------------------------------------------


def local_cpu() -> Device:
    """Return the descriptor of this CPU; specs that cannot be found out are absent.

    ``memory_gbps``, ``fp32_gflops`` and ``fp64_gflops`` are those of `probe_cpu`: measured on the
    first call on a machine, read from a cache afterwards, absent where Numba is not installed.
    """
    features = _host_features()
    memory_gib = psutil.virtual_memory().total / 2**30
    specs = {"cores": float(available_cores()), "clock_mhz": _clock_mhz(), **cache_sizes()}
    specs |= {"memory_gib": memory_gib, "vector_bits": _vector_bits(features)}
    try:
        specs |= probe_cpu()
        source = f"operating system; rates measured (probe {PROBE_VERSION})"
    except MissingExtra:
        source = "operating system; rates not measured: pip install 'foretune[cpu]'"
    return Device(
        name=cpu_name(),
        kind="cpu",
        architecture=_architecture(features),
        specs={spec: value for spec, value in specs.items() if value > 0},
        source=source,
    )


def cpu_name() -> str:
    """Return what the operating system calls this CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:  # not Linux
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cache_sizes(cpus: Path = _CPUS) -> dict[str, float]:
    """Return ``l1_kib``, ``l2_kib`` and ``l3_kib`` of the first core, those that are known.

    Args:
        cpus: where Linux describes its processors.
    """
    sizes = {}
    for cache in sorted(cpus.glob("cpu0/cache/index*")):
        try:
            level, kind, size = (
                (cache / part).read_text().strip() for part in ("level", "type", "size")
            )
            if kind in ("Data", "Unified"):
                sizes[f"l{int(level)}_kib"] = _kib(size)
        except (OSError, ValueError):  # virtual machines may leave files out or empty
            continue
    if not sizes:
        names = {"l1_kib": "hw.l1dcachesize", "l2_kib": "hw.l2cachesize", "l3_kib": "hw.l3cachesize"}
        found = {spec: _sysctl(name) for spec, name in names.items()}
        sizes = {spec: int(text) / 1024 for spec, text in found.items() if text.isdigit()}
    return sizes


def _kib(size: str) -> float:
    return int(size[:-1]) * {"K": 1.0, "M": 1024.0, "G": 1024.0**2}[size[-1:]]


def _sysctl(name: str) -> str:
    """Return a value of macOS's sysctl; empty where there is none."""
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _clock_mhz() -> float:
    try:
        frequency = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):  # as the platform pleases
        return 0.0
    return float(frequency.max) if frequency else 0.0


def _host_features() -> set[str]:
    """Return the instruction-set extensions of this CPU, by LLVM's names."""
    try:
        binding = require("llvmlite.binding", "cpu", "the CPU's features")
        return {name for name, has in binding.get_host_cpu_features().items() if has}
    except (MissingExtra, RuntimeError):
        return set()


def _architecture(features: set[str]) -> str:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    for feature, name in (
        ("avx512f", "avx512"), ("avx2", "avx2"), ("avx", "avx"), ("sse2", "sse"),
        ("sve", "sve"), ("neon", "neon"),
    ):  # fmt: skip
        if feature in features:
            return f"{machine}+{name}"
    return machine


def _vector_bits(features: set[str]) -> float:
    if "sve" in features:  # the only extension whose width is not in its name
        try:
            return 8.0 * int(Path("/proc/sys/abi/sve_default_vector_length").read_text())
        except (OSError, ValueError):
            return 128.0
    widths = {"avx512f": 512.0, "avx": 256.0, "sse2": 128.0, "neon": 128.0}
    return next((bits for feature, bits in widths.items() if feature in features), 0.0)


# What is measured, and its cache ------------------------------------------------------------------


def probe_cpu(refresh: bool = False) -> dict[str, float]:
    """Return the measured ``memory_gbps``, ``fp32_gflops`` and ``fp64_gflops`` of this CPU.

    Measuring takes a few seconds, most of them compilation. The result is kept as JSON under the
    user's cache directory (or the one the environment variable ``FORETUNE_CACHE`` names), for
    this CPU, this number of cores and this version of the probe. A cache that is damaged or
    cannot be written is no error: the probe runs again.

    Args:
        refresh: measure even if there is a cached result.

    Raises:
        MissingExtra: Numba is not installed.
    """
    machine: dict[str, Any] = {
        "probe": PROBE_VERSION,
        "cpu": cpu_name(),
        "architecture": _architecture(_host_features()),  # a virtual machine's name says little
        "cores": available_cores(),
        **cache_sizes(),
    }
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_directory() / f"cpu-{digest}.json"
    cached = None if refresh else _memo.get(path) or _read(path)
    if not cached:
        cached = measure_cpu()
        _write(path, {"machine": machine, "specs": cached})
    _memo[path] = cached
    return dict(cached)


def cache_directory() -> Path:
    """Return where probed figures are kept."""
    return Path(os.environ.get("FORETUNE_CACHE") or platformdirs.user_cache_dir("foretune"))


def _read(path: Path) -> dict[str, float] | None:
    try:
        specs = json.loads(path.read_text(encoding="utf-8"))["specs"]
        found = {spec: float(specs[spec]) for spec in _MEASURED}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if all(0 < value < math.inf for value in found.values()) else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")  # so that nobody ever reads half a file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:  # read-only or full: the memo serves this process
        partial.unlink(missing_ok=True)


_MEASURED = ("memory_gbps", "fp32_gflops", "fp64_gflops")


def measure_cpu() -> dict[str, float]:
    """Measure this CPU now; see `triad_gbps` and `fma_gflops`."""
    return {
        "memory_gbps": triad_gbps(_triad_elements()),
        "fp32_gflops": fma_gflops(np.float32),
        "fp64_gflops": fma_gflops(np.float64),
    }


_TRIAD = """
def triad(a, b, c, scalar, start, stop):
    for i in range(start, stop):
        a[i] = b[i] + scalar * c[i]
"""
_FILL = """
def fill(a, value, start, stop):
    for i in range(start, stop):
        a[i] = value
"""


def triad_gbps(elements: int, seconds: float = 0.5) -> float:
    """Return main-memory bandwidth of all cores by the STREAM triad, in GB/s.

    ``a[i] = b[i] + s·c[i]`` in double precision (McCalpin, IEEE TCCA Newsletter, December 1995),
    the best of several repeats. As in STREAM, three arrays are counted: that a store to a line
    not in the cache first reads it (write-allocate) is not, so the memory itself may have moved a
    third more.

    Args:
        elements: length of each array; together they must be far larger than the last-level cache.
        seconds: how long to repeat.
    """
    triad, fill = compiled(_TRIAD, "triad"), compiled(_FILL, "fill")
    ranges = split(elements, available_cores())
    a, b, c = (np.empty(elements) for _ in range(3))
    for array, value in ((a, 0.0), (b, 1.0), (c, 2.0)):
        # Pages land in the memory of the core that touches them first: the one that will use them.
        in_parallel(_over(fill, array, value), ranges)
    best_s = _best_seconds(lambda: in_parallel(_over(triad, a, b, c, 3.0), ranges), seconds)
    return 3 * a.itemsize * elements / best_s / 1e9


def _triad_elements() -> int:
    """Return a length that is out of reach of all caches and takes at most 5 % of the memory."""
    all_caches = 1024 * cache_sizes().get("l3_kib", 0.0) * _last_level_caches()
    wanted = max(4 * all_caches, 64 * 2**20)
    return int(min(wanted, psutil.virtual_memory().available * 0.05 / 3) / 8)


def _last_level_caches(cpus: Path = _CPUS) -> int:
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

    Args:
        dtype: single or double precision.
        seconds: how long to repeat each width.
    """
    itemsize, threads, rate = np.dtype(dtype).itemsize, available_cores(), 0.0
    for bits in (128, 256, 512):
        lanes = bits // (8 * itemsize)
        loop = compiled(_fma_source(lanes), "accumulate")
        operations = 2.0 * _ACCUMULATORS * lanes * _ITERATIONS * threads
        ranges = split(_ITERATIONS * threads, threads)
        call = _over(loop, dtype(0.5), dtype(1e-3))
        best_s = _best_seconds(lambda c=call, r=ranges: in_parallel(c, r), seconds)  # type: ignore[misc]
        rate = max(rate, operations / best_s / 1e9)
    return rate


_ACCUMULATORS = 12
_ITERATIONS = 500_000  # about a millisecond: thousands of times what starting a thread takes


def _fma_source(lanes: int) -> str:
    accumulators = [f"s{i}" for i in range(_ACCUMULATORS)]
    body = [f"x = splat(factor, {lanes})", f"y = splat(addend, {lanes})"]
    body += [f"{s} = fma(x, y, y)" for s in accumulators]
    body += ["for _ in range(start, stop):"]
    body += [f"    {s} = fma({s}, x, y)" for s in accumulators]
    # Added up, so that no accumulator is dead code.
    terms = " + ".join(f"total({s})" for s in accumulators)
    return define("accumulate", "factor, addend, start, stop", [*body, f"return {terms}"])


def _over(function: Any, *args: Any) -> Callable[[int, int], object]:
    """Return ``function`` with all arguments fixed but the range."""
    return lambda start, stop: function(*args, start, stop)


def _best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest of at least three timed calls, after one that compiles."""
    call()
    best, repeats, end = math.inf, 0, time.perf_counter() + seconds
    while repeats < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        repeats += 1
    return best
