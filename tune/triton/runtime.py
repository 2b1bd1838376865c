"""Device, graph capture, event timer."""

import ctypes
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import triton

from foretune.collect.timing import delay_kernel_start
from foretune.device import Device, find_device_or_none
from foretune.errors import UsageError

RELAXED_CAPTURE_MODE = 2
"""CUDA's and HIP's capture mode in which the capturing thread may load code."""
_CAPTURE_MODE_FUNCTIONS = {
    "cuda": ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    "hip": ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
}


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1``), on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def active_driver() -> Any:
    """Return Triton's driver; None in the interpreter, or without a GPU."""
    if is_interpreted():
        return None
    try:
        return triton.runtime.driver.active
    except RuntimeError:
        return None


def require_device() -> None:
    """Raise UsageError if there is no device."""
    if active_driver() is None and not is_interpreted():
        raise UsageError(
            "Triton finds no GPU here: set TRITON_INTERPRET=1 to interpret kernels on the CPU, or "
            "run this on a machine with a GPU"
        )


def device_interface() -> Any:
    """Return the driver's device module, such as ``torch.cuda``; None without a driver."""
    driver = active_driver()
    return None if driver is None else driver.get_device_interface()


def current_device_index() -> int:
    """Return the index of the current device; 0 without a driver."""
    driver = active_driver()
    return 0 if driver is None else int(driver.get_current_device())


def is_capturing() -> bool:
    """Whether a graph is being captured; nothing may be measured then."""
    query = getattr(device_interface(), "is_current_stream_capturing", None)
    return bool(query and query())


@contextmanager
def allow_code_loading() -> Iterator[None]:
    """Let this thread load code while it captures a graph, which CUDA forbids by default."""
    exchange = _exchange()
    before = exchange(RELAXED_CAPTURE_MODE) if exchange else 0
    try:
        yield
    finally:
        if exchange:
            exchange(before)


def _exchange() -> Callable[[int], int] | None:
    """Return a function that sets this thread's capture mode and returns the old one."""
    driver = active_driver()
    replayed: Callable[[int], int] | None = getattr(driver, "exchange_capture_mode", None)
    return replayed or _library_exchange(driver.get_current_target().backend)


@cache
def _library_exchange(backend: str) -> Callable[[int], int] | None:
    try:
        library, name = _CAPTURE_MODE_FUNCTIONS[backend]
        function = getattr(ctypes.CDLL(library), name)
    except (KeyError, OSError, AttributeError):
        return None

    def exchange(mode: int) -> int:
        given = ctypes.c_int(mode)
        function(ctypes.byref(given))
        return given.value

    return exchange


def synchronize() -> None:
    """Wait for the device; raise its pending error."""
    if (interface := device_interface()) is not None:
        interface.synchronize()


def device_at(index: int) -> Device:
    """Return a device with specs from the table and the core count from the driver."""
    if active_driver() is None:
        how = "interpreter on" if is_interpreted() else "no GPU on"
        return Device(f"{how} {platform.machine()}", "cpu")
    return _driver_device(index)


@cache
def _driver_device(index: int) -> Device:
    driver = active_driver()
    target = driver.get_current_target()
    naming = getattr(driver.get_device_interface(), "get_device_name", None)
    name = str(naming(index)) if naming else f"{target.backend}:{target.arch}"
    arch = target.arch if isinstance(target.arch, str) else f"sm_{target.arch}"
    known = find_device_or_none(name) or Device(name, "gpu")

    # The number of cores comes from the driver, else from the table.
    properties = driver.utils.get_device_properties(index)
    cores = float(properties.get("multiprocessor_count", known.specs.get("cores", 0)))
    specs = {**known.specs, "cores": cores} if cores else known.specs
    return Device(name, "gpu", architecture=arch, specs=specs, source=known.source, index=index)


class EventTimer:
    """Times launches between `start` and `stop` by device events; by the clock in the interpreter.

    The device is delayed before the first event. Otherwise, with an empty queue, the time of the
    launch call would count. ``host_s`` is the host's time of the same call before.
    """

    def __init__(self, host_s: float = 0.0) -> None:
        self._before_s = host_s
        self._interface = interface = device_interface()
        self._events = [interface.Event(enable_timing=True) for _ in range(2)] if interface else []
        self._times = [0.0, 0.0]

    def start(self) -> None:
        """Start timing."""
        delay_kernel_start(self._interface, host_s=self._before_s)
        self._record_event(0)

    def stop(self) -> None:
        """Stop timing; does not wait."""
        self._record_event(1)

    @property
    def host_s(self) -> float:
        """The host's time between start and stop."""
        return self._times[1] - self._times[0]

    def elapsed_ms(self) -> float | None:
        """Return the time in milliseconds; None until the device has finished."""
        if not self._events:
            return self.host_s * 1e3
        start, stop = self._events
        return float(start.elapsed_time(stop)) if stop.query() else None

    def _record_event(self, which: int) -> None:
        self._times[which] = time.perf_counter()
        if self._events:
            self._events[which].record()


def bench_in_interpreter(
    kernel_call: Callable[[], Any], quantiles: Sequence[float] = (0.5, 0.2, 0.8)
) -> list[float]:
    """Return quantiles of three runs in milliseconds; not meant for comparing speed."""
    samples = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        samples.append((time.perf_counter() - start) * 1e3)
    return [sorted(samples)[round(q * (len(samples) - 1))] for q in quantiles]
