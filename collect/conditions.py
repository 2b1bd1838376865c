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

from foretune.collect.nvidia import visible_gpus
from foretune.device import Device
from foretune.errors import MissingExtra
from foretune.extras import require
from foretune.progress import SILENT, Progress

BUSY, STOLEN = 0.1, 0.02
"""Shares of the time of a CPU, taken by other processes or by other guests, that are felt."""
LOOK_S = 1.0
"""How long one looks whether a machine is quiet."""
_SLOWED = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down by heat",
    0x40: "slowed down by heat",
    0x80: "slowed down by its power supply",
}
"""NVML's reasons for lower clocks that come from outside; the power limit is part of the device."""


@dataclass(frozen=True)
class Conditions:
    """What disturbed a device over some time.

    Attributes:
        others: share of the CPU's time in which other processes ran; NaN if unknown.
        stolen: share of it that the host gave to other guests.
        slowed: why the device ran slower than it can; empty if it did not.
        neighbors: other processes on the GPU.
    """

    others: float = math.nan
    stolen: float = math.nan
    slowed: str = ""
    neighbors: int = 0

    @property
    def disturbed(self) -> str:
        """What may have changed times, in words; empty if nothing."""
        said = []
        if self.others > BUSY:
            said.append(f"other processes kept the CPU busy for {self.others:.0%} of the time")
        if self.stolen > STOLEN:
            said.append(f"the host took away {self.stolen:.0%} of the CPU's time")
        if self.neighbors:
            said.append(f"{self.neighbors} other processes were on the GPU")
        return "; ".join([*said, *filter(None, [self.slowed])])


class Watch:
    """Sees what disturbs a device between entering and leaving.

    Args:
        device: the CPU, or a GPU that NVML knows; of others nothing is seen.
        nvml: the module ``pynvml``, or one that behaves like it.

    Attributes:
        conditions: set when the block is left.
    """

    def __init__(self, device: Device, nvml: Any = None) -> None:
        self.conditions = Conditions()
        self._watched = _Gpu(device.index, nvml) if device.kind == "gpu" else _Cpu()

    def __enter__(self) -> Self:
        self._watched.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.conditions = self._watched.end()


def wait_until_quiet(
    watch: Callable[[], Watch], patience_s: float, progress: Progress = SILENT
) -> Conditions:
    """Wait until nothing disturbs a device, or for ``patience_s``; return what was seen last.

    Args:
        watch: gives what sees that device, as `foretune.collect.Runner.watch` does.
        patience_s: seconds to wait at most; with none, nobody looks.
        progress: told if it did not become quiet.
    """
    if patience_s <= 0:
        return Conditions()
    deadline = time.monotonic() + patience_s
    while True:
        with watch() as seen:
            time.sleep(LOOK_S)
        if not seen.conditions.disturbed or time.monotonic() >= deadline:
            break
    if seen.conditions.disturbed:
        progress.say(f"not quiet after {patience_s:g} s: {seen.conditions.disturbed}")
    return seen.conditions


class _Cpu:
    """The CPUs that this process may run on."""

    def begin(self) -> None:
        self._start, self._slowed = _cpu_seconds(), _slowed()

    def end(self) -> Conditions:
        total, busy, stolen, own = (
            now - then for now, then in zip(_cpu_seconds(), self._start, strict=True)
        )
        if total <= 0:
            return Conditions()
        slowed = [why for why, count in _slowed().items() if count > self._slowed.get(why, count)]
        others = max(0.0, busy - own) / total
        return Conditions(others, stolen / total, "; ".join(slowed))


def _cpu_seconds() -> tuple[float, float, float, float]:
    """Return seconds of all CPUs we may use: in all, busy, stolen, and of our own processes."""
    per_cpu = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(per_cpu))
    total = busy = stolen = 0.0
    for times in (per_cpu[i] for i in ours if i < len(per_cpu)):
        said = times._asdict()
        steal = said.get("steal", 0.0)
        # guests' time is in that of users, too
        spent = sum(said.values()) - said.get("guest", 0.0) - said.get("guest_nice", 0.0)
        idle = said["idle"] + said.get("iowait", 0.0)
        total, busy, stolen = total + spent, busy + spent - idle - steal, stolen + steal
    return total, busy, stolen, _own_seconds()


def _own_seconds() -> float:
    """Return the CPU time of this process and of all it started, those that ended included."""
    own = psutil.Process()
    seconds = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            seconds += sum(process.cpu_times()[:4])  # user, system, and both of ended children
        except psutil.Error:  # it has just ended: its parent has its time
            continue
    return seconds


def _slowed() -> dict[str, int]:
    """Return how often the CPU was slowed down until now, by reason."""
    counts = {"the CPU was slowed down by heat": sum(map(_number, _throttles()))}
    for line in _text(Path("/sys/fs/cgroup/cpu.stat")).splitlines():
        name, _, count = line.partition(" ")
        if name == "nr_throttled" and count.isdigit():
            counts["the container's share of the CPU was used up"] = int(count)
    return counts


@cache
def _throttles() -> list[Path]:
    pattern = "cpu[0-9]*/thermal_throttle/core_throttle_count"
    return sorted(Path("/sys/devices/system/cpu").glob(pattern))


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


class _Gpu:
    """A GPU as NVML sees it, at the beginning and at the end."""

    def __init__(self, index: int, nvml: Any) -> None:
        self._index, self._nvml = index, nvml
        self._seen: list[tuple[int, str]] = []

    def begin(self) -> None:
        self._seen = [self._look()]

    def end(self) -> Conditions:
        self._seen.append(self._look())
        slowed = sorted({why for _, why in self._seen if why})
        return Conditions(slowed="; ".join(slowed), neighbors=max(n for n, _ in self._seen))

    def _look(self) -> tuple[int, str]:
        """Return how many others are on the GPU, and why it is slow; nothing where nobody tells."""
        try:
            nvml = self._nvml = self._nvml or require("pynvml", "gpu", "looking at GPUs")
        except MissingExtra:
            return 0, ""
        try:
            nvml.nvmlInit()
            handle = visible_gpus(nvml)[self._index]
            own = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
            running = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        except (nvml.NVMLError, LookupError):
            return 0, ""
        slow = {text for bit, text in _SLOWED.items() if reasons & bit}
        return len(running - own), "; ".join(f"the GPU was {text}" for text in sorted(slow))
