"""Tests other load on the machine during a measurement: `collect/machine_load.py`."""

import os
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest

from foretune.collect import machine_load
from foretune.collect.machine_load import CpuSeconds, LoadMonitor, MachineLoad, wait_until_idle
from foretune.device import Device

CPU = Device("a CPU", "cpu")
GPU = Device("a GPU", "gpu")
SPIN = "import time; print(flush=True)\nwhile time.process_time() < 30: pass"


def spinning(**more):
    process = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, **more)
    process.stdout.readline()
    return process


def seen_beside(process, seconds=0.4):
    with process, LoadMonitor(CPU) as watch:
        time.sleep(seconds)
        process.kill()
    return watch.load


def test_load_monitor_own_processes_are_no_other_load():
    ours = seen_beside(spinning())
    assert ours.other_load >= 0.0
    assert 0.0 <= ours.steal <= 1.0
    shares = []
    for own in (True, False):
        times = iter(
            [CpuSeconds(0.0, 0.0, 0.0, 0.0), CpuSeconds(2.0, 1.0, 0.1, 1.0 if own else 0.2)]
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine_load, "_cpu_seconds", lambda times=times: next(times))
            with LoadMonitor(CPU) as watch:
                pass
        shares.append((watch.load.other_load, watch.load.steal))
    assert shares == [(0.0, 0.05), (0.4, 0.05)]


def test_process_tree_seconds_include_ended_children():
    before = machine_load._process_tree_seconds()
    work = "sum(i for i in range(3_000_000))"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert machine_load._process_tree_seconds() - before > 0.05


def test_machine_load_disturbance_names_all_causes(monkeypatch):
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", 0.1)
    monkeypatch.setattr(machine_load, "MAX_STEAL", 0.02)
    assert MachineLoad().disturbance == MachineLoad(0.05, 0.01).disturbance == ""
    said = MachineLoad(0.5, 0.1, "the GPU was throttled because of heat", 2).disturbance
    assert said == (
        "other processes kept the CPU busy for 50% of the time; the host took away 10% of the "
        "CPU's time; 2 other processes were on the GPU; the GPU was throttled because of heat"
    )


def test_load_monitor_throttled_cpu_has_reason(monkeypatch):
    counts = iter([{"heat": 3, "quota": 1}, {"heat": 3, "quota": 4}])
    seconds = iter([CpuSeconds(0.0, 0.0, 0.0, 0.0), CpuSeconds(2.0, 1.0, 0.0, 1.0)])
    monkeypatch.setattr(machine_load, "_throttle_counts", lambda: next(counts))
    monkeypatch.setattr(machine_load, "_cpu_seconds", lambda: next(seconds))
    with LoadMonitor(CPU) as watch:
        pass
    assert watch.load.slowdown == "quota"


class FakeNvml:
    """A GPU that others come to, and that gets hot."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.looks = 0

    def nvmlInit(self):  # noqa: N802
        self.looks += 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        others = [1] if self.looks > 1 else []
        return [SimpleNamespace(pid=pid) for pid in (os.getpid(), *others)]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return 0x04 | (0x40 if self.looks > 1 else 0)


def test_load_monitor_gpu_reports_neighbors_and_throttling(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with LoadMonitor(GPU, FakeNvml()) as watch:
        pass
    seen = watch.load
    assert (seen.gpu_neighbors, seen.slowdown) == (1, "the GPU was throttled because of heat")


def test_load_monitor_gpu_without_driver_is_undisturbed(monkeypatch):
    class Broken(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise self.NVMLError("no driver")

    with LoadMonitor(GPU, Broken()) as watch:
        pass
    assert watch.load.disturbance == ""


def test_wait_until_idle_ends_when_quiet_or_after_limit(monkeypatch):
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", 0.1)
    monkeypatch.setattr(machine_load, "OBSERVE_S", 0.001)
    shares = iter([0.9, 0.8, 0.0])
    monkeypatch.setattr(machine_load, "_cpu_load", lambda *samples: MachineLoad(next(shares), 0.0))
    assert wait_until_idle(partial(LoadMonitor, CPU), 60.0).other_load == 0.0
    monkeypatch.setattr(machine_load, "_cpu_load", lambda *samples: MachineLoad(0.9, 0.0))
    assert wait_until_idle(partial(LoadMonitor, CPU), 1e-9).disturbance
    assert not wait_until_idle(partial(LoadMonitor, CPU), 0.0).disturbance, "nobody looked"
