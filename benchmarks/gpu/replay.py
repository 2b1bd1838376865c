"""A GPU that is not there: kernels launch nothing, clocks and sensors answer with made-up numbers.

It shows that a stage runs to its end, writes what it should and goes on where it stopped. Nothing
it prints says anything about a device.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from bench import TIMING, Bench
from compiling import Compiled, compiled_ahead
from replay_driver import ReplayDriver, ReplayedLaunch
from stage import Job

from foretune.collect.benchmark import Benchmarker, PreparedInputs
from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.collect.timing import DeviceTimer, Timer
from foretune.device import find_device
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem

IDLE_W = 76.0
BUSY_W = 520.0
TICK_S = 0.1
"""Watts of the made-up board, and seconds between two ticks of its energy counter."""


class ReplayBench(Bench):
    """A replayed H200 with a simulated clock that only launches and sleeping move."""

    source = "replay, made-up numbers"
    replayed = True

    def __init__(self) -> None:
        Benchmarker.__init__(self, find_device("NVIDIA H200"), TIMING, power=False)
        self._driver = ReplayDriver(made_up)
        self._gpu = self._driver.device_interface
        self._slept = 0.0
        self.nvml = ReplayNvml(self)
        self._state = (-np.inf, {})
        self._handle = 0

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels launch here."""
        return self._driver.active()

    def compiled(self, jobs: Iterable[Job], threads: int = 0) -> Iterator[tuple[Job, Compiled]]:
        """Yield jobs; nothing is compiled, but handed out ahead all the same."""
        return compiled_ahead(ThreadPoolExecutor, lambda job: Compiled(), jobs, threads)

    @property
    def busy_s(self) -> float:
        """Seconds the device has worked."""
        return self._gpu.clock_ms / 1000

    @property
    def idle_s(self) -> float:
        """Seconds the device has not."""
        return self._slept

    def now(self) -> float:
        """Return seconds since the replay began."""
        return self.busy_s + self._slept

    def sleep(self, seconds: float) -> None:
        """Let the clock run."""
        self._slept += seconds

    def event(self) -> Any:
        """Return a moment on the clock."""
        return self._gpu.Event(enable_timing=True)

    def synchronize(self) -> None:
        """Do nothing: launches are over at once."""
        self._driver.launches.clear()  # or a whole sweep's would pile up

    def _timer(self, kernel: Kernel, problem: Problem) -> Timer:
        """Return a stopwatch on the clock of the replay."""
        return DeviceTimer(self.event, self.synchronize, lambda launches, host_s: None)

    def prepared(self, kernel: Kernel, problem: Problem) -> PreparedInputs:
        """Return inputs without data, so without fingerprints."""
        return PreparedInputs(self.inputs(kernel, problem), None, [])

    def inputs(self, kernel: Kernel, problem: Problem, seed: int = 0) -> Inputs:
        """Return inputs without data."""
        assert isinstance(kernel, TritonKernel)
        return kernel.inputs_without_data(problem)

    def adapted(self, kernel: Kernel) -> Kernel:
        """Return a copy of a kernel whose inputs have no data, so that nothing is wrong."""
        copied: Any = super().adapted(kernel)
        copied.make_inputs = partial(self.inputs, kernel)
        copied.reference = lambda inputs: None
        copied.relative_error = lambda output, expected: 0.0
        return copied

    def _error(self, kernel: Kernel, launch: Launch, expected: Any) -> float:
        """Launch; nothing is computed, so nothing is wrong."""
        launch()
        self.synchronize()
        return 0.0

    def call(self, launch: Any, replayed_ms: float) -> Launch:
        """Return a call that takes ``replayed_ms``."""
        return lambda: self._gpu.advance_clock(replayed_ms)

    def rotated(self, launches: list[Launch], count: int) -> tuple[Launch, bool]:
        """Return what takes as long as ``count`` launches."""
        before = self._gpu.clock_ms
        for launch in launches:
            launch()
        each = (self._gpu.clock_ms - before) / len(launches)
        return lambda: self._gpu.advance_clock(each * count), True

    def free_bytes(self) -> float:
        """Return plenty: inputs have no data."""
        return float("inf")


class ReplayNvml:
    """The part of ``pynvml`` that the stages use, as a board of `ReplayBench` would answer."""

    class NVMLError(Exception):
        """What the driver raises."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, bench: ReplayBench) -> None:
        self._bench = bench
        self._tick = (0.0, 0.0)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:  # noqa: N802
        """Return millijoules as of the last tick."""
        bench = self._bench
        if bench.now() - self._tick[0] >= TICK_S:
            self._tick = bench.now(), IDLE_W * bench.idle_s + BUSY_W * bench.busy_s
        return int(1000 * self._tick[1])

    def nvmlDeviceGetClockInfo(self, handle: Any, which: int) -> int:  # noqa: N802
        """Return MHz."""
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[which]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:  # noqa: N802
        """Return degrees Celsius."""
        return 48

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        """Return none."""
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        """Return milliwatts."""
        return int(1000 * BUSY_W)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """Return what no driver is called."""
        return "replay"


def made_up(launch: ReplayedLaunch) -> float:
    """Return milliseconds that depend on work, configuration and grid, smoothly and by no law."""
    knobs = SimpleNamespace(**{"num_warps": 4, "num_stages": 2, **launch.config})
    sizes = [t.numel() for t in launch.arguments.values() if isinstance(t, torch.Tensor)]
    tile = launch.config.get("BLOCK_M", 64) * launch.config.get("BLOCK_N", 64)
    off = abs(np.log2(tile) - 13) + abs(np.log2(knobs.num_warps) - 2.5)
    off += 0.5 * abs(knobs.num_stages - 3)
    waves = np.ceil(np.prod(launch.grid, dtype=float) / 132)
    return float((2e-3 + sum(sizes) * 6e-10 + 4e-4 * np.sqrt(waves)) * (1 + 0.2 * off))
