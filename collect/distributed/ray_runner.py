"""The runner that measures on all equal devices of a Ray cluster."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np

from foretune.collect.distributed.actor import PickledKernel
from foretune.collect.distributed.dispatcher import MAX_ATTEMPTS, Dispatcher, WorkerLost
from foretune.collect.distributed.ray_pool import RayWorkerPool
from foretune.collect.machine_load import LoadMonitor, MachineLoad
from foretune.collect.runner import Runner, check_importable, failed_measurement
from foretune.collect.timing import Timing
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


class RayRunner(Runner):
    """Measures on every device of a Ray cluster that is equal to ``device``.

    Each device has an actor, and in it an `IsolatedRunner`. If an actor or its node is lost, what
    it had is measured elsewhere; a configuration that takes three of them along is a row. Devices
    may join at any time. Where Ray runs in this process already, its cluster is used.

    Args:
        kernel: to be measured; its source travels along.
        device: on which, or its name: then the cluster is asked.
        timing: when to stop repeating.
        limit_s: seconds one configuration may take in all.
        power: meter power where a meter works.
        address: of the cluster; None is ``$RAY_ADDRESS``, or else one is started on this machine.

    Raises:
        MissingExtra: Ray is not installed.
        MeasurementError: no cluster answers, or no device is fit: other code, other versions.
        UsageError: the cluster has no such device, or the kernel cannot run elsewhere.
    """

    def __init__(
        self,
        kernel: Kernel,
        device: Device | str,
        timing: Timing | None = None,
        limit_s: float = 30.0,
        power: bool = True,
        address: str | None = None,
    ) -> None:
        if isinstance(device, Device):
            self.device = device
            self.check(kernel)
        check_importable(kernel)
        self._pool = RayWorkerPool(kernel, device, address, timing, limit_s, power)
        try:
            self._dispatcher = Dispatcher(self._pool, self._set_device)
            self._dispatcher.wait()
        except BaseException:
            self.close()
            raise

    @property
    def parallelism(self) -> int:  # type: ignore[override]
        """How many devices are ready."""
        return len(self._dispatcher)

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, all of the same device unless that is lost."""
        for config in configs:
            yield from self.run_many(kernel, [(problem, config)], incumbent_ms)

    def run_many(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration as they get done, on all devices."""
        self.check(kernel)
        pairs, pickled = list(work), PickledKernel.from_kernel(kernel)
        pieces = ((p, ("run", (pickled, p, [c], incumbent_ms))) for p, c in pairs)
        for number, answer in self._call_many(pieces):
            if isinstance(answer, WorkerLost):
                yield failed_measurement(
                    kernel, *pairs[number], self.device, Status.RUNTIME_ERROR,
                    f"{MAX_ATTEMPTS} workers were lost while they measured it: {answer}",
                )  # fmt: skip
            else:
                yield from answer

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 2.0,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms, all of one device."""
        self.check(kernel)
        answer = self._call(
            "compare_interleaved",
            PickledKernel.from_kernel(kernel),
            problem,
            list(configs),
            max_seconds,
        )
        if isinstance(answer, WorkerLost):
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: {answer}"
            )
        times: dict[str, np.ndarray] = answer
        return times

    def watch(self) -> LoadMonitor:
        """Return what sees the machine that measures next."""
        return _RemoteLoadMonitor(self.device, self._call)

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on these devices and can be imported elsewhere.

        Raises:
            UsageError: it cannot.
        """
        super().check(kernel)
        check_importable(kernel)

    def close(self) -> None:
        """End the actors, and the cluster if it was started for this runner."""
        self._pool.close()

    def _set_device(self, device: Device) -> None:
        self.device = getattr(self, "device", device)

    def _call(self, method: str, *arguments: Any) -> Any:
        ((_, answer),) = self._call_many([(None, (method, arguments))])
        return answer

    def _call_many(self, pieces: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the answers to (method, arguments), each with its group.

        Raises:
            ForetuneError: one of the answers.
        """
        for number, answer in self._dispatcher.results(pieces):
            if isinstance(answer, ForetuneError):
                raise answer
            yield number, answer


class _RemoteLoadMonitor(LoadMonitor):
    """Sees what disturbs a device of the fleet: one thing after the other goes to the same."""

    def __init__(self, device: Device, call: Callable[[str], Any]) -> None:
        super().__init__(device)
        self._call = call

    def __enter__(self) -> Self:
        self._call("watch")
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # nobody wants to know what a failure was disturbed by
            load = self._call("observed_load")
            self.load = load if isinstance(load, MachineLoad) else MachineLoad()
