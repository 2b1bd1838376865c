"""The Ray actor that measures on one device, and the names of devices as Ray resources."""

import os
import pickle
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foretune.collect import answers
from foretune.collect.benchmark import environment
from foretune.collect.comparison import Rounds
from foretune.collect.devices import local_device
from foretune.collect.machine_load import LoadMonitor, MachineLoad
from foretune.collect.runner import IsolatedRunner
from foretune.collect.timing import Timing
from foretune.collect.versions import toolchain
from foretune.device import Device, canonical_name
from foretune.errors import ForetuneError, MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Measurement

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Ray limits its workers to one thread; actors restore the values of the calling process."""


@dataclass(frozen=True)
class PickledKernel:
    """A pickled kernel, the hash of its code, and versions; only `load` imports its modules."""

    payload: bytes
    name: str
    source_hash: str
    versions: str

    @classmethod
    def from_kernel(cls, kernel: Kernel) -> "PickledKernel":
        """Pickle a kernel; raise MeasurementError if it cannot be pickled."""
        try:
            content = pickle.dumps(kernel)
        except Exception as e:
            # A user's object may raise anything.
            raise MeasurementError(f"the kernel cannot be sent to another process: {e}") from e
        return cls(
            payload=content,
            name=kernel.name,
            source_hash=kernel.source_hash,
            versions=_versions(kernel),
        )

    def load(self) -> Kernel:
        """Return the kernel; raise MeasurementError if its code or versions differ here."""
        here = platform.node()
        advice = "install the same packages on every machine"
        try:
            kernel: Kernel = pickle.loads(self.payload)
        except Exception as e:
            raise MeasurementError(
                f"{here} cannot import kernel {self.name!r} ({e}): {advice}"
            ) from e
        # The hash that came with it is the sending machine's.
        vars(kernel).pop("source_hash", None)
        if kernel.source_hash != self.source_hash:
            raise MeasurementError(
                f"{here} has other code of kernel {self.name!r} ({kernel.source_hash}) than "
                f"requested ({self.source_hash}): {advice}"
            )
        versions = _versions(kernel)
        if versions != self.versions:
            raise MeasurementError(f"{here} has {versions}, requested {self.versions}: {advice}")
        return kernel


class RayActor:
    """Measures on the device that Ray assigned to the actor; returns `ForetuneError`s as values.

    ``threads`` are the values of `THREAD_VARIABLES` in the calling process.
    """

    _runner: IsolatedRunner
    """Exists from `begin` on."""

    def __init__(
        self, timing: Timing | None, limit_s: float, power: bool, threads: dict[str, str]
    ) -> None:
        for name in THREAD_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(threads)
        self._options = (timing, limit_s, power)
        self._kernels: dict[PickledKernel, Kernel] = {}
        self._monitor: LoadMonitor | None = None

    def begin(self, resource: str, pickled: PickledKernel) -> bytes:
        """Return the device, or the error if it is unfit for this kernel, as data."""
        return answers.encode(self._begin(resource, pickled))

    def _begin(self, resource: str, pickled: PickledKernel) -> Device | ForetuneError:
        try:
            kernel = self._kernel(pickled)
            device = local_device("cpu" if kernel.device_kind == "cpu" else "cuda:0")
            if resource_of(device) != resource:
                raise MeasurementError(
                    f"{platform.node()} was started as {resource} but is {resource_of(device)}: "
                    'start its node with --resources="$(foretune doctor --ray)"'
                )
        except ForetuneError as e:
            return e
        timing, limit_s, power = self._options
        self._runner = IsolatedRunner(device, timing, limit_s, power)
        return device

    def answer(self, work: bytes) -> bytes:
        """Return the result of a pickled (method, arguments), or its `ForetuneError`, as data."""
        method, arguments = pickle.loads(work)
        try:
            result = getattr(self, method)(*arguments)
        except ForetuneError as e:
            result = e
        return answers.encode(result)

    def run(self, pickled: PickledKernel, *arguments: Any) -> list[Measurement]:
        """Return the measurements of `IsolatedRunner.run`."""
        return list(self._runner.run(self._kernel(pickled), *arguments))

    def compare_interleaved(self, pickled: PickledKernel, *arguments: Any) -> Rounds:
        """Return the rounds of `IsolatedRunner.compare_interleaved`."""
        return self._runner.compare_interleaved(self._kernel(pickled), *arguments)

    def watch(self) -> None:
        """Start observing the load on this machine."""
        self._monitor = self._runner.watch().__enter__()

    def observed_load(self) -> MachineLoad:
        """Return the load observed since `watch`; empty if another actor was watching."""
        monitor = self._monitor
        if monitor is None:
            return MachineLoad()
        self._monitor = None
        monitor.__exit__()
        return monitor.load

    def _kernel(self, pickled: PickledKernel) -> Kernel:
        if pickled not in self._kernels:
            self._kernels[pickled] = pickled.load()
        return self._kernels[pickled]


def _versions(kernel: Kernel) -> str:
    """Return the software that a kernel's times and compiled code depend on."""
    return f"{environment(kernel)}; {toolchain(kernel.device_kind)}"


def resource_of(device: Device) -> str:
    """Return the name of the Ray resource that equal devices share.

    It contains properties from the descriptor only, no measured rates; for example
    ``foretune:NVIDIA-H200:sm_90:132-cores``.
    """
    cores = f"{device.specs['cores']:.0f}-cores" if "cores" in device.specs else ""
    parts = ("foretune", device.name, device.architecture, cores)
    return ":".join(re.sub(r"[^\w.+-]+", "-", part).strip("-") for part in parts)


def resource_counts(devices: Iterable[Device]) -> dict[str, int]:
    """Return the number of devices per resource, the value of ``ray start --resources``."""
    return dict(Counter(map(resource_of, devices)))


def matching_resources(name: str, available: Iterable[str]) -> list[str]:
    """Return the available resources of devices called ``name``."""
    without_details = resource_of(Device(canonical_name(name), "gpu")).rstrip(":")
    start = f"{without_details.lower()}:"
    return sorted(resource for resource in available if resource.lower().startswith(start))
