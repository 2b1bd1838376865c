"""A GPU to measure on: inputs, checks, times, graphs, and what its sensors say."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from compiling import Compiled, compile_in_process, compiled_ahead, processes
from stage import Job

from foretune.collect.device_timer import stopwatch_for
from foretune.collect.nvidia import local_gpus, visible_gpus
from foretune.collect.timer import Stopwatch, Timing, time_interleaved, time_launch
from foretune.collect.workbench import environment
from foretune.device import Device, named_device
from foretune.kernel import Inputs, Kernel, Launch
from foretune.measurement import Measurement, Status
from foretune.problem import Problem

TIMING = Timing(box_s=0.03, warmup_s=0.001, min_repeats=6, max_repeats=20)
"""Some 15 ms per configuration: many configurations tell more than many repeats of few."""
KEPT_SHARE = 0.4
"""Of the device's memory, for inputs and right results of problems that come again."""
STATE_EVERY_S = 0.5


@dataclass(frozen=True)
class Prepared:
    """Inputs of a problem and the right result."""

    inputs: Inputs
    expected: Any


class Bench:
    """The current GPU.

    Attributes:
        device: its descriptor.
        nvml: the module ``pynvml``.
        source: what the rows' column ``source`` says.
        replayed: whether nothing really runs.
        lost: whether a launch broke this process's use of the device.
    """

    replayed = False
    lost = False
    source = "foretune gpu stages"

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml: Any = pynvml
        torch.cuda.init()
        self.device = next(iter(local_gpus()), Device(torch.cuda.get_device_name(), "gpu"))
        self._kept: OrderedDict[tuple[str, Problem], Prepared] = OrderedDict()
        self._state: tuple[float, dict[str, float]] = (-math.inf, {})
        self._handle = visible_gpus(self.nvml)[self.device.index]

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels launch here."""
        return nullcontext()

    # --- what a replay replaces -----------------------------------------------------------------

    def compiled(self, jobs: Iterable[Job], threads: int = 0) -> Iterator[tuple[Job, Compiled]]:
        """Yield jobs with what came of compiling them, see `compiled_ahead`.

        A device that the table does not know has no stand-in to compile for: building compiles.
        """
        known = named_device(self.device.name)
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

    def stopwatch(self, kernel: Kernel, problem: Problem) -> Stopwatch:
        """Return what times the kernel."""
        return stopwatch_for(kernel, problem, self.device)

    def inputs(self, kernel: Kernel, problem: Problem, seed: int = 0) -> Inputs:
        """Return inputs on the device."""
        return kernel.make_inputs(problem, seed)

    def reference(self, kernel: Kernel, inputs: Inputs) -> Any:
        """Return the right result."""
        return kernel.reference(inputs)

    def error(self, kernel: Kernel, launch: Launch, expected: Any) -> float:
        """Return the relative error of a launch whose output was spoilt before."""
        kernel.poison(launch())
        return kernel.relative_error(launch(), expected)

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

    def prepared(self, kernel: Kernel, problem: Problem) -> Prepared:
        """Return inputs and right result; those used last stay in memory."""
        key = kernel.name, problem
        if key not in self._kept:
            need = kernel.memory_bytes(problem)
            while self._kept and need + sum(map(_bytes, self._kept.values())) > self.free_bytes():
                self._kept.popitem(last=False)
            inputs = self.inputs(kernel, problem)
            self._kept[key] = Prepared(inputs, self.reference(kernel, inputs))
        self._kept.move_to_end(key)
        return self._kept[key]

    def measure(self, job: Job, compiled: Compiled) -> Measurement:
        """Return the time of a configuration after a check of its result; failures are statuses.

        Ask `lost` afterwards.
        """
        kernel, problem, config = job.kernel, job.problem, job.config
        if compiled.error:
            return self.row(job, Status.COMPILE_ERROR, error=compiled.error)
        try:
            prepared = self.prepared(kernel, problem)
            launch = kernel.build(problem, config, prepared.inputs)
            error = self.error(kernel, launch, prepared.expected)
            if not error <= (limit := kernel.error_limit(problem, config)):
                text = f"relative error {error:.2g} is above {limit:.2g}"
                return self.row(job, Status.WRONG_RESULT, error=text)
            samples = time_launch(launch, TIMING, stopwatch=self.stopwatch(kernel, problem))
        except Exception as e:
            return self.failed(job, e)
        return self.row(
            job,
            time_ms=float(np.median(samples)),
            time_ms_samples=tuple(map(float, samples)),
            compile_s=compiled.seconds,
            relative_error=error,
        )

    def race(
        self, kernel: Kernel, problem: Problem, jobs: list[Job], box_s: float
    ) -> dict[str, Any]:
        """Return times in ms of configurations, by id, and of the library's call, interleaved."""
        prepared = self.prepared(kernel, problem)
        launches = {}
        for job in jobs:
            launch = kernel.build(problem, job.config, prepared.inputs)
            error = self.error(kernel, launch, prepared.expected)
            if error <= kernel.error_limit(problem, job.config):
                launches[job.config.id] = launch
        launches |= self._library(kernel, problem, prepared.inputs)
        watch = self.stopwatch(kernel, problem)
        return dict(time_interleaved(launches, box_s, stopwatch=watch))

    def _library(self, kernel: Kernel, problem: Problem, inputs: Inputs) -> dict[str, Launch]:
        """Return the library's call after it ran once; nothing where it does not take these."""
        config = kernel.default(problem)
        roofline = float(self.device.roofline_ms(kernel.cost(problem, config)))
        try:
            if (library := kernel.library(problem, inputs)) is None:
                return {}
            launch = self.call(library[1], 1.4 * roofline)
            launch()
            self.synchronize()
        except (RuntimeError, NotImplementedError):  # this library has no such routine
            return {}
        return {f"library:{library[0]}": launch}

    def row(self, job: Job, status: Status = Status.OK, **values: Any) -> Measurement:
        """Return a measurement of a job on this device."""
        return Measurement(
            job.kernel.name, job.problem, job.config, self.device.name, status,
            source=self.source, environment=environment(job.kernel), **values,
        )  # fmt: skip

    def state(self, fresh: bool = False) -> dict[str, float]:
        """Return clocks, temperature, throttle reasons (bits) and the driver's power sample.

        At most half a second old unless it must be fresh; what a driver does not tell is left out.
        """
        at, known = self._state
        if not fresh and self.now() - at < STATE_EVERY_S:
            return known
        nvml, handle = self.nvml, self._handle
        asked = {
            "sm_clock_mhz": ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": ("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons",),
            "sampled_mw": ("nvmlDeviceGetPowerUsage",),
        }
        found = dict[str, float]()
        for name, (question, *more) in asked.items():
            try:
                found[name] = float(getattr(nvml, question)(handle, *more))
            except (AttributeError, nvml.NVMLError):  # this driver or board has no answer
                continue
        if "sampled_mw" in found:
            found["sampled_w"] = found.pop("sampled_mw") / 1000
        self._state = self.now(), found
        return found

    def joules(self) -> float:
        """Return the energy counter."""
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) * 1e-3

    def forget(self) -> None:
        """Free inputs and results."""
        self._kept.clear()

    def failed(self, job: Job, reason: Exception) -> Measurement:
        """Return the row of a job that raised; `lost` is set if the device is gone with it."""
        text = f"{type(reason).__name__}: {reason}".splitlines()[0][:300]
        if isinstance(reason, torch.OutOfMemoryError):
            self.forget()
            torch.cuda.empty_cache()
        try:
            self.synchronize()
        except Exception:
            self.lost = True
        return self.row(job, Status.RUNTIME_ERROR, error=text)


def _bytes(prepared: Prepared) -> float:
    tensors = [*prepared.inputs.values(), prepared.expected]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
