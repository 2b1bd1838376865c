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

MAX_OTHER_LOAD, MAX_STEAL = 0.1, 0.02
"""Shares of CPU time, taken by other processes or guests, above which times are disturbed."""
OBSERVE_S = 1.0  # duration of one check whether the machine is idle
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
        return "; ".join([*causes, *filter(None, [self.slowdown])])


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


_CpuSample = tuple[tuple[float, float, float, float], dict[str, int]]


def _sample_cpu() -> _CpuSample:
    return _cpu_seconds(), _throttle_counts()


def _cpu_load(begin: _CpuSample, end: _CpuSample) -> MachineLoad:
    total, busy, stolen, our_s = (b - a for a, b in zip(begin[0], end[0], strict=True))
    if total <= 0:
        return MachineLoad()
    slowdowns = [why for why, count in end[1].items() if count > begin[1].get(why, count)]
    return MachineLoad(max(0.0, busy - our_s) / total, stolen / total, "; ".join(slowdowns))


def _cpu_seconds() -> tuple[float, float, float, float]:
    """Return total, busy and stolen seconds of the usable CPUs, and our processes' seconds."""
    per_cpu = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(per_cpu))
    total = busy = stolen = 0.0
    for times in (per_cpu[i] for i in usable if i < len(per_cpu)):
        counters = times._asdict()
        steal = counters.get("steal", 0.0)
        guests = counters.get("guest", 0.0) + counters.get("guest_nice", 0.0)
        spent = sum(counters.values()) - guests  # "user" includes the guests' time
        idle = counters["idle"] + counters.get("iowait", 0.0)
        total, busy, stolen = total + spent, busy + spent - idle - steal, stolen + steal
    return total, busy, stolen, _process_tree_seconds()


def _process_tree_seconds() -> float:
    """Return the CPU time of this process and its descendants, including those that ended."""
    current = psutil.Process()
    seconds = 0.0
    for process in (current, *current.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended, and its parent counts its time
            seconds += sum(process.cpu_times()[:4])  # user, system, and both of ended children
    return seconds


def _throttle_counts() -> dict[str, int]:
    texts = [_read_text(path).strip() for path in _throttle_files()]
    counts = {"the CPU was throttled because of heat": sum(int(t) for t in texts if t.isdigit())}
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


_GpuSample = tuple[int, str]


def _sample_gpu(index: int, nvml: Any) -> _GpuSample:
    """Return the number of other GPU processes and the throttle reason, if NVML reports them."""
    try:
        nvml = nvml or require("pynvml", "gpu", "checking the load of GPUs")
    except MissingExtra:
        return 0, ""
    try:
        nvml.nvmlInit()
        handle = visible_gpus(nvml)[index]
        our_pids = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
        running = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except (nvml.NVMLError, LookupError):
        return 0, ""
    active = {f"the GPU was {text}" for bit, text in _THROTTLE_REASONS.items() if reasons & bit}
    return len(running - our_pids), "; ".join(sorted(active))


def _gpu_load(*samples: _GpuSample) -> MachineLoad:
    slowdowns = sorted({why for _, why in samples if why})
    return MachineLoad(slowdown="; ".join(slowdowns), gpu_neighbors=max(n for n, _ in samples))
