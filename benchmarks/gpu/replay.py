"""A GPU that is not there: kernels launch nothing, clocks and sensors answer with made-up numbers.

It shows that a stage runs to its end, writes what it should and goes on where it stopped. Nothing
it prints says anything about a device.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from bench import TIMING, Bench
from compiling import Compiled, compiled_ahead
from replay_driver import ReplayDriver, ReplayedLaunch
from replay_nvml import ReplayNvml
from stage import Job

from foretune.collect.benchmark import Benchmarker, PreparedInputs
from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.collect.timing import DeviceTimer, Timer
from foretune.device import find_device
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem

DEVICE = "NVIDIA H200"
CORES = 132
"""Multiprocessors of the device: programs that run at once."""

# The made-up law of `made_up_ms`.
LAUNCH_MS = 2e-3
MS_PER_ELEMENT = 6e-10
MS_PER_ROOT_WAVE = 4e-4
BEST_LOG2_TILE = 13
BEST_LOG2_WARPS = 2.5
BEST_STAGES = 3
SLOWDOWN_PER_STEP = 0.2
"""Added to the relative time for each doubling away from the best tile or number of warps."""


class ReplayBench(Bench):
    """A replayed H200 with a simulated clock that only launches and sleeping move."""

    source = "replay, made-up numbers"
    replayed = True

    def __init__(self) -> None:
        Benchmarker.__init__(self, find_device(DEVICE), TIMING, power=False)
        self._driver = ReplayDriver(made_up_ms)
        self._gpu = self._driver.device_interface
        self._slept_s = 0.0
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
        return self._slept_s

    def now(self) -> float:
        """Return seconds since the replay began."""
        return self.busy_s + self._slept_s

    def sleep(self, seconds: float) -> None:
        """Let the clock run."""
        self._slept_s += seconds

    def event(self) -> Any:
        """Return a moment on the clock."""
        return self._gpu.Event(enable_timing=True)

    def synchronize(self) -> None:
        """Do nothing but forget the launches: they are over at once."""
        # Those of a whole sweep would fill the memory.
        self._driver.launches.clear()

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
        """Return a call that takes as long as ``count`` launches."""
        before_ms = self._gpu.clock_ms
        for launch in launches:
            launch()
        launch_ms = (self._gpu.clock_ms - before_ms) / len(launches)
        return lambda: self._gpu.advance_clock(launch_ms * count), True

    def free_bytes(self) -> float:
        """Return infinity: inputs have no data."""
        return float("inf")


def made_up_ms(launch: ReplayedLaunch) -> float:
    """Return milliseconds that depend on work, configuration and grid, smoothly and by no law."""
    config = {"num_warps": 4, "num_stages": 2, "BLOCK_M": 64, "BLOCK_N": 64, **launch.config}
    tensors = [t for t in launch.arguments.values() if isinstance(t, torch.Tensor)]
    elements = sum(tensor.numel() for tensor in tensors)
    waves = np.ceil(np.prod(launch.grid, dtype=float) / CORES)
    work_ms = LAUNCH_MS + elements * MS_PER_ELEMENT + MS_PER_ROOT_WAVE * np.sqrt(waves)

    # How far, in doublings, is the configuration from the best one?
    tile = config["BLOCK_M"] * config["BLOCK_N"]
    steps_away = abs(np.log2(tile) - BEST_LOG2_TILE)
    steps_away += abs(np.log2(config["num_warps"]) - BEST_LOG2_WARPS)
    steps_away += 0.5 * abs(config["num_stages"] - BEST_STAGES)
    return float(work_ms * (1 + SLOWDOWN_PER_STEP * steps_away))
