"""The device of a replay: what ``torch.cuda`` would say of a GPU that is not there.

Time is what the replayed launches took, nothing else: one clock per thread, which only launches
move. So results do not depend on how threads interleave or how busy this machine is.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from foretune.collect.compiled.gpu_targets import get_target
from foretune.device import Device

_RELAXED = 2


class ReplayDevice:
    """Stands for a GPU of which only the name and the specs are known.

    Offers what Triton, its benchmarker and autotuners use of ``torch.cuda``: events, streams,
    synchronisation, capability, properties, and whether the stream is being captured.

    Attributes:
        device: what it stands for.
        target: what kernels are compiled for.
        index: its number; unlike any real device's, so that no compiled kernel is mistaken for one.
        capturing: what `is_current_stream_capturing` says. While it is true, waiting is an error,
            as it is in CUDA, and loading code unless the thread's capture mode is relaxed.
        busy: while true, the device has not got to its events yet, unless it is waited for.
        launch_latency_ms: what a launch is on its way: events count it if the device has nothing
            to do.
    """

    def __init__(self, device: Device, index: int) -> None:
        """Stand for a device.

        Args:
            device: one of an architecture that Triton compiles for.
            index: its number.

        Raises:
            UnknownName: no such architecture.
        """
        self.device = device
        self.target = get_target(device.architecture)
        self.index = index
        self.capturing = False
        self.busy = False
        self.launch_latency_ms = 0.0
        self.waits = 0
        self._clock = threading.local()
        self._modes = threading.local()
        self._fault: BaseException | None = None
        self.Event = lambda *args, **kwargs: ReplayEvent(self, *args, **kwargs)
        self.Stream = self.ExternalStream = lambda *args, **kwargs: SimpleNamespace(cuda_stream=0)

    @property
    def clock_ms(self) -> float:
        """What this thread's launches have taken so far, in milliseconds."""
        return getattr(self._clock, "ms", 0.0)

    def advance_clock(self, time_ms: float) -> None:
        """Let a launch of this thread take ``time_ms``."""
        delayed = getattr(self._clock, "held", False)
        self._clock.held = False
        self._clock.ms = self.clock_ms + time_ms + (0.0 if delayed else self.launch_latency_ms)

    def _sleep(self, cycles: int) -> None:
        """Wait on the device, so that the next launch is queued before it is due."""
        self._clock.held = True

    def inject_fault(self, fault: BaseException) -> None:
        """Fail from the next wait on, as a device does after an illegal memory access."""
        self._fault = fault

    def raise_fault(self) -> None:
        """Raise the error that broke the device, if one did."""
        if self._fault is not None:
            raise self._fault

    def synchronize(self, device: Any = None) -> None:
        """Wait for nothing, or raise what a launch before has done to the device."""
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.waits += 1
        self.raise_fault()

    def exchange_capture_mode(self, mode: int) -> int:
        """Set this thread's capture mode; return the one before."""
        before = getattr(self._modes, "mode", 0)
        self._modes.mode = mode
        return before

    def check_loading(self) -> None:
        """Do nothing if code may be loaded now, or fail as CUDA would."""
        if self.capturing and getattr(self._modes, "mode", 0) != _RELAXED:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def is_current_stream_capturing(self) -> bool:
        """Return whether launches are being captured into a graph."""
        return self.capturing

    def current_device(self) -> int:
        """Return the number of this device."""
        return self.index

    def set_device(self, device: Any) -> None:
        """Accept any: there is one."""

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def is_available(self) -> bool:
        """Return true: it answers."""
        return True

    def get_device_name(self, device: Any = None) -> str:
        """Return the name, as the driver of the device gives it."""
        return self.device.name

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return the compute capability; that of AMD's devices is the start of their number."""
        digits = self.target.name.lstrip("smgfx_")
        return (int(digits[:-1]), int(digits[-1])) if digits.isdigit() else (0, 0)

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """Return properties under the names that torch gives them."""
        major, minor = self.get_device_capability()
        specs = self.device.specs
        limits = self.target.limits
        return SimpleNamespace(
            name=self.device.name,
            major=major,
            minor=minor,
            gcnArchName=self.target.name if self.target.backend == "hip" else "",
            multi_processor_count=int(specs.get("cores", 1)),
            total_memory=int(specs.get("memory_gib", 0) * 2**30),
            L2_cache_size=int(specs.get("l2_kib", 0) * 1024),
            warp_size=self.target.warp_size,
            shared_memory_per_block_optin=limits.shared_bytes_per_cta,
            max_threads_per_multi_processor=limits.warps * self.target.warp_size,
            regs_per_multiprocessor=limits.registers * limits.partitions * self.target.warp_size,
        )

    def current_stream(self, device: Any = None) -> SimpleNamespace:
        """Return the only stream."""
        return SimpleNamespace(cuda_stream=0, synchronize=self.synchronize)

    default_stream = current_stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """Launch on a stream: there is one."""
        yield


class ReplayEvent:
    """A point on the clock of the thread that records it."""

    def __init__(
        self, device: ReplayDevice, enable_timing: bool = False, *_: Any, **__: Any
    ) -> None:
        self._device = device
        self._timed = enable_timing
        self._recorded_ms: float | None = None
        self._waits = 0

    def record(self, stream: Any = None) -> None:
        """Note what the launches so far have taken."""
        self._device.raise_fault()
        self._recorded_ms = self._device.clock_ms
        self._waits = self._device.waits

    def query(self) -> bool:
        """Return whether the device has got here."""
        self._device.raise_fault()
        return not self._device.busy or self._device.waits > self._waits

    def synchronize(self) -> None:
        """Wait until the device has got here."""
        self._device.synchronize()

    wait = record  # of a stream for an event: there is one stream, and it is in order

    def elapsed_time(self, end: "ReplayEvent") -> float:
        """Return the milliseconds between two events; the same rules as for torch's."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ms is None or end._recorded_ms is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return end._recorded_ms - self._recorded_ms
