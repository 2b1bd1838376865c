"""What else a machine does while something is measured: times of a busy machine mean little."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import psutil

from foretune.collect.devices import visible_gpus
from foretune.device import Device
from foretune.errors import MissingExtra
from foretune.lazy import require
from foretune.progress import SILENT, Progress

MAX_OTHER_LOAD, MAX_STEAL = 0.1, 0.02
"""Shares of the time of a CPU, taken by other processes or by other guests, that are felt."""
OBSERVE_S = 1.0
"""How long one looks whether a machine is quiet."""
_THROTTLE_REASONS = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down by heat",
    0x40: "slowed down by heat",
    0x80: "slowed down by its power supply",
}
"""NVML's reasons for lower clocks that come from outside; the power limit is part of the device."""


@dataclass(frozen=True)
class MachineLoad:
    """What disturbed a device over some time.

    Attributes:
        other_load: share of the CPU's time in which other processes ran; NaN if unknown.
        steal: share of it that the host gave to other guests.
        slowdown: why the device ran slower than it can; empty if it did not.
        gpu_neighbors: other processes on the GPU.
    """

    other_load: float = math.nan
    steal: float = math.nan
    slowdown: str = ""
    gpu_neighbors: int = 0

    @property
    def disturbance(self) -> str:
        """What may have changed times, in words; empty if nothing."""
        causes = []
        if self.other_load > MAX_OTHER_LOAD:
            causes.append(
                f"other processes kept the CPU busy for {self.other_load:.0%} of the time"
            )
        if self.steal > MAX_STEAL:
            causes.append(f"the host took away {self.steal:.0%} of the CPU's time")
        if self.gpu_neighbors:
            causes.append(f"{self.gpu_neighbors} other processes were on the GPU")
        return "; ".join([*causes, *filter(None, [self.slowdown])])


class LoadMonitor:
    """Sees what disturbs a device between entering and leaving.

    Args:
        device: the CPU, or a GPU that NVML knows; of others nothing is seen.
        nvml: the module ``pynvml``, or one that behaves like it.

    Attributes:
        load: set when the block is left.
    """

    def __init__(self, device: Device, nvml: Any = None) -> None:
        self.load = MachineLoad()
        self._sampler = _GpuSampler(device.index, nvml) if device.kind == "gpu" else _CpuSampler()

    def __enter__(self) -> Self:
        self._sampler.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.load = self._sampler.end()


def wait_until_idle(
    make_monitor: Callable[[], LoadMonitor], max_wait_s: float, progress: Progress = SILENT
) -> MachineLoad:
    """Wait until nothing disturbs a device, or for ``max_wait_s``; return what was seen last.

    Args:
        make_monitor: gives what sees that device, as `foretune.collect.Runner.watch` does.
        max_wait_s: seconds to wait at most; with none, nobody looks.
        progress: told if it did not become quiet.
    """
    if max_wait_s <= 0:
        return MachineLoad()
    deadline = time.monotonic() + max_wait_s
    while True:
        with make_monitor() as monitor:
            time.sleep(OBSERVE_S)
        if not monitor.load.disturbance or time.monotonic() >= deadline:
            break
    if monitor.load.disturbance:
        progress.say(f"not quiet after {max_wait_s:g} s: {monitor.load.disturbance}")
    return monitor.load


class _CpuSampler:
    """The CPUs that this process may run on."""

    def begin(self) -> None:
        self._start, self._throttles_at_start = _cpu_seconds(), _throttle_counts()

    def end(self) -> MachineLoad:
        total, busy, stolen, our_s = (
            now - then for now, then in zip(_cpu_seconds(), self._start, strict=True)
        )
        if total <= 0:
            return MachineLoad()
        slowdowns = [
            why
            for why, count in _throttle_counts().items()
            if count > self._throttles_at_start.get(why, count)
        ]
        other_load = max(0.0, busy - our_s) / total
        return MachineLoad(other_load, stolen / total, "; ".join(slowdowns))


def _cpu_seconds() -> tuple[float, float, float, float]:
    """Return seconds of all CPUs we may use: in all, busy, stolen, and of our own processes."""
    per_cpu = psutil.cpu_times(percpu=True)
    usable_cpus = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(per_cpu))
    )
    total = busy = stolen = 0.0
    for times in (per_cpu[i] for i in usable_cpus if i < len(per_cpu)):
        counters = times._asdict()
        steal = counters.get("steal", 0.0)
        # guests' time is in that of users, too
        spent = (
            sum(counters.values()) - counters.get("guest", 0.0) - counters.get("guest_nice", 0.0)
        )
        idle = counters["idle"] + counters.get("iowait", 0.0)
        total, busy, stolen = total + spent, busy + spent - idle - steal, stolen + steal
    return total, busy, stolen, _process_tree_seconds()


def _process_tree_seconds() -> float:
    """Return the CPU time of this process and of all it started, those that ended included."""
    current = psutil.Process()
    seconds = 0.0
    for process in (current, *current.children(recursive=True)):
        try:
            seconds += sum(process.cpu_times()[:4])  # user, system, and both of ended children
        except psutil.Error:  # it has just ended: its parent has its time
            continue
    return seconds


def _throttle_counts() -> dict[str, int]:
    """Return how often the CPU was slowed down until now, by reason."""
    counts = {"the CPU was slowed down by heat": sum(map(_read_count, _throttle_files()))}
    for line in _read_text(Path("/sys/fs/cgroup/cpu.stat")).splitlines():
        name, _, count = line.partition(" ")
        if name == "nr_throttled" and count.isdigit():
            counts["the container's share of the CPU was used up"] = int(count)
    return counts


@cache
def _throttle_files() -> list[Path]:
    pattern = "cpu[0-9]*/thermal_throttle/core_throttle_count"
    return sorted(Path("/sys/devices/system/cpu").glob(pattern))


def _read_count(path: Path) -> int:
    text = _read_text(path).strip()
    return int(text) if text.isdigit() else 0


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


class _GpuSampler:
    """A GPU as NVML sees it, at the beginning and at the end."""

    def __init__(self, index: int, nvml: Any) -> None:
        self._index, self._nvml = index, nvml
        self._samples: list[tuple[int, str]] = []

    def begin(self) -> None:
        self._samples = [self._sample()]

    def end(self) -> MachineLoad:
        self._samples.append(self._sample())
        slowdowns = sorted({why for _, why in self._samples if why})
        return MachineLoad(
            slowdown="; ".join(slowdowns), gpu_neighbors=max(n for n, _ in self._samples)
        )

    def _sample(self) -> tuple[int, str]:
        """Return how many others are on the GPU, and why it is slow; nothing where nobody tells."""
        try:
            nvml = self._nvml = self._nvml or require("pynvml", "gpu", "looking at GPUs")
        except MissingExtra:
            return 0, ""
        try:
            nvml.nvmlInit()
            handle = visible_gpus(nvml)[self._index]
            our_pids = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
            running = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        except (nvml.NVMLError, LookupError):
            return 0, ""
        active_reasons = {text for bit, text in _THROTTLE_REASONS.items() if reasons & bit}
        return len(running - our_pids), "; ".join(
            f"the GPU was {text}" for text in sorted(active_reasons)
        )
