"""Takes this machine apart: caches, rates and overheads, beside lscpu and likwid-bench.

    python benchmarks/dissection.py [--repeats 15]

Bandwidth is read by one core, in turns, the better of all repeats of either (``likwid-bench -t
load_avx512``, or the widest ``load`` that runs), beside a sum by NumPy. Sizes are those that Linux
tells.
"""

import argparse
import re
import shutil
import subprocess

import numpy as np
from machine import heading, markdown
from machine_probe.dissection import _Buffer, dissect_cpu

from foretune.collect import local_device
from foretune.collect.cpu import cache_sizes, fast_seconds

VOLUME = 1 << 28
"""Bytes that a run of likwid-bench reads: milliseconds, since it reports a mean, and other
processes may take the core away."""
LOADS = ("load_avx512", "load_avx", "load_sse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    found = dissect_cpu()
    print(heading("A machine taken apart", local_device()))
    told = {name.removesuffix("_kib").upper(): size for name, size in cache_sizes().items()}
    rows = []
    for level in found.memory.levels:
        memory = level.name == "memory"
        size = int(found.memory.sizes_kib[-1] if memory else level.size_kib / 2)
        ours, theirs, by_numpy = compare(size, repeats)
        rows.append(
            [
                level.name,
                "-" if memory else f"{level.size_kib:,.0f}",
                f"{told[level.name]:,.0f}" if level.name in told else "-",
                f"{level.size_kib / told[level.name]:.2f}" if level.name in told else "-",
                f"{level.latency_ns:.1f}",
                f"{ours:.1f}",
                f"{theirs:.1f}",
                f"{ours / theirs:.2f}",
                f"{by_numpy:.1f}",
                f"{level.difference:.1%}",
            ]
        )
    columns = [
        "level",
        "KiB",
        "Linux says",
        "ratio",
        "latency, ns",
        "GB/s",
        "likwid-bench",
        "ratio",
        "np.sum",
        "rounds differ by",
    ]
    print(markdown(columns, rows))

    rates = [[kind, f"{rate:,.1f}"] for kind, rate in found.fma_gflops.items()]
    print(markdown(["multiply-adds of all cores, type x bits", "1e9 operations/s"], rates))

    overheads = {
        "memory while all other cores read, ns": found.loaded_latency_ns,
        **{f"cache line between cores {c}, ns": ns for c, ns in found.core_to_core_ns.items()},
        "call of a compiled function, us": found.call_us,
        "work on all cores, us": found.parallel_us,
        "first touch of a page, us": found.page_us,
    }
    print(markdown(["overhead", "time"], [[name, f"{t:,.2f}"] for name, t in overheads.items()]))


def compare(size_kib: int, repeats: int) -> tuple[float, float, float]:
    """Return the rates at which we, likwid-bench (NaN without it) and NumPy read, GB/s."""
    buffer = _Buffer(size_kib)
    numbers = np.zeros(size_kib * 128)
    numbers[:] = 1.0
    rates = []
    for _ in range(repeats):
        ours = buffer.read_gbps(size_kib, seconds=0.2)
        by_numpy = numbers.nbytes / fast_seconds(numbers.sum, 0.1) / 1e9
        rates.append((ours, likwid_gbps(size_kib), by_numpy))
    ours, theirs, by_numpy = np.max(rates, axis=0).tolist()
    return ours, theirs, by_numpy


def likwid_gbps(size_kib: int) -> float:
    """Return what likwid-bench reads on one core, GB/s; NaN if it does not run."""
    if shutil.which("likwid-bench") is None:
        return np.nan
    for load in LOADS:
        times = max(4, VOLUME // (1024 * size_kib))
        command = ["likwid-bench", "-t", load, "-i", str(times), "-w", f"S0:{size_kib}kB:1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if rate := re.search(r"MByte/s:\s+([\d.]+)", done.stdout):
            return float(rate[1]) / 1e3
    return np.nan


if __name__ == "__main__":
    main()
