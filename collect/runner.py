"""Runners: measure configurations here, or in a process that may hang or die."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self

import numpy as np

from foretune.collect.benchmark import Benchmarker, environment
from foretune.collect.devices import local_gpus
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.service import WorkerProcess
from foretune.collect.timing import Timing
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


class Runner(ABC):
    """Measures configurations on one device, or on several equal ones; a context manager.

    Attributes:
        device: what it measures on.
        parallelism: how many configurations it can measure at the same time: one per device.
    """

    device: Device
    parallelism: int = 1

    @abstractmethod
    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, in order; a failure is a measurement too.

        All are made on one device, one after the other.
        """

    def run_many(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration, in the order they get done.

        A runner with several devices uses all of them.
        """
        for problem, config in work:
            yield from self.run(kernel, problem, [config], incumbent_ms)

    @abstractmethod
    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 2.0,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms: by configuration id, and ``library:NAME``.

        Configurations whose output is wrong are left out. Under `workbench.AGAIN` the first one may
        stand a second time.

        Raises:
            MeasurementError: one of them hangs or dies, though it ran before.
        """

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on this device.

        Raises:
            UsageError: it is made for another kind.
        """
        if kernel.device_kind == self.device.kind:
            return
        advice = "choose --device cpu"
        if kernel.device_kind == "gpu":
            advice = "choose --device cuda:0" if local_gpus() else "this machine has no GPU"
        raise UsageError(
            f"{kernel.name} runs on a {kernel.device_kind}, not on {self.device.name}: {advice}"
        )

    def watch(self) -> LoadMonitor:
        """Return what sees, while it is entered, what else its machine does."""
        return LoadMonitor(self.device)

    def close(self) -> None:
        """Give back what the runner holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InProcessRunner(Runner):
    """Measures in this process: for kernels that are trusted to return."""

    def __init__(self, device: Device, timing: Timing | None = None, power: bool = True) -> None:
        self.device = device
        self._benchmarker = Benchmarker(device, timing, power)

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration."""
        self.check(kernel)
        for config in configs:
            yield self._benchmarker.measure(kernel, problem, config, incumbent_ms)

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 2.0,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms."""
        return self._benchmarker.compare_interleaved(kernel, problem, configs, max_seconds)


class IsolatedRunner(Runner):
    """Measures in a child process that is killed when a configuration outlives its time box.

    A hang is recorded as ``timeout``, a crash as ``runtime_error``; the next configuration gets a
    fresh process. What a kernel forks ends with it. A wrong result is believed only of a process
    that ran nothing before: another configuration may have spoilt what it reads. A kernel of an
    importable module is imported there; one of the running script or a notebook is sent along.

    Args:
        device: what is measured on.
        timing: when to stop repeating.
        limit_s: seconds one configuration may take in all: build, check, timing and power.
        power: meter power where a meter works.
    """

    def __init__(
        self,
        device: Device,
        timing: Timing | None = None,
        limit_s: float = 30.0,
        power: bool = True,
    ) -> None:
        self.device = device
        self.limit_s = limit_s
        self._worker = WorkerProcess(
            partial(Benchmarker, device, timing, power),
            ("the kernel", "measure with InProcessRunner"),
        )

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration."""
        self.check(kernel)
        for config in configs:
            measured = self._measure(kernel, problem, config, incumbent_ms)
            if measured.status is Status.WRONG_RESULT and self._worker.calls_made > 1:
                self.close()
                measured = self._measure(kernel, problem, config, incumbent_ms)
            yield measured

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 2.0,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms."""
        configs = list(configs)
        limit_s = self.limit_s * (len(configs) + 1) + max_seconds
        try:
            result: dict[str, np.ndarray] = self._worker.call(
                limit_s, "compare_interleaved", kernel, problem, configs, max_seconds
            )
            return result
        except (TimeoutError, ChildProcessError) as e:
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: "
                f"{e or 'they hang'}"
            ) from e

    def close(self) -> None:
        """Kill the child process, and what it started."""
        self._worker.close()

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on this device.

        Raises:
            UsageError: it is made for another kind.
        """
        super().check(kernel)
        _ = kernel.source_hash  # the other process does not see the script that defines it

    def _measure(
        self, kernel: Kernel, problem: Problem, config: Configuration, incumbent_ms: float
    ) -> Measurement:
        try:
            answer = self._worker.call(
                self.limit_s, "measure", kernel, problem, config, incumbent_ms
            )
        except TimeoutError:
            reason = f"not done after {self.limit_s:g} s"
            return failed_measurement(kernel, problem, config, self.device, Status.TIMEOUT, reason)
        except ChildProcessError as e:
            return failed_measurement(
                kernel, problem, config, self.device, Status.RUNTIME_ERROR, str(e)
            )
        if not isinstance(answer, Measurement) or answer.config != config:
            self.close()
            reason = "the process answered something else than it was asked"
            return failed_measurement(
                kernel, problem, config, self.device, Status.RUNTIME_ERROR, reason
            )
        return answer


def check_importable(kernel: Kernel) -> None:
    """Do nothing if another machine can import ``kernel``.

    Raises:
        UsageError: it cannot.
    """
    if type(kernel).__module__ == "__main__" or not kernel.is_importable_remotely:
        raise UsageError(
            f"kernel {kernel.name!r} is defined in the script that runs: another machine cannot "
            "import it; make it a class in a module of its own, or measure here"
        )


def failed_measurement(
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    device: Device,
    status: Status,
    reason: str,
) -> Measurement:
    """Return the row of a configuration whose process did not live to tell."""
    return Measurement(
        kernel=kernel.name,
        problem=problem,
        config=config,
        device=device.name,
        status=status,
        error=reason,
        environment=environment(kernel),
    )
