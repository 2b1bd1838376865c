"""A GPU to measure on: inputs, checks, times, graphs, and what its sensors say."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from compiling import Compiled, compile_in_process, compiled_ahead, processes
from stage import Job

from foretune.collect.benchmark import Benchmarker, PreparedInputs, measurement
from foretune.collect.comparison import Rounds
from foretune.collect.devices import local_gpus
from foretune.collect.gpu_handles import visible_gpus
from foretune.collect.timing import Timer, Timing
from foretune.device import Device, find_device_or_none
from foretune.errors import describe_error
from foretune.kernel import Inputs, Kernel, Launch
from foretune.measurement import Measurement, Status
from foretune.problem import Problem

TIMING = Timing(max_seconds=0.03, warmup_s=0.001, min_repeats=6, max_repeats=20)
"""Some 15 ms per configuration: many configurations tell more than many repeats of few."""
KEPT_SHARE = 0.4
"""Share of the device's memory that keeps inputs and expected results for problems that return."""
STATE_EVERY_S = 0.5
"""Age of sensors' values at which they are read again."""
REPLAYED_LIBRARY_ROOFLINES = 1.4
"""Time of a library's call in a replay, over the roofline."""


class Bench(Benchmarker):
    """The current GPU.

    Attributes:
        nvml: the module ``pynvml``.
        replayed: whether nothing really runs.
    """

    replayed = False
    source = "foretune gpu stages"
    max_input_sets = 1 << 20  # `prepared` bounds them by memory

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml: Any = pynvml
        torch.cuda.init()
        device = next(iter(local_gpus()), Device(torch.cuda.get_device_name(), "gpu"))
        super().__init__(device, TIMING, power=False)
        self._state: tuple[float, dict[str, float]] = (-math.inf, {})
        self._handle = visible_gpus(self.nvml)[device.index]

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels launch here."""
        return nullcontext()

    # --- what a replay replaces -----------------------------------------------------------------

    def compiled(self, jobs: Iterable[Job], threads: int = 0) -> Iterator[tuple[Job, Compiled]]:
        """Yield jobs with what came of compiling them, see `compiled_ahead`.

        A device that the table does not know has no stand-in to compile for: building compiles.
        """
        known = find_device_or_none(self.device.name)
        if known is None:
            return ((job, Compiled()) for job in jobs)
        return compiled_ahead(processes(known.name), compile_in_process, jobs, threads)

    def now(self) -> float:
        """Return seconds that only grow."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Do nothing."""
        time.sleep(seconds)

    def event(self) -> Any:
        """Return a moment in the device's queue."""
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        """Return when the device is idle."""
        torch.cuda.synchronize()

    def call(self, launch: Callable[[], Any], replayed_ms: float) -> Launch:
        """Return ``launch``, which is none of Triton's; a replay lets it take ``replayed_ms``."""
        return launch

    def rotated(self, launches: list[Launch], count: int) -> tuple[Launch, bool]:
        """Return ``count`` launches, the given ones in turn, and whether they are a CUDA graph."""
        turns = [launches[i % len(launches)] for i in range(count)]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for launch in turns:
                    launch()
        except RuntimeError:  # some calls cannot be captured; they are launched one by one
            torch.cuda.synchronize()
            return lambda: [launch() for launch in turns], False
        return graph.replay, True

    def free_bytes(self) -> float:
        """Return memory that inputs may take."""
        return KEPT_SHARE * torch.cuda.get_device_properties().total_memory

    # --------------------------------------------------------------------------------------------

    def run(self, job: Job, compiled: Compiled) -> Measurement:
        """Return the time of a configuration after a check of its result; failures are statuses.

        Ask `device_lost` afterwards.
        """
        if compiled.error:
            return self.row(job, Status.COMPILE_ERROR, error=compiled.error)
        try:
            m = self.measure(job.kernel, job.problem, job.config)
        except Exception as e:  # this device has no such format, or no memory for the inputs
            return self.failed(job, e)
        return replace(m, compile_s=compiled.seconds) if m.ok else m

    def row(
        self, job: Job, status: Status = Status.OK, error: str = "", **values: Any
    ) -> Measurement:
        """Return a measurement of a job on this device."""
        values = {"source": self.source, **values}
        return measurement(
            job.kernel, job.problem, job.config, self.device, status, error, **values
        )

    def failed(self, job: Job, reason: Exception) -> Measurement:
        """Return the row of a job that raised; set `device_lost` if the device is gone with it."""
        if self.device_lost:
            return self.row(job, Status.RUNTIME_ERROR, error=describe_error(reason))
        timer = self._timer(job.kernel, job.problem)
        return self._failed(partial(self.row, job), Status.RUNTIME_ERROR, reason, timer)

    def _failed(
        self, row: Callable[..., Measurement], status: Status, reason: Exception, timer: Timer
    ) -> Measurement:
        if isinstance(reason, torch.OutOfMemoryError):
            self._prepared_inputs.clear()
            torch.cuda.empty_cache()
        return super()._failed(row, status, reason, timer)

    def inputs(self, kernel: Kernel, problem: Problem, seed: int = 0) -> Inputs:
        """Return inputs on the device."""
        return kernel.make_inputs(problem, seed)

    def prepared(self, kernel: Kernel, problem: Problem) -> PreparedInputs:
        """Return inputs and expected result; drop old ones that need too much memory."""
        if (kernel.name, problem) in self._prepared_inputs:
            return super().prepared(kernel, problem)
        free_bytes = self.free_bytes() - kernel.memory_bytes(problem)
        while self._prepared_inputs and self._kept_bytes() > free_bytes:
            self._prepared_inputs.popitem(last=False)
        return super().prepared(kernel, problem)

    def _kept_bytes(self) -> float:
        return sum(map(_bytes, self._prepared_inputs.values()))

    def compare_interleaved(self, kernel: Kernel, *arguments: Any, **named: Any) -> Rounds:
        """Time configurations in interleaved rounds, and the library where it takes the inputs."""
        return super().compare_interleaved(self.adapted(kernel), *arguments, **named)

    def adapted(self, kernel: Kernel) -> Kernel:
        """Return a copy of a kernel whose library is only called where it takes the inputs."""
        copied = object.__new__(type(kernel))
        vars(copied).update(vars(kernel), library=partial(self._library, kernel))
        return copied

    def _library(
        self, kernel: Kernel, problem: Problem, inputs: Inputs
    ) -> tuple[str, Launch] | None:
        """Return the library's call after it ran once; None where it does not take these."""
        config = kernel.default(problem)
        roofline_ms = float(self.device.roofline_ms(kernel.cost(problem, config)))
        try:
            library = kernel.library(problem, inputs)
            if library is None:
                return None
            name, library_launch = library
            launch = self.call(library_launch, REPLAYED_LIBRARY_ROOFLINES * roofline_ms)
            launch()
            self.synchronize()
        except (RuntimeError, NotImplementedError):  # this library has no such routine
            return None
        return name, launch

    def state(self, fresh: bool = False) -> dict[str, float]:
        """Return clocks, temperature, throttle reasons (bits) and the driver's power sample.

        At most half a second old unless it must be fresh; what a driver does not tell is left out.
        """
        read_s, known = self._state
        if not fresh and self.now() - read_s < STATE_EVERY_S:
            return known
        nvml = self.nvml
        questions = {
            "sm_clock_mhz": ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": ("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons",),
            "sampled_mw": ("nvmlDeviceGetPowerUsage",),
        }
        state: dict[str, float] = {}
        for name, (question, *arguments) in questions.items():
            # A driver or a board may have no answer.
            with suppress(AttributeError, nvml.NVMLError):
                state[name] = float(getattr(nvml, question)(self._handle, *arguments))
        if "sampled_mw" in state:
            state["sampled_w"] = state.pop("sampled_mw") / 1000
        self._state = (self.now(), state)
        return state

    def joules(self) -> float:
        """Return the energy counter."""
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) * 1e-3


def _bytes(prepared: PreparedInputs) -> float:
    tensors = [*prepared.inputs.values(), prepared.expected]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
