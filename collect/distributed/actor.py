"""A member of the fleet: the Ray actor that measures on one device."""

import os
import pickle
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.benchmark import environment
from foretune.collect.devices import local_device
from foretune.collect.distributed.resource import resource_of
from foretune.collect.machine_load import LoadMonitor, MachineLoad
from foretune.collect.runner import IsolatedRunner
from foretune.collect.timing import Timing
from foretune.collect.versions import toolchain
from foretune.errors import ForetuneError, MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Measurement

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Ray limits its workers to one thread; kernels get what they would get without Ray."""


@dataclass(frozen=True)
class PickledKernel:
    """A kernel on its way, and what identifies its code and the software it is measured with.

    Attributes:
        payload: pickled, so that it is opened only where its modules can be found.
        name: of the kernel.
        source_hash: hash of its code.
        versions: of all that times depend on.
    """

    payload: bytes
    name: str
    source_hash: str
    versions: str

    @classmethod
    def from_kernel(cls, payload: Kernel) -> "PickledKernel":
        """Return ``payload`` ready to be sent.

        Raises:
            MeasurementError: it cannot be.
        """
        try:
            content = pickle.dumps(payload)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise MeasurementError(f"the kernel cannot be sent to another process: {e}") from e
        return cls(content, payload.name, payload.source_hash, _versions(payload))

    def load(self) -> Kernel:
        """Return the kernel.

        Raises:
            MeasurementError: its code is not here, or other code or versions are.
        """
        here, advice = platform.node(), "install the same packages on every machine"
        try:
            payload: Kernel = pickle.loads(self.payload)
        except Exception as e:
            raise MeasurementError(
                f"{here} cannot import kernel {self.name!r} ({e}): {advice}"
            ) from e
        vars(payload).pop("source_hash", None)  # what it was where it comes from
        if payload.source_hash != self.source_hash:
            raise MeasurementError(
                f"{here} has other code of kernel {self.name!r} ({payload.source_hash}) than asked "
                f"for ({self.source_hash}): {advice}"
            )
        if (versions := _versions(payload)) != self.versions:
            raise MeasurementError(f"{here} has {versions}, asked for {self.versions}: {advice}")
        return payload


class RayActor:
    """Measures on the device that Ray gave to its actor; errors of ours are answers.

    Args:
        timing, limit_s, power: see `IsolatedRunner`.
        threads: what `THREADS` are set to, where they are set.
    """

    def __init__(
        self, timing: Timing | None, limit_s: float, power: bool, threads: dict[str, str]
    ) -> None:
        for name in THREAD_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(threads)
        self._options = (timing, limit_s, power)
        self._kernels: dict[PickledKernel, Kernel] = {}
        self._runner: IsolatedRunner | None = None
        self._monitor: LoadMonitor | None = None

    def begin(self, resource: str, pickled: PickledKernel) -> bytes:
        """Return the device, or why it is not fit for the work.

        Args:
            resource: what Ray knows this device as.
            pickled: the kernel to be measured.
        """
        try:
            kernel = self._kernel(pickled)
            device = local_device("cpu" if kernel.device_kind == "cpu" else "cuda:0")
            if resource_of(device) != resource:
                raise MeasurementError(
                    f"{platform.node()} was started as {resource}, and is {resource_of(device)}: "
                    'start its node with --resources="$(foretune doctor --ray)"'
                )
        except ForetuneError as e:
            return pickle.dumps(e)
        timing, limit_s, power = self._options
        self._runner = IsolatedRunner(device, timing, limit_s, power)
        return pickle.dumps(device)

    def answer(self, work: bytes) -> bytes:
        """Return what a method of this class returns, or an error of ours.

        Args:
            work: the method and its arguments, pickled here: Ray takes its time for it.
        """
        method, arguments = pickle.loads(work)
        try:
            return pickle.dumps(getattr(self, method)(*arguments))
        except ForetuneError as e:
            return pickle.dumps(e)

    def run(self, pickled: PickledKernel, *arguments: Any) -> list[Measurement]:
        """Return what `IsolatedRunner.run` yields."""
        return list(self._started_runner().run(self._kernel(pickled), *arguments))

    def compare_interleaved(self, pickled: PickledKernel, *arguments: Any) -> dict[str, np.ndarray]:
        """Return what `IsolatedRunner.race` does."""
        return self._started_runner().compare_interleaved(self._kernel(pickled), *arguments)

    def watch(self) -> None:
        """Begin to see what else this machine does."""
        self._monitor = self._started_runner().watch().__enter__()

    def observed_load(self) -> MachineLoad:
        """Return what was seen since `watch`; nothing, where another member was to watch."""
        if (monitor := self._monitor) is None:
            return MachineLoad()
        self._monitor = None
        monitor.__exit__()
        return monitor.load

    def _started_runner(self) -> IsolatedRunner:
        assert self._runner is not None, "it has not begun"
        return self._runner

    def _kernel(self, pickled: PickledKernel) -> Kernel:
        if pickled not in self._kernels:
            self._kernels[pickled] = pickled.load()
        return self._kernels[pickled]


def _versions(kernel: Kernel) -> str:
    return f"{environment(kernel)}; {toolchain(kernel.device_kind)}"
