"""Measures this CPU in detail: its caches, the rates of its vector units, and its overheads.

Latency is that of dependent loads in random order, one per cache line (pointer chasing), and
bandwidth that of vector loads in order, both by one core over working sets of growing size. A level
of the hierarchy ends where latency leaves its plateau for good. See McVoy and Staelin, lmbench,
USENIX 1996; Luo et al., "Benchmarking and dissecting the Nvidia Hopper GPU architecture", 2024.
"""

import math
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from foretune.collect.cpu import aligned, cache_sizes, fast_seconds, fma_rates
from foretune.collect.kernels import numba_codegen as codegen
from foretune.device import available_cores
from foretune.support.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd

LINE_BYTES = 64
SIZES_PER_OCTAVE = 4
MIN_KIB = 4
MAX_KIB = 1 << 20
ROUNDS = 2  # the two rounds measure the same: their difference shows how far a value can be trusted
SAMPLE_S = 2e-4
"""Duration of a sample: long relative to a call, short relative to the scheduler's time slices."""
LEAVES_PLATEAU = 2.0
"""If latency over that of the level exceeds this, the working set no longer fits. Misses of the
address cache alone stay below it."""
CLEAR_OF_EDGE = 1.4
"""A level's latency is read at working sets this far above the end of the level before."""
UNSTABLE = 0.1  # relative difference of the rounds above which a level's values are marked
CORE_PAIRS = 8  # maximum number of pairs of cores between which a cache line is sent


@dataclass(frozen=True)
class Level:
    """A cache (``L1``, ``L2``, ``L3``), or main ``memory``.

    ``size_kib`` is the largest working set that it serves (infinite for memory), ``latency_ns`` the
    time of a dependent load, ``read_gbps`` the rate at which one core reads, GB/s, and
    ``difference`` the median, over its sizes, of the relative difference between two rounds.
    """

    name: str
    size_kib: float
    latency_ns: float
    read_gbps: float
    difference: float

    @property
    def stable(self) -> bool:
        """Whether both rounds agree."""
        return self.difference <= UNSTABLE


@dataclass(frozen=True)
class MemoryCurve:
    """Latency of a dependent load, and rate of reading, over ascending working sets.

    ``levels`` are the detected levels, nearest first; the last is main memory.
    """

    sizes_kib: tuple[float, ...]
    latency_ns: tuple[float, ...]
    read_gbps: tuple[float, ...]
    levels: tuple[Level, ...]

    @classmethod
    def measure(
        cls,
        sizes_kib: Sequence[int],
        latency_ns: Callable[[int], float],
        read_gbps: Callable[[int], float],
        progress: Progress,
    ) -> "MemoryCurve":
        """Return the curve of `ROUNDS` over all working sets."""
        latencies, rates = (np.empty((ROUNDS, len(sizes_kib))) for _ in range(2))
        for number in range(ROUNDS):
            for i, size in enumerate(sizes_kib):
                latencies[number, i], rates[number, i] = latency_ns(size), read_gbps(size)
                progress.advance(f"{size:,} KiB")
        latency = latencies.min(axis=0)
        rate = rates.max(axis=0)
        return cls(
            tuple(map(float, sizes_kib)),
            tuple(latency.tolist()),
            tuple(rate.tolist()),
            find_levels(sizes_kib, latencies, rate),
        )

    def to_frame(self) -> "pd.DataFrame":
        """Return a row per working set, with its latency and rate."""
        import pandas as pd

        columns = ("sizes_kib", "latency_ns", "read_gbps")
        return pd.DataFrame({name: getattr(self, name) for name in columns})


@dataclass(frozen=True)
class Dissection:
    """Measurements of a CPU: its caches and main memory as one core sees them, and its rates.

    ``fma_gflops`` are of all cores by type and bits of a vector (``fp32 x 256``),
    ``loaded_latency_ns`` is main memory's while all other cores read (NaN with one core),
    ``core_to_core_ns`` the time to send a cache line to another core, for a few pairs. ``call_us``
    is the time to call a compiled function from Python, ``parallel_us`` to start and end work on
    all cores, ``page_us`` to touch a page for the first time.
    """

    memory: MemoryCurve
    fma_gflops: dict[str, float]
    loaded_latency_ns: float
    core_to_core_ns: dict[str, float]
    call_us: float
    parallel_us: float
    page_us: float

    @property
    def specs(self) -> dict[str, float]:
        """The rates among `foretune.device.SPECS`, without those of unstable levels."""
        stable = {level.name: level for level in self.memory.levels if level.stable}
        rates = {f"{n.lower()}_gbps": c.read_gbps for n, c in stable.items() if n != "memory"}
        return rates | ({"memory_ns": stable["memory"].latency_ns} if "memory" in stable else {})


def dissect_cpu(progress: Progress = SILENT, max_kib: int | None = None) -> Dissection:
    """Measure this CPU; takes about half a minute, and a quiet machine.

    ``max_kib`` is the largest working set, by default four times the caches, at most 5 % of the
    free memory. Raises MissingExtra without Numba.
    """
    wanted = 4 * cache_sizes().get("l3_kib", 16 * 1024.0)
    free_kib = psutil.virtual_memory().available / 1024
    sizes = working_sets(max_kib or int(min(wanted, free_kib * 0.05, MAX_KIB)))
    progress.start("measuring the CPU", ROUNDS * len(sizes) + 4)
    buffer = _Buffer(sizes[-1])
    curve = MemoryCurve.measure(sizes, buffer.latency_ns, buffer.read_gbps, progress)
    fma = {
        f"{name} x {bits}": rate
        for name, dtype in (("fp32", np.float32), ("fp64", np.float64))
        for bits, rate in fma_rates(dtype).items()
    }
    progress.advance("multiply-adds")
    loaded = buffer.loaded_latency_ns()
    progress.advance("memory under load")
    pairs = _core_to_core_ns()
    progress.advance("cores")
    overheads = _call_us(), _parallel_us(), _page_us()
    progress.advance("overheads")
    return Dissection(curve, fma, loaded, pairs, *overheads)


def working_sets(max_kib: int) -> list[int]:
    """Return sizes in KiB, four per octave."""
    octaves = np.arange(
        math.log2(MIN_KIB) * SIZES_PER_OCTAVE, math.log2(max_kib) * SIZES_PER_OCTAVE + 1e-9
    )
    return sorted({int(2 ** (e / SIZES_PER_OCTAVE)) for e in octaves})


def find_levels(
    sizes_kib: Sequence[float], latency_ns: np.ndarray, read_gbps: np.ndarray
) -> tuple[Level, ...]:
    """Return the memory levels that a latency curve shows.

    ``sizes_kib`` ascend; ``latency_ns`` has shape (rounds, sizes), ``read_gbps`` (sizes,).
    """
    sizes = np.asarray(sizes_kib, dtype=float)
    fastest = latency_ns.min(axis=0)
    # what a larger working set reaches, a smaller one does too: higher values are disturbances
    lower = np.minimum.accumulate(fastest[::-1])[::-1]
    differences = np.ptp(latency_ns, axis=0) / fastest
    levels: list[Level] = []
    begin = 0
    for name in ("L1", "L2", "L3", "memory"):
        clear = int(np.searchsorted(sizes, sizes[begin - 1] * CLEAR_OF_EDGE)) if begin else 0
        plateau = lower[min(clear, len(sizes) - 1)]
        beyond = np.flatnonzero(lower > LEAVES_PLATEAU * plateau)
        last = name == "memory" or len(beyond) == 0
        end = len(sizes) if last else int(beyond[0])
        inside = slice(min(clear, end - 1), end)
        levels.append(
            Level(
                "memory" if last else name,
                math.inf if last else float(sizes[end - 1]),
                float(fastest[-1] if last else plateau),
                float(read_gbps[-1] if last else read_gbps[inside].max()),
                float(np.median(differences[inside])),
            )
        )
        if last:
            break
        begin = end
    return tuple(levels)


_CHASE = """
def chase(lines, at, steps):
    for _ in range(steps):
        at = lines[at]
    return at
"""
_READ_VECTORS = 16
_LANES = 8
_WORDS = LINE_BYTES // 8


class _Buffer:
    """Memory whose first part is a working set."""

    def __init__(self, max_kib: int) -> None:
        self._rng = np.random.default_rng(0)
        self._lines = aligned(max_kib * 1024 // 8, np.int64)
        self._lines[:] = 0  # allocates the pages
        self._numbers = self._lines.view(np.float64)
        self._chase = codegen.compile_function(_CHASE, "chase")
        self._read = codegen.compile_function(_read_source(), "read")

    def latency_ns(self, size_kib: float, seconds: float = 0.04) -> float:
        chase = self._chaser(size_kib)
        return fast_seconds(chase, seconds) / chase.keywords["steps"] * 1e9

    def read_gbps(self, size_kib: float, seconds: float = 0.02) -> float:
        words = int(size_kib * 1024) // 8
        words -= words % (_READ_VECTORS * _LANES)
        times = max(1, (1 << 20) // (8 * words))
        call = partial(self._read, self._numbers[:words], times)
        return 8 * words * times / fast_seconds(call, seconds) / 1e9

    def loaded_latency_ns(self) -> float:
        """Return the latency of memory while all other cores read from it; NaN with one core."""
        cores = available_cores()
        if cores == 1:
            return math.nan
        size_kib = len(self._lines) * 8 / 1024
        chase = self._chaser(size_kib)
        done = threading.Event()
        found = []
        others = np.array_split(np.zeros(len(self._lines)), cores - 1)
        words = len(others[-1]) - len(others[-1]) % (_READ_VECTORS * _LANES)

        def work(core: int, _: int) -> None:
            if core == 0:
                found.append(fast_seconds(chase, 0.2) / chase.keywords["steps"] * 1e9)
                done.set()
            while not done.is_set():
                self._read(others[core - 1][:words], 1)

        codegen.run_parallel(work, [(core, core + 1) for core in range(cores)])
        return float(found[0])

    def _chaser(self, size_kib: float) -> "partial[None]":
        """Return a function that follows ``steps`` lines of a working set in random order."""
        lines = self._rng.permutation(int(size_kib * 1024) // LINE_BYTES) * _WORDS
        self._lines[lines] = np.roll(lines, -1)
        at = int(lines[0])

        def chase(steps: int) -> None:
            nonlocal at
            at = self._chase(self._lines, at, steps)

        chase(min(len(lines), 1 << 21))  # brings the working set into the caches that it fits
        step_s = fast_seconds(partial(chase, 1000), 0.0) / 1000
        return partial(chase, steps=max(1000, int(SAMPLE_S / step_s)))


def _read_source() -> str:
    sums = [f"s{i}" for i in range(_READ_VECTORS)]
    body = [f"{s} = splat(0.0, {_LANES})" for s in sums]
    body += ["for _ in range(times):"]
    body += [f"    for i in range(0, len(a), {_READ_VECTORS * _LANES}):"]
    body += [
        f"        {s} = add({s}, load(a, i + {_LANES * k}, {_LANES}))" for k, s in enumerate(sums)
    ]
    body += ["return " + " + ".join(f"total({s})" for s in sums)]
    return codegen.function_source("read", "a, times", body)


def _core_to_core_ns() -> dict[str, float]:
    """Return the time to send a cache line between cores; empty with one core."""
    from machine_probe.ping_pong import bounce

    cores = available_cores()
    others = sorted({int(c) for c in np.linspace(1, cores - 1, CORE_PAIRS)}) if cores > 1 else []
    return {f"0-{other}": _transfer_ns(bounce, other) for other in others}


def _transfer_ns(bounce: Any, other: int, rallies: int = 30, bounces: int = 200) -> float:
    ball = aligned(_WORDS, np.int64)
    ball[:] = 0
    seconds: list[float] = []

    def play(core: int, _: int) -> None:
        for _ in range(rallies if core in (0, other) else 0):
            bounce(ball, int(core == other), 1)  # now both are there
            start = time.perf_counter()
            bounce(ball, int(core == other), bounces)
            if core == 0:
                seconds.append(time.perf_counter() - start)

    codegen.run_parallel(play, [(core, core + 1) for core in range(other + 1)])
    return float(np.quantile(seconds, 0.1)) / (2 * bounces) * 1e9


def _call_us() -> float:
    nothing = codegen.compile_function(codegen.function_source("nothing", "a", ["pass"]), "nothing")
    array = np.zeros(1)
    calls = 1000

    def many() -> None:
        for _ in range(calls):
            nothing(array)

    return fast_seconds(many, 0.05) / calls * 1e6


def _parallel_us() -> float:
    ranges = [(core, core + 1) for core in range(available_cores())]
    return fast_seconds(partial(codegen.run_parallel, lambda start, stop: None, ranges), 0.1) * 1e6


def _page_us(pages: int = 2048) -> float:
    def touch() -> None:
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1

    return fast_seconds(touch, 0.1) / pages * 1e6
