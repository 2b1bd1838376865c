"""Builds, checks and times configurations in this process, and measures their power."""

import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from foretune.collect import state_guard
from foretune.collect.comparison import (
    InterleavedComparison,
    Rounds,
    expected_result,
    parts_of,
)
from foretune.collect.forked_comparison import can_fork, compare_in_processes
from foretune.collect.kernels.numba_codegen import BUILD_FOLDER
from foretune.collect.power import find_meter, measure_power
from foretune.collect.timing import Timer, Timing, time_launch, timer_for
from foretune.collect.versions import versions
from foretune.collect.wrapped.call_arguments import ResettingLaunch
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError, describe_error, first_line
from foretune.kernel import Inputs, Kernel, Launch, SelfTimedLaunch, WrongResult
from foretune.measurement import POWER_MARGIN, Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

LATE_S = 0.02
"""Seconds after which an output is checked again."""
SEPARATE_SHARE = 0.25
"""Time of the rounds in separate processes, relative to that of the others."""


@dataclass(frozen=True)
class PreparedInputs:
    """Inputs of a problem, the expected result, and their arrays with their fingerprints."""

    inputs: Inputs
    expected: Any
    arrays: list[tuple[Any, int]]


class Benchmarker:
    """Runs configurations one after the other.

    ``device_lost`` is true after a launch broke this process's device context; nothing runs then.
    ``has_traces`` is true after a configuration changed the state of this process.
    """

    source = "foretune"
    """Value of the rows' column ``source``."""
    max_input_sets = 2
    """Number of problems whose inputs stay in memory."""

    def __init__(
        self,
        device: Device,
        timing: Timing | None = None,
        power: bool = True,
        build_folder: str = "",
    ) -> None:
        if build_folder:
            os.environ.setdefault(BUILD_FOLDER, build_folder)
        self.device = device
        self.timing = timing or Timing()
        self.meter = find_meter(device.kind, device.index) if power else None
        self.device_lost = False
        self.has_traces = False
        self._guard = state_guard.FunctionGuard()
        self._output: Any = None
        self._prepared_inputs: OrderedDict[tuple[str, str, Problem], PreparedInputs] = OrderedDict()

    @property
    def usable(self) -> bool:
        """Whether the next configuration may run in this process, too."""
        return not self.device_lost and not self.has_traces

    def measure(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        incumbent_ms: float = math.inf,
    ) -> Measurement:
        """Build, check and time ``config``; return failures as statuses.

        A configuration that changes its inputs, or replaces the clock or the checker, fails. Raises
        ForetuneError if this kernel cannot be measured here at all (a package is missing, …).
        """
        timer = self._timer(kernel, problem)
        prepared = self.prepared(kernel, problem)
        state_before = state_guard.own_state(kernel)
        checkers_before = state_guard.checker_ids(kernel)
        process = state_guard.ProcessState()
        self._output = None
        measured = self._measure(
            kernel, problem, config, incumbent_ms=incumbent_ms, timer=timer, prepared=prepared
        )
        process.restore()

        # After a lost device, its memory cannot be read.
        if self.device_lost:
            return measured

        # What did the configuration leave behind?
        replaced = self._replaced(kernel, checkers_before)
        inputs_changed = state_guard.has_changed(prepared.arrays, self._output)
        if inputs_changed or state_guard.own_state(kernel) != state_before:
            self.has_traces = True
        if not replaced and not inputs_changed:
            return measured

        self._prepared_inputs.pop(_key_of_inputs(kernel, problem), None)
        reason = f"it replaces {replaced}" if replaced else "it changes its inputs or the reference"
        return measurement(
            kernel,
            problem,
            config,
            self.device,
            status=Status.WRONG_RESULT,
            error=reason,
            source=self.source,
        )

    def _replaced(self, kernel: Kernel, checkers_before: list[int]) -> str:
        """Restore the functions that a configuration replaced; return their names as text."""
        replaced = self._guard.restore()
        if state_guard.checker_ids(kernel) != checkers_before:
            replaced.append("its own check")
        if replaced:
            self.has_traces = True
        return ", ".join(replaced[:3])

    def _measure(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        incumbent_ms: float,
        timer: Timer,
        prepared: PreparedInputs,
    ) -> Measurement:
        """Build, check, time and meter ``config``; the first failure ends it."""
        error_limit = kernel.error_limit(problem, config)
        make_row = partial(measurement, kernel, problem, config, self.device, source=self.source)

        start = time.perf_counter()
        try:
            launch = kernel.build(problem, config, prepared.inputs)
        except ForetuneError:
            raise
        except Exception as e:
            return self._failed(make_row, Status.COMPILE_ERROR, e, timer=timer)
        compile_s = time.perf_counter() - start

        try:
            relative_error = self._error(kernel, launch, prepared.expected)
            # An error that is NaN is too large as well.
            if not relative_error <= error_limit:
                raise WrongResult(f"relative error {relative_error:.2g} is above {error_limit:.2g}")
            samples = time_launch(launch, self.timing, incumbent_ms=incumbent_ms, timer=timer)
        except WrongResult as e:
            # It may have written into its inputs: the next configuration gets new ones.
            self._prepared_inputs.pop(_key_of_inputs(kernel, problem), None)
            return make_row(Status.WRONG_RESULT, first_line(e))
        except Exception as e:
            return self._failed(make_row, Status.RUNTIME_ERROR, e, timer=timer)

        time_ms = float(np.median(samples))
        power_w, energy_mj = self._measure_power(launch, time_ms, timer)
        return make_row(
            time_ms=time_ms,
            time_ms_samples=tuple(map(float, samples)),
            power_w=power_w,
            energy_mj=energy_mj,
            compile_s=compile_s,
            relative_error=relative_error,
        )

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float,
        seed: int = 0,
    ) -> Rounds:
        """Time configurations in interleaved rounds; see `Runner.compare_interleaved`."""
        timer = self._timer(kernel, problem)
        checkers_before = state_guard.checker_ids(kernel)
        default, *candidates = configs
        separate = Rounds({})
        if can_fork(kernel, timer):
            separate_s = SEPARATE_SHARE * max_seconds
            separate = compare_in_processes(
                kernel, problem, [default, *candidates], separate_s, seed
            )
        working = [config for config in candidates if config.id not in separate.failures]
        try:
            comparison = InterleavedComparison.of_configs(
                kernel, problem, [default, *working], timer, seed
            )
            times = comparison.run(max_seconds)
        except Exception:
            self._check_device(timer)
            raise
        replaced = self._replaced(kernel, checkers_before)
        if replaced:
            raise MeasurementError(f"one of {kernel.name}'s finalists replaces {replaced}")
        failures = {
            contender: first_line(e) if isinstance(e, WrongResult) else describe_error(e)
            for contender, e in comparison.failures.items()
        }
        return Rounds(
            times,
            failures={**separate.failures, **failures},
            checked_on=tuple(comparison.checked_on),
            separate_ms=separate.time_ms,
            cores=comparison.cores(),
            other_threads=comparison.other_threads(),
        )

    def _timer(self, kernel: Kernel, problem: Problem) -> Timer:
        if self.device_lost:
            raise MeasurementError(
                f"a failed launch made {self.device.name} unusable in this process: "
                "measure with IsolatedRunner, which starts another process"
            )
        return timer_for(kernel, problem, self.device)

    def _check_device(self, timer: Timer) -> None:
        """Check whether the device context survived the failed launch."""
        try:
            timer.wait()
        except Exception:
            self.device_lost = True

    def prepared(self, kernel: Kernel, problem: Problem) -> PreparedInputs:
        """Return inputs and expected result; the most recent sets stay in memory."""
        key = _key_of_inputs(kernel, problem)
        if key not in self._prepared_inputs:
            while len(self._prepared_inputs) >= self.max_input_sets:
                self._prepared_inputs.popitem(last=False)
            inputs = kernel.make_inputs(problem)
            expected = expected_result(kernel, inputs)
            arrays = state_guard.fingerprints((inputs, parts_of(expected)))
            self._prepared_inputs[key] = PreparedInputs(inputs, expected, arrays)
        self._prepared_inputs.move_to_end(key)
        return self._prepared_inputs[key]

    def _error(self, kernel: Kernel, launch: Launch, expected: Any) -> float:
        """Return the relative error of a launch's output.

        The last output is invalidated first; otherwise a launch that writes nothing would pass.
        """
        kernel.invalidate_output(launch())
        self._output = launch()
        error = kernel.relative_error(self._output, expected)
        if not isinstance(launch, ResettingLaunch):
            return error

        # A thread that the call left behind may still change the result, or the arguments.
        time.sleep(LATE_S)
        late = launch.output(self._output.returned)
        return max(error, kernel.relative_error(late, expected))

    def _measure_power(self, launch: Launch, time_ms: float, timer: Timer) -> tuple[float, float]:
        """Return mean power (W) and one launch's energy (mJ); NaN without a working meter."""
        if self.meter is None:
            return math.nan, math.nan

        # A launch that times itself may do nothing without its reset, which its timing calls.
        run = partial(launch.sample_ms, timer, 1) if isinstance(launch, SelfTimedLaunch) else launch
        try:
            power_w, energy_mj = measure_power(
                self.meter, run, time_ms=time_ms, wait=timer.wait, interface=timer.interface
            )
        except Exception:
            # The measured time stays valid.
            self._check_device(timer)
            return math.nan, math.nan

        # A reading that is impossible for the board is a meter's fault.
        limit_w = POWER_MARGIN * self.device.specs.get("power_limit_w", math.inf)
        if not 0 < power_w <= limit_w:
            return math.nan, math.nan
        return power_w, energy_mj

    def _failed(
        self, make_row: Callable[..., Measurement], status: Status, reason: Exception, timer: Timer
    ) -> Measurement:
        self._check_device(timer)
        if isinstance(reason, TimeoutError):
            return make_row(Status.TIMEOUT, first_line(reason))
        return make_row(status, describe_error(reason))


def _key_of_inputs(kernel: Kernel, problem: Problem) -> tuple[str, str, Problem]:
    return kernel.name, kernel.source_hash, problem


def measurement(
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    device: Device,
    status: Status = Status.OK,
    error: str = "",
    **values: Any,
) -> Measurement:
    """Return the measurement of a configuration with the software that is installed here."""
    return Measurement(
        kernel=kernel.name,
        problem=problem,
        config=config,
        device=device.name,
        status=status,
        error=error,
        environment=environment(kernel),
        **values,
    )


def environment(kernel: Kernel) -> str:
    """Return the software that a time depends on: versions and a hash of the kernel's code.

    For example ``python 3.12.1, numpy 2.4.0, numba 0.63.0, matmul 1f3a5c77``.
    """
    return f"{versions()}, {kernel.name} {kernel.source_hash[:8]}"
