"""The devices of this machine: what the system says of them, and what a short probe measures.

Nobody publishes the peak rates of the processor a virtual machine happens to run on, so the two
numbers a roofline needs are measured once and remembered: bandwidth by the STREAM triad, and
arithmetic by a loop of independent fused multiply-adds.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
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
        names = {
            "l1_kib": "hw.l1dcachesize",
            "l2_kib": "hw.l2cachesize",
            "l3_kib": "hw.l3cachesize",
        }
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
        with contextlib.suppress(OSError):
            partial.unlink()


_MEASURED = ("memory_gbps", "fp32_gflops", "fp64_gflops")


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
    ranges = split(elements, available_cores(), _LANES)
    arrays = [_aligned(elements) for _ in range(3)]
    fill, best_s = compiled(_FILL, "fill"), math.inf
    for array in arrays:
        # Pages land in the memory of the core that touches them first: the one that will use them.
        in_parallel(_over(fill, array, 1.0), ranges)
    for store in ("store", "store_past_cache"):
        work = _over(compiled(_triad_source(store), "triad"), *arrays, 3.0)
        best_s = min(best_s, _fast_seconds(partial(in_parallel, work, ranges), seconds / 2))
    return 3 * 8 * elements / best_s / 1e9


def _triad_source(store: str) -> str:
    # In explicit vectors: Numba's own loop over three arrays stays scalar, at half the bandwidth.
    body = [
        f"s = splat(scalar, {_LANES})",
        f"for i in range(start, stop, {_LANES}):",
        f"    {store}(a, i, fma(s, load(c, i, {_LANES}), load(b, i, {_LANES})))",
    ]
    return define("triad", "a, b, c, scalar, start, stop", body)


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
        loop = compiled(_fma_source(lanes), "accumulate")
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
    in_parallel(repeat, [(i, i + 1) for i in range(threads)])
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
    return define("accumulate", "factor, addend, iterations", [*body, f"return {terms}"])


def _over(function: Any, *args: Any) -> Callable[[int, int], object]:
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


# NVIDIA GPUs --------------------------------------------------------------------------------------

# Single-precision units of one multiprocessor, by compute capability (CUDA C++ Programming Guide,
# "Compute Capabilities"); the driver counts units, not multiprocessors. 128 for all newer ones.
_UNITS_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


def local_gpus(nvml: Any = None) -> list[Device]:
    """Return the NVIDIA GPUs this process may use, in CUDA's order; none without a driver.

    Specs are those of the shipped table, where it has the device, replaced by what the driver
    says of this very board: memory, power limit, clock and number of multiprocessors.

    Args:
        nvml: the module ``pynvml``, or one that behaves like it.
    """
    try:
        nvml = nvml or require("pynvml", "gpu", "finding GPUs")
        nvml.nvmlInit()
    except MissingExtra:
        return []
    except nvml.NVMLError:  # no driver, or no GPU it drives
        return []
    try:
        return [_gpu(nvml, handle) for handle in visible_gpus(nvml)]
    except nvml.NVMLError:  # a GPU has just fallen off the bus
        return []
    finally:
        nvml.nvmlShutdown()


def visible_gpus(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process.

    Numbers in that variable are taken as NVML's, which orders GPUs by PCI address; CUDA's own
    order differs only between unequal GPUs, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return handles
    visible = []
    for entry in chosen.split(","):
        matches = [
            handle
            for i, handle in enumerate(handles)
            if entry.strip() == str(i)
            or (
                entry.strip().startswith("GPU-")
                and nvml.nvmlDeviceGetUUID(handle).startswith(entry.strip())
            )
        ]
        if not matches:  # as in CUDA, nothing after an invalid entry counts
            break
        visible += matches[:1]
    return visible


def _gpu(nvml: Any, handle: Any) -> Device:
    name = str(nvml.nvmlDeviceGetName(handle))
    try:
        known = find_device(name)
    except UnknownName:
        known = Device(name, "gpu")
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    units = _ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    limit_mw = _ask(nvml, "nvmlDeviceGetPowerManagementLimit", handle)
    clock_mhz = _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
    said = {
        "cores": units / _UNITS_PER_SM.get(tuple(capability), 128) if units and capability else 0,
        "clock_mhz": clock_mhz or 0,
        "memory_gib": memory.total / 2**30 if memory else 0,
        "power_limit_w": limit_mw / 1000 if limit_mw else 0,
    }
    return Device(
        name=name,
        kind="gpu",
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else known.architecture,
        specs={**known.specs, **{spec: float(value) for spec, value in said.items() if value > 0}},
        source="; ".join(filter(None, ["NVIDIA driver", known.source])),
    )


def _ask(nvml: Any, question: str, *args: Any) -> Any:
    """Return what the driver answers; None where this driver or board has no answer."""
    try:
        return getattr(nvml, question)(*args)
    except (AttributeError, nvml.NVMLError):
        return None
