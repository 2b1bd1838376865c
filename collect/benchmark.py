"""The workbench: builds, checks, times and meters configurations in this process."""

import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from foretune.collect.power import find_meter, measure_power
from foretune.collect.timing import Timer, Timing, time_interleaved, time_launch, timer_for
from foretune.collect.versions import versions
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError
from foretune.kernel import Inputs, Kernel, Launch, SelfTimedLaunch, WrongResult
from foretune.measurement import POWER_MARGIN, Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

MAX_INPUT_SETS = 2
DEFAULT_REPEATED = "again"
"""The first of a race stands in it twice: two that are the same should take as long."""


@dataclass(frozen=True)
class PreparedInputs:
    """Inputs of a problem and the right result."""

    inputs: Inputs
    expected: Any


class Benchmarker:
    """Runs configurations one after the other.

    Args:
        device: what is measured on.
        timing: when to stop repeating.
        power: meter power after timing, where a meter works; otherwise it stays missing.

    Attributes:
        source: what the rows' column ``source`` says.
        device_lost: whether a launch broke this process's use of the device: nothing runs on it
            any more.
    """

    source = "foretune"

    def __init__(self, device: Device, timing: Timing | None = None, power: bool = True) -> None:
        self.device = device
        self.timing = timing or Timing()
        self.meter = find_meter(device.kind, device.index) if power else None
        self.device_lost = False
        self._prepared_inputs: OrderedDict[tuple[str, Problem], PreparedInputs] = OrderedDict()

    def measure(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        incumbent_ms: float = math.inf,
    ) -> Measurement:
        """Return what came of building, checking and timing ``config``; failures are statuses.

        Raises:
            ForetuneError: nothing of this kernel can be measured here (a package is missing, …).
        """
        timer = self._timer(kernel, problem)
        prepared = self.prepared(kernel, problem)
        start = time.perf_counter()
        try:
            launch = kernel.build(problem, config, prepared.inputs)
        except ForetuneError:
            raise
        except Exception as e:
            self._check_device(timer)
            return self._failed(kernel, problem, config, Status.COMPILE_ERROR, e)
        compile_s = time.perf_counter() - start
        try:
            error = self._error(kernel, launch, prepared.expected)
            if not error <= (limit := kernel.error_limit(problem, config)):
                self._prepared_inputs.pop(
                    (kernel.name, problem)
                )  # it may have written into its inputs
                wrong = f"relative error {error:.2g} is above {limit:.2g}"
                return self._row(kernel, problem, config, Status.WRONG_RESULT, error=wrong)
            samples = time_launch(launch, self.timing, incumbent_ms, timer)
        except WrongResult as e:
            self._prepared_inputs.pop((kernel.name, problem))
            return self._row(kernel, problem, config, Status.WRONG_RESULT, error=_one_line(str(e)))
        except Exception as e:
            self._check_device(timer)
            return self._failed(kernel, problem, config, Status.RUNTIME_ERROR, e)
        time_ms = float(np.median(samples))
        power_w, energy_mj = self._measure_power(launch, time_ms, timer)
        return self._row(
            kernel,
            problem,
            config,
            time_ms=time_ms,
            time_ms_samples=tuple(map(float, samples)),
            power_w=power_w,
            energy_mj=energy_mj,
            compile_s=compile_s,
            relative_error=error,
        )

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in milliseconds by configuration id, and of the library call.

        The library call's name is prefixed with ``library:``; `AGAIN` is the first configuration
        once more. A configuration whose output is wrong is left out.
        """
        timer = self._timer(kernel, problem)
        prepared = self.prepared(kernel, problem)
        inputs, launches = prepared.inputs, dict[str, Launch]()
        try:
            for config in configs:
                launch = kernel.build(problem, config, inputs)
                with suppress(WrongResult):
                    error = self._error(kernel, launch, prepared.expected)
                    if error <= kernel.error_limit(problem, config):
                        launches[config.id] = launch
            if launches:
                launches[DEFAULT_REPEATED] = next(iter(launches.values()))
            if library := self._library(kernel, problem, inputs):
                launches[f"library:{library[0]}"] = library[1]
            return time_interleaved(launches, max_seconds, timer=timer)
        except Exception:
            self._check_device(timer)
            raise

    def _timer(self, kernel: Kernel, problem: Problem) -> Timer:
        if self.device_lost:
            raise MeasurementError(
                f"{self.device.name} is of no use to this process since a launch failed: "
                "measure with IsolatedRunner, which starts another"
            )
        return timer_for(kernel, problem, self.device)

    def _check_device(self, timer: Timer) -> None:
        """Find out whether a failure was only one launch's: a bad access takes the device along."""
        try:
            timer.wait()
        except Exception:
            self.device_lost = True

    def prepared(self, kernel: Kernel, problem: Problem) -> PreparedInputs:
        """Return inputs and right result; those used last stay in memory."""
        key = (kernel.name, problem)
        if key not in self._prepared_inputs:
            self._evict_inputs(kernel, problem)
            inputs = self.inputs(kernel, problem)
            self._prepared_inputs[key] = PreparedInputs(inputs, self._reference(kernel, inputs))
        self._prepared_inputs.move_to_end(key)
        return self._prepared_inputs[key]

    def inputs(self, kernel: Kernel, problem: Problem, seed: int = 0) -> Inputs:
        """Return inputs on the device."""
        return kernel.make_inputs(problem, seed)

    def _evict_inputs(self, kernel: Kernel, problem: Problem) -> None:
        while len(self._prepared_inputs) >= MAX_INPUT_SETS:
            self._prepared_inputs.popitem(last=False)

    def _reference(self, kernel: Kernel, inputs: Inputs) -> Any:
        return kernel.reference(inputs)

    def _library(
        self, kernel: Kernel, problem: Problem, inputs: Inputs
    ) -> tuple[str, Launch] | None:
        return kernel.library(problem, inputs)

    def _error(self, kernel: Kernel, launch: Launch, expected: Any) -> float:
        """Return the relative error of what ``launch`` computes.

        The first output is spoilt and computed again: memory that still holds another
        configuration's right result would pass for it otherwise.
        """
        kernel.invalidate_output(launch())
        return kernel.relative_error(launch(), expected)

    def _measure_power(self, launch: Launch, time_ms: float, timer: Timer) -> tuple[float, float]:
        """Return mean power (W) and one launch's energy (mJ); NaN where no meter tells."""
        if self.meter is None:
            return math.nan, math.nan
        if isinstance(
            launch, SelfTimedLaunch
        ):  # a call alone may do more, or nothing, a second time
            launch = partial(launch.sample_ms, timer, 1)
        try:
            power_w, energy_mj = measure_power(
                self.meter, launch, time_ms, timer.wait, timer.interface
            )
        except Exception:  # the time is right all the same
            self._check_device(timer)
            return math.nan, math.nan
        limit_w = POWER_MARGIN * self.device.specs.get("power_limit_w", math.inf)
        return (power_w, energy_mj) if 0 < power_w <= limit_w else (math.nan, math.nan)

    def _failed(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        status: Status,
        reason: Exception,
    ) -> Measurement:
        if isinstance(reason, TimeoutError):
            return self._row(kernel, problem, config, Status.TIMEOUT, error=_one_line(str(reason)))
        text = _one_line(f"{type(reason).__name__}: {reason}")
        return self._row(kernel, problem, config, status, error=text)

    def _row(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        status: Status = Status.OK,
        **values: Any,
    ) -> Measurement:
        return Measurement(
            kernel.name, problem, config, self.device.name, status,
            source=self.source, environment=environment(kernel), **values,
        )  # fmt: skip


def _one_line(text: str) -> str:
    """Return the first line of a reason, as every file can hold it."""
    return text.splitlines()[0][:300].encode("utf-8", "backslashreplace").decode()


def environment(kernel: Kernel) -> str:
    """Return what else a time depends on: versions and the kernel's code.

    For example ``python 3.12.1, numpy 2.4.0, numba 0.63.0, matmul 1f3a5c77``.
    """
    return f"{versions()}, {kernel.name} {kernel.source_hash[:8]}"
