"""A member of the fleet: the Ray actor that measures on one device."""

import os
import pickle
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.conditions import Conditions, Watch
from foretune.collect.fleet.resource import resource_of
from foretune.collect.probe import local_device
from foretune.collect.runner import IsolatedRunner
from foretune.collect.timer import Timing
from foretune.collect.versions import toolchain
from foretune.collect.workbench import environment
from foretune.errors import ForetuneError, MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Measurement

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Ray limits its workers to one thread; kernels get what they would get without Ray."""


@dataclass(frozen=True)
class Parcel:
    """A kernel on its way, and what identifies its code and the software it is measured with.

    Attributes:
        kernel: pickled, so that it is opened only where its modules can be found.
        name: of the kernel.
        source: hash of its code.
        versions: of all that times depend on.
    """

    kernel: bytes
    name: str
    source: str
    versions: str

    @classmethod
    def pack(cls, kernel: Kernel) -> "Parcel":
        """Return ``kernel`` ready to be sent.

        Raises:
            MeasurementError: it cannot be.
        """
        try:
            content = pickle.dumps(kernel)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise MeasurementError(f"the kernel cannot be sent to another process: {e}") from e
        return cls(content, kernel.name, kernel.source_hash, _versions(kernel))

    def open(self) -> Kernel:
        """Return the kernel.

        Raises:
            MeasurementError: its code is not here, or other code or versions are.
        """
        here, advice = platform.node(), "install the same packages on every machine"
        try:
            kernel: Kernel = pickle.loads(self.kernel)
        except Exception as e:
            raise MeasurementError(
                f"{here} cannot import kernel {self.name!r} ({e}): {advice}"
            ) from e
        vars(kernel).pop("source_hash", None)  # what it was where it comes from
        if kernel.source_hash != self.source:
            raise MeasurementError(
                f"{here} has other code of kernel {self.name!r} ({kernel.source_hash}) than asked "
                f"for ({self.source}): {advice}"
            )
        if (versions := _versions(kernel)) != self.versions:
            raise MeasurementError(f"{here} has {versions}, asked for {self.versions}: {advice}")
        return kernel


class Member:
    """Measures on the device that Ray gave to its actor; errors of ours are answers.

    Args:
        timing, limit_s, power: see `IsolatedRunner`.
        threads: what `THREADS` are set to, where they are set.
    """

    def __init__(
        self, timing: Timing | None, limit_s: float, power: bool, threads: dict[str, str]
    ) -> None:
        for name in THREADS:
            os.environ.pop(name, None)
        os.environ.update(threads)
        self._options = (timing, limit_s, power)
        self._kernels: dict[Parcel, Kernel] = {}
        self._runner: IsolatedRunner | None = None
        self._watch: Watch | None = None

    def begin(self, resource: str, parcel: Parcel) -> bytes:
        """Return the device, or why it is not fit for the work.

        Args:
            resource: what Ray knows this device as.
            parcel: the kernel to be measured.
        """
        try:
            kernel = self._kernel(parcel)
            device = local_device("cpu" if kernel.device_kind == "cpu" else "cuda:0")
            if resource_of(device) != resource:
                raise MeasurementError(
                    f"{platform.node()} was started as {resource}, and is {resource_of(device)}: "
                    'start its node with --resources="$(foretune devices --ray)"'
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

    def run(self, parcel: Parcel, *arguments: Any) -> list[Measurement]:
        """Return what `IsolatedRunner.run` yields."""
        return list(self._ready().run(self._kernel(parcel), *arguments))

    def race(self, parcel: Parcel, *arguments: Any) -> dict[str, np.ndarray]:
        """Return what `IsolatedRunner.race` does."""
        return self._ready().race(self._kernel(parcel), *arguments)

    def watch(self) -> None:
        """Begin to see what else this machine does."""
        self._watch = self._ready().watch().__enter__()

    def seen(self) -> Conditions:
        """Return what was seen since `watch`; nothing, where another member was to watch."""
        if (watch := self._watch) is None:
            return Conditions()
        self._watch = None
        watch.__exit__()
        return watch.conditions

    def _ready(self) -> IsolatedRunner:
        assert self._runner is not None, "it has not begun"
        return self._runner

    def _kernel(self, parcel: Parcel) -> Kernel:
        if parcel not in self._kernels:
            self._kernels[parcel] = parcel.open()
        return self._kernels[parcel]


def _versions(kernel: Kernel) -> str:
    return f"{environment(kernel)}; {toolchain(kernel.device_kind)}"
