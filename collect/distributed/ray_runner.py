"""The runner that measures on all equal devices of a Ray cluster."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from foretune.collect.comparison import Rounds
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

    Each device has an actor with an `IsolatedRunner`. If an actor or its node is lost, its work is
    repeated on another device; a configuration that loses three actors is a failed row. Devices may
    join at any time. If Ray is already initialized in this process, its cluster is used.

    Args:
        kernel: the kernel; its source is sent to the nodes.
        device: the device, or its name in the cluster.
        timing: when to stop repeating.
        limit_s: time limit for one configuration in seconds.
        power: measure power if a meter works.
        address: the cluster's address; by default ``$RAY_ADDRESS``, else a cluster is started on
            this machine.

    Raises:
        MissingExtra: Ray is not installed.
        MeasurementError: no cluster answers, or all devices have other code or versions.
        UsageError: the cluster has no such device, or other machines cannot import the kernel.
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
        """Number of ready devices."""
        return len(self._dispatcher)

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, from one device unless it is lost."""
        for config in configs:
            yield from self.run_many(kernel, [(problem, config)], incumbent_ms)

    def run_many(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration as each finishes on any device."""
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
        max_seconds: float = 0.5,
        seed: int = 0,
    ) -> Rounds:
        """Return times in interleaved rounds, from a fresh process of one device."""
        self.check(kernel)
        answer = self._call(
            "compare_interleaved",
            PickledKernel.from_kernel(kernel),
            problem,
            list(configs),
            max_seconds,
            seed,
        )
        if isinstance(answer, WorkerLost):
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: {answer}"
            )
        assert isinstance(answer, Rounds)
        return answer

    def watch(self) -> LoadMonitor:
        """Return a monitor of the machine that measures next."""
        return _RemoteLoadMonitor(self.device, self._call)

    def check(self, kernel: Kernel) -> None:
        """Check that ``kernel`` runs on these devices and that their nodes can import it.

        Raises UsageError if it does not, or they cannot.
        """
        super().check(kernel)
        check_importable(kernel)

    def close(self) -> None:
        """End the actors, and the cluster if this runner started it."""
        self._pool.close()

    def _set_device(self, device: Device) -> None:
        self.device = getattr(self, "device", device)

    def _call(self, method: str, *arguments: Any) -> Any:
        ((_, answer),) = self._call_many([(None, (method, arguments))])
        return answer

    def _call_many(self, pieces: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield number and answer of pieces of work, each a (group, (method, arguments)).

        Raises the actor's ForetuneError.
        """
        for number, answer in self._dispatcher.results(pieces):
            if isinstance(answer, ForetuneError):
                raise answer
            yield number, answer


class _RemoteLoadMonitor(LoadMonitor):
    """Observes the load of a remote device; consecutive calls go to the same actor."""

    def __init__(self, device: Device, call: Callable[[str], Any]) -> None:
        super().__init__(device)
        self._call = call

    def __enter__(self) -> Self:
        self._call("watch")
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # the load during a failure does not matter
            load = self._call("observed_load")
            self.load = load if isinstance(load, MachineLoad) else MachineLoad()
