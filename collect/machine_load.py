"""Detects other load on the machine during a measurement."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import psutil

from foretune.collect.gpu_handles import visible_gpus
from foretune.device import Device
from foretune.errors import MissingExtra
from foretune.support.lazy import require
from foretune.support.progress import SILENT, Progress

MAX_OTHER_LOAD = 0.1
"""Share of CPU time taken by other processes above which times are disturbed."""
MAX_STEAL = 0.02
"""Share of CPU time given to other guests of the host above which times are disturbed."""
OBSERVE_S = 1.0
"""Duration of one check whether the machine is idle."""
_THROTTLE_REASONS = {
    0x08: "throttled by its hardware",
    0x20: "throttled because of heat",
    0x40: "throttled because of heat",
    0x80: "throttled by its power supply",
}
"""NVML's external throttle reasons; the power limit is a property of the device."""


@dataclass(frozen=True)
class MachineLoad:
    """Load and throttling of a device over some time.

    ``other_load`` and ``steal`` are the shares of the CPU's time that other processes used and that
    the host gave to other guests (NaN if unknown), ``slowdown`` is why the device was throttled, if
    it was, and ``gpu_neighbors`` the number of other processes on the GPU.
    """

    other_load: float = math.nan
    steal: float = math.nan
    slowdown: str = ""
    gpu_neighbors: int = 0

    @property
    def disturbance(self) -> str:
        """What may have disturbed the times, as text; empty if nothing did."""
        causes = []
        if self.other_load > MAX_OTHER_LOAD:
            causes.append(
                f"other processes kept the CPU busy for {self.other_load:.0%} of the time"
            )
        if self.steal > MAX_STEAL:
            causes.append(f"the host took away {self.steal:.0%} of the CPU's time")
        if self.gpu_neighbors:
            causes.append(f"{self.gpu_neighbors} other processes were on the GPU")
        if self.slowdown:
            causes.append(self.slowdown)
        return "; ".join(causes)


class LoadMonitor:
    """Context manager that observes the load on a device; only NVIDIA GPUs report theirs.

    ``load`` is set when the block ends; ``nvml`` is the module ``pynvml`` or a substitute.
    """

    def __init__(self, device: Device, nvml: Any = None) -> None:
        self.load = MachineLoad()
        self._sample: Callable[[], Any] = _sample_cpu
        self._load_between: Callable[[Any, Any], MachineLoad] = _cpu_load
        if device.kind == "gpu":
            self._sample = partial(_sample_gpu, device.index, nvml)
            self._load_between = _gpu_load

    def __enter__(self) -> Self:
        self._begin = self._sample()
        return self

    def __exit__(self, *error: object) -> None:
        self.load = self._load_between(self._begin, self._sample())


def wait_until_idle(
    make_monitor: Callable[[], LoadMonitor], max_wait_s: float, progress: Progress = SILENT
) -> MachineLoad:
    """Wait until a device is idle, at most ``max_wait_s``; return the last observed load.

    A wait of 0 skips the check; ``progress`` receives a line if the device did not become idle.
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
        progress.say(f"not idle after {max_wait_s:g} s: {monitor.load.disturbance}")
    return monitor.load


@dataclass(frozen=True)
class CpuSeconds:
    """Seconds of the usable CPUs since the machine started."""

    total: float
    busy: float
    """Seconds of all processes of this machine."""
    stolen: float
    """Seconds that the host gave to other guests."""
    own: float
    """Seconds of this process and its descendants, on any CPU."""


@dataclass(frozen=True)
class _CpuSample:
    """The counters of the CPU at one time; ``throttles`` counts by reason."""

    seconds: CpuSeconds
    throttles: dict[str, int]


def _sample_cpu() -> _CpuSample:
    return _CpuSample(seconds=_cpu_seconds(), throttles=_throttle_counts())


def _cpu_load(begin: _CpuSample, end: _CpuSample) -> MachineLoad:
    """Return the load between two samples."""
    total = end.seconds.total - begin.seconds.total
    if total <= 0:
        return MachineLoad()
    busy = end.seconds.busy - begin.seconds.busy
    own = end.seconds.own - begin.seconds.own
    stolen = end.seconds.stolen - begin.seconds.stolen
    slowdowns = [
        reason
        for reason, count in end.throttles.items()
        if count > begin.throttles.get(reason, count)
    ]
    return MachineLoad(
        other_load=max(0.0, busy - own) / total,
        steal=stolen / total,
        slowdown="; ".join(slowdowns),
    )


def _cpu_seconds() -> CpuSeconds:
    """Read the counters of the CPUs that this process may use."""
    per_cpu = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(per_cpu))
    total = 0.0
    busy = 0.0
    stolen = 0.0
    for i in usable:
        if i >= len(per_cpu):
            continue
        counters = per_cpu[i]._asdict()
        steal = counters.get("steal", 0.0)
        idle = counters["idle"] + counters.get("iowait", 0.0)
        # "user" includes the time of this machine's own guests: do not count it twice.
        guests = counters.get("guest", 0.0) + counters.get("guest_nice", 0.0)
        spent = sum(counters.values()) - guests
        total += spent
        busy += spent - idle - steal
        stolen += steal
    return CpuSeconds(total=total, busy=busy, stolen=stolen, own=_process_tree_seconds())


def _process_tree_seconds() -> float:
    """Return the CPU time of this process and its descendants, including those that ended."""
    current = psutil.Process()
    seconds = 0.0
    for process in (current, *current.children(recursive=True)):
        # A process that has just ended is missing; its parent counts its time.
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += sum(times[:4])  # user, system, and both of ended children
    return seconds


def _throttle_counts() -> dict[str, int]:
    """Return how often the CPU was throttled, by reason."""
    texts = [_read_text(path).strip() for path in _throttle_files()]
    heat = sum(int(text) for text in texts if text.isdigit())
    counts = {"the CPU was throttled because of heat": heat}
    for line in _read_text(Path("/sys/fs/cgroup/cpu.stat")).splitlines():
        name, _, count = line.partition(" ")
        if name == "nr_throttled" and count.isdigit():
            counts["the container's share of the CPU was used up"] = int(count)
    return counts


@cache
def _throttle_files() -> list[Path]:
    pattern = "cpu[0-9]*/thermal_throttle/core_throttle_count"
    return sorted(Path("/sys/devices/system/cpu").glob(pattern))


def _read_text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""


@dataclass(frozen=True)
class _GpuSample:
    """Other processes on a GPU, and why it is throttled ("" if it is not), at one time."""

    neighbors: int = 0
    slowdown: str = ""


def _sample_gpu(index: int, nvml: Any) -> _GpuSample:
    """Ask NVML; without an answer, the sample is empty."""
    try:
        nvml = nvml or require("pynvml", "gpu", "checking the load of GPUs")
    except MissingExtra:
        return _GpuSample()
    try:
        nvml.nvmlInit()
        handle = visible_gpus(nvml)[index]
        our_pids = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
        running = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except (nvml.NVMLError, LookupError):
        return _GpuSample()
    active = {f"the GPU was {text}" for bit, text in _THROTTLE_REASONS.items() if reasons & bit}
    return _GpuSample(neighbors=len(running - our_pids), slowdown="; ".join(sorted(active)))


def _gpu_load(begin: _GpuSample, end: _GpuSample) -> MachineLoad:
    """Return the worse of two samples: NVML counts no time."""
    slowdowns = {sample.slowdown for sample in (begin, end) if sample.slowdown}
    return MachineLoad(
        slowdown="; ".join(sorted(slowdowns)),
        gpu_neighbors=max(begin.neighbors, end.neighbors),
    )
