"""Latency and bandwidth of a GPU's caches and memory; the twin of `machine_probe.dissection`.

One program follows pointers; all multiprocessors read the working set repeatedly.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from foretune.collect.timing import Timer, gpu_timer
from foretune.device import Device
from foretune.support.progress import SILENT, Progress
from machine_probe.dissection import LINE_BYTES, ROUNDS, MemoryCurve, working_sets
from machine_probe.triton_probe import chase, read

STEPS = 4096  # dependent loads per launch
BLOCK = 1024
PROGRAMS_PER_CORE = 8
READS = 1 << 28  # bytes that a launch reads at least
_WORDS = LINE_BYTES // 4


def dissect_gpu(device: Device, progress: Progress = SILENT) -> MemoryCurve:
    """Measure a GPU of this machine; takes a few seconds."""
    sizes = working_sets(int(4 * max(device.specs.get("l2_kib", 0.0), 32 * 1024)))
    timer = gpu_timer(device, warm_cache=True)
    memory = torch.zeros(sizes[-1] * 256, dtype=torch.int32, device=f"cuda:{device.index}")
    programs = int(device.specs.get("cores", 100)) * PROGRAMS_PER_CORE
    progress.start("measuring the GPU", ROUNDS * len(sizes))
    return MemoryCurve.measure(
        sizes,
        lambda size: latency_ns(memory, size, timer),
        lambda size: read_gbps(memory, size, programs, timer),
        progress,
    )


def latency_ns(memory: torch.Tensor, size_kib: int, timer: Timer, steps: int = STEPS) -> float:
    """Return the time of a dependent load in a working set."""
    position = link(memory, size_kib)
    lines = size_kib * 1024 // LINE_BYTES
    chase[(1,)](memory, position, min(lines, 1 << 20))  # brings them into the caches
    launch = partial(chase[(1,)], memory, position, steps)
    return _fast_ms(launch, timer) / steps * 1e6


def read_gbps(memory: torch.Tensor, size_kib: int, programs: int, timer: Timer) -> float:
    """Return the rate at which all multiprocessors read a working set."""
    blocks = max(1, size_kib * 256 // BLOCK)
    times = max(1, READS // (blocks * BLOCK * 4))
    sums = torch.zeros(programs * BLOCK, dtype=torch.int32, device=memory.device)
    launch = partial(read[(programs,)], memory, sums, blocks, times, BLOCK)
    return blocks * BLOCK * 4 * times / _fast_ms(launch, timer) / 1e6


def link(memory: torch.Tensor, size_kib: int) -> torch.Tensor:
    """Link the lines of a working set to a ring in random order; return a position in it."""
    order = torch.randperm(size_kib * 1024 // LINE_BYTES, device=memory.device) * _WORDS
    memory[order] = order.roll(-1).to(torch.int32)
    return order[:1].to(torch.int32)


def _fast_ms(launch: Any, timer: Timer, samples: int = 20) -> float:
    launch()
    return float(np.quantile([timer.sample_ms(launch, 1) for _ in range(samples)], 0.1))
