"""Measures one configuration of a call with the tuner's hooks and benchmarker.

A configuration fails if it does not compile, exceeds the resources, or computes other numbers than
the first one. If it breaks the device, the failure is recorded and the search ends.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from traceback import walk_tb
from typing import Any

import numpy as np
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from foretune.collect.power import find_meter, measure_power
from foretune.errors import warn
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.kernel import KernelCall, to_configuration
from foretune.tune.triton.output_check import ComparisonError, OutputChecker
from foretune.tune.triton.runtime import device_interface, synchronize

INVALID_CONFIG_ERRORS = (OutOfResources, PTXASError, CompilationError)
"""Errors that mean a configuration cannot run on this device."""
MIN_TIME_MS = 1e-6
"""Lower bound for times, because a benchmarker may return 0."""


class UserKernelError(Exception):
    """An error of the kernel or its hooks; the caller gets ``cause``."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CannotRun(Exception):
    """A configuration must not be launched to compute outputs."""


class ConfigurationBenchmark:
    """Measures configurations of one call.

    ``configs`` are all candidates; those that ``can_run`` may be launched for the expected outputs.
    ``timings`` holds the benchmarker's results of configurations that passed.
    """

    def __init__(
        self,
        kernel: KernelCall,
        configs: Sequence[triton.Config],
        history: CallHistory,
        *,
        can_run: Callable[[triton.Config], bool],
    ) -> None:
        self.timings: dict[triton.Config, Any] = {}
        self._kernel = kernel
        self._configs = configs
        self._call = history.call
        self._cache = history.cache
        self._needs_power = history.needs_power
        self._can_run = can_run
        self._measuring: Configuration | None = None

    def measure(self, config: triton.Config) -> Measurement:
        """Return the measurement of one candidate.

        Raises UserKernelError if device, hook or call are at fault, or ComparisonError.
        """
        configuration = to_configuration(config)
        self._measuring = configuration
        with self._cache.mark_measuring(self._call.problem, configuration):
            try:
                timing = self._benchmark(config)
            except ComparisonError:
                raise
            except (*INVALID_CONFIG_ERRORS, CannotRun) as e:
                return self._call.failure(configuration, Status.COMPILE_ERROR, e)
            except Exception as e:
                failure = self._call.failure(configuration, Status.RUNTIME_ERROR, e)
                self._raise_unless_config_error(e, failure)
                return failure

            # A benchmarker returns a time or several quantiles; infinite if it caught an error.
            times_ms = [float(time_ms) for time_ms in np.ravel(timing)]
            if not math.isfinite(times_ms[0]):
                reason = "does not compile, or exceeds the device's resources"
                return self._call.failure(configuration, Status.INVALID, reason)

            error = math.nan
            if self._kernel.options.check is not None:
                error = self._checker.error(config)
                if not error <= self._kernel.options.check:
                    return self._wrong_result(configuration, error)
            self.timings[config] = timing
            return self._success(config, times_ms, error)

    def _benchmark(self, config: triton.Config) -> Any:
        """Return the benchmarker's result; restore undeclared arguments that it changed."""
        if self._kernel.options.check is None:
            return self._kernel.bench(config)
        checker = self._checker  # copies arguments before the first launch
        try:
            return self._kernel.bench(config)
        finally:
            if checker.changed:
                checker.restore_arguments()

    def close(self) -> None:
        """Free the copies of the arguments."""
        self.__dict__.pop("_checker", None)

    def _wrong_result(self, configuration: Configuration, error: float) -> Measurement:
        limit = self._kernel.options.check
        reason = f"differs from {self._checker.source} by {error:.2g}, more than {limit:.2g}"
        return self._call.failure(configuration, Status.WRONG_RESULT, reason)

    def _success(
        self, config: triton.Config, times_ms: Sequence[float], error: float
    ) -> Measurement:
        """Return the measurement of a configuration that passed, with its power."""
        samples_ms = [max(time_ms, MIN_TIME_MS) for time_ms in times_ms]
        median_ms = samples_ms[0]
        power_w, energy_mj = self._measure_power(config, median_ms)
        return self._call.success(
            to_configuration(config),
            median_ms,
            samples_ms,
            power_w=power_w,
            energy_mj=energy_mj,
            relative_error=error,
        )

    @cached_property
    def _checker(self) -> OutputChecker:
        options = self._kernel.options
        tuner = self._kernel.tuner
        arguments = {n: v for n, v in self._kernel.named.items() if n in tuner.arg_names}
        own_hooks = tuner.user_defined_pre_hook or tuner.user_defined_post_hook
        assert options.check is not None
        checker = OutputChecker(
            self._launch,
            arguments,
            self._configs,
            limit=options.check,
            reference=options.reference,
            restored=() if own_hooks else tuner.restore_value,
        )
        if checker.outvoted:
            warn(
                f"{checker.outvoted} of {self._call.kernel} differs from {checker.source}, so it "
                "counts as wrong: give the correct result with reference="
            )
        if checker.changed:
            warn(
                f"{self._call.kernel} reads and changes {', '.join(checker.changed)}, restored "
                "after every measurement: list them in restore_value or reset_to_zero"
            )
        return checker

    def _launch(self, config: triton.Config) -> None:
        """Launch for the checker; if the process ends, the configuration counts as the cause."""
        problem = self._call.problem
        configuration = to_configuration(config)
        if configuration == self._measuring:  # it is already marked
            self._kernel.launch(config)
            return
        if not self._can_run(config):
            raise CannotRun("it is too slow to compile, or known to fail")
        with self._cache.mark_measuring(problem, configuration):
            self._kernel.launch(config)
        self._cache.release(problem, configuration)

    def _measure_power(self, config: triton.Config, time_ms: float) -> tuple[float, float]:
        """Return mean power (W) and energy per launch (mJ); NaN if not metered."""
        device = self._call.device
        meter = find_meter(device.kind, device.index) if self._needs_power else None
        if meter is None:
            return math.nan, math.nan
        try:
            with self._kernel.with_hooks(config) as run:
                return measure_power(meter, run, time_ms, synchronize, device_interface())
        except Exception as e:
            warn(f"power was not metered: {type(e).__name__}: {e}")
            return math.nan, math.nan

    def _raise_unless_config_error(self, error: Exception, failure: Measurement) -> None:
        """Raise ``error`` unless only this configuration is at fault.

        If the device is broken, the failure is recorded first. Hooks and the call concern all.
        """
        try:
            synchronize()
        except Exception:
            self._cache.append(failure)
            raise UserKernelError(error) from error
        wrong_call = isinstance(error, (TypeError, ValueError)) and not self.timings
        if wrong_call or not _raised_in_launch(self._kernel.tuner.fn, error):
            raise UserKernelError(error) from error


def _raised_in_launch(fn: Any, error: BaseException) -> bool:
    """Whether the kernel's launch raised ``error``, not a hook around it."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_locals.get("self") is fn for frame in frames)
