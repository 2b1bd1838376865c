"""Runners: measure configurations in this process or in an isolated one."""

import math
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self

from foretune.collect.benchmark import Benchmarker, measurement
from foretune.collect.comparison import Rounds
from foretune.collect.devices import local_gpus
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.separate_contender import SeparateContender
from foretune.collect.timing import Timing
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


class Runner(ABC):
    """Measures configurations on one device or on several equal ones; a context manager."""

    device: Device
    """The device; one of them if there are several equal ones."""
    parallelism: int = 1
    """Number of configurations that it can measure at once: one per device."""
    why_not_separate: str = "the measuring processes are on another machine"
    """Why there is no `separate_process`, if there is none."""

    @abstractmethod
    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, failed or not, in order, from one device."""

    def run_many(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration, from any device, as it is done."""
        for problem, config in work:
            yield from self.run(kernel, problem, [config], incumbent_ms)

    @abstractmethod
    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 0.5,
        seed: int = 0,
    ) -> Rounds:
        """Return times in interleaved rounds, in a fresh process if the runner has one.

        The default, which comes first, is built twice. All launches get new inputs in every round,
        from ``seed``. ``max_seconds`` limits the rounds; a few are always run. Raises
        MeasurementError if a configuration hangs or dies.
        """

    def separate_process(
        self, kernel: WrappedKernel, problem: Problem, config: Configuration, hash_seed: int
    ) -> WorkerProcess | None:
        """Return a process of this machine for one configuration; None if there is none.

        It serves a `SeparateContender`. ``hash_seed`` decides the order of sets of texts.
        """
        return None

    def renew(self) -> None:
        """Measure in a fresh process from now on, if the runner has one."""

    def check(self, kernel: Kernel) -> None:
        """Check that ``kernel`` runs on this kind of device; raise UsageError if it does not."""
        if kernel.device_kind == self.device.kind:
            return
        if kernel.device_kind != "gpu":
            advice = "choose --device cpu"
        elif local_gpus():
            advice = "choose --device cuda:0"
        else:
            advice = "this machine has no GPU"
        raise UsageError(
            f"{kernel.name} runs on a {kernel.device_kind}, not on {self.device.name}: {advice}"
        )

    def watch(self) -> LoadMonitor:
        """Return a monitor of other load on the measuring machine."""
        return LoadMonitor(self.device)

    def close(self) -> None:
        """Release processes and other resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InProcessRunner(Runner):
    """Measures in this process. Use it for kernels that cannot hang or crash."""

    why_not_separate = "configurations run in this process"

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
        max_seconds: float = 0.5,
        seed: int = 0,
    ) -> Rounds:
        """Return times in interleaved rounds."""
        self.check(kernel)
        return self._benchmarker.compare_interleaved(kernel, problem, configs, max_seconds, seed)


class IsolatedRunner(Runner):
    """Measures in a child process with a time limit per configuration.

    A hang is recorded as ``timeout`` and a crash as ``runtime_error``. The next configuration gets
    a new process then, and also after one that changed its inputs or the state of its module. A
    wrong result is accepted only from a fresh process, because an earlier configuration may have
    caused it. What a kernel starts ends with the process: on Linux everything, elsewhere the
    processes of its session. The child imports kernels from their modules; kernels of a script or
    notebook are pickled by value.

    ``limit_s`` is for one configuration: build, check, timing and power, which is measured if
    ``power`` is true and a meter works.
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
        # A process loads what earlier ones compiled.
        builds = tempfile.mkdtemp(prefix="foretune-")
        weakref.finalize(self, shutil.rmtree, builds, ignore_errors=True)
        self._worker = WorkerProcess(
            partial(Benchmarker, device, timing, power=power, build_folder=builds),
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
            process_was_fresh = self._worker.calls_made == 0
            measured = self._measure(kernel, problem, config, incumbent_ms)
            # An earlier configuration may have caused the wrong result: try in a fresh process.
            if measured.status is Status.WRONG_RESULT and not process_was_fresh:
                self.close()
                measured = self._measure(kernel, problem, config, incumbent_ms)
            yield measured

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 0.5,
        seed: int = 0,
    ) -> Rounds:
        """Return times in interleaved rounds of a fresh process."""
        self.check(kernel)
        self.renew()
        compared = list(configs)
        # The default is built twice.
        n_builds = len(compared) + 1
        limit_s = self.limit_s * n_builds + max_seconds
        try:
            rounds = self._worker.call(
                "compare_interleaved",
                kernel,
                problem,
                compared,
                max_seconds,
                seed,
                limit_s=limit_s,
            )
        except (TimeoutError, ChildProcessError) as e:
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: "
                f"{e or 'they hang'}"
            ) from e
        assert isinstance(rounds, Rounds)
        return rounds

    def separate_process(
        self, kernel: WrappedKernel, problem: Problem, config: Configuration, hash_seed: int
    ) -> WorkerProcess:
        """Return a process for one configuration."""
        return WorkerProcess(
            partial(SeparateContender, kernel, problem, config),
            ("the kernel", "measure with InProcessRunner"),
            variables={"PYTHONHASHSEED": str(hash_seed)},
        )

    def renew(self) -> None:
        """Measure in a fresh process from now on."""
        self.close()

    def close(self) -> None:
        """Kill the child process and its children."""
        self._worker.close()

    def check(self, kernel: Kernel) -> None:
        """Check that ``kernel`` runs on this kind of device; raise UsageError if it does not."""
        super().check(kernel)
        _ = kernel.source_hash  # computed here: the child cannot read the running script

    def _measure(
        self, kernel: Kernel, problem: Problem, config: Configuration, incumbent_ms: float
    ) -> Measurement:
        try:
            answer = self._worker.call(
                "measure", kernel, problem, config, incumbent_ms, limit_s=self.limit_s
            )
        except TimeoutError:
            status = Status.TIMEOUT
            reason = f"did not finish within {self.limit_s:g} s"
        except ChildProcessError as e:
            status = Status.RUNTIME_ERROR
            reason = str(e)
        else:
            if isinstance(answer, Measurement) and answer.config == config:
                return answer
            self.close()
            status = Status.RUNTIME_ERROR
            reason = "the process returned the measurement of another configuration"
        return measurement(kernel, problem, config, self.device, status=status, error=reason)
