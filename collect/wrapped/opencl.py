"""OpenCL through pyopencl on any runtime, timed by the queue's events."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretune.collect.wrapped.call_arguments import Arguments, ResettingLaunch
from foretune.collect.wrapped.source import Build, Source, first_error, include_folders
from foretune.errors import UsageError
from foretune.kernel import Clock
from foretune.support.lazy import require


def toolchain(source: Source) -> str:
    """Return the versions of platform and driver."""
    device = find_device(source.platform, source.device)
    return f"{device.platform.version}, {device.name}, {device.driver_version}"


def launch(build: Build, arguments: Sequence[Any]) -> ResettingLaunch:
    """Compile and return the kernel's launch."""
    cl = _pyopencl()
    context, queue = _context(build.source.platform, build.source.device)
    with include_folders(build) as folders:
        options = [*(part for f in folders for part in ("-I", f)), *(build.options or ())]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # compiler warnings
                program = cl.Program(context, build.text).build(options=options)
                kernel = cl.Kernel(program, build.source.name)
        except cl.Error as e:
            log = str(e).partition("Build on")[2] or str(e)  # without pyopencl's own text
            raise RuntimeError(first_error(log)) from None
    sizes = tuple(t * g for t, g in zip(build.threads, build.grid, strict=True))
    return _OpenCLLaunch(queue, kernel, sizes, build.threads, arguments)


class _Buffers(Arguments):
    """Arguments of a kernel: device buffers for arrays, and numbers."""

    def __init__(self, queue: Any, arguments: Sequence[Any]) -> None:
        super().__init__(tuple(arguments), {})
        cl = _pyopencl()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._buffers = [cl.Buffer(queue.context, flags, hostbuf=a) for a in self.initial_arrays]
        self._copy = functools.partial(cl.enqueue_copy, queue)
        buffers = iter(self._buffers)
        self.args = tuple(next(buffers) if isinstance(a, np.ndarray) else a for a in arguments)

    def reset(self) -> None:
        for buffer, initial in zip(self._buffers, self.initial_arrays, strict=True):
            self._copy(buffer, initial)

    def written(self) -> dict[int, Any]:
        for now, buffer in zip(self._arrays, self._buffers, strict=True):
            self._copy(now, buffer)
        return {i: now.copy() for i, now in super().written().items()}

    def array(self, number: int) -> Any:
        self._copy(self._arrays[number], self._buffers[number])
        return self._arrays[number]

    def overwrite(self, number: int) -> None:
        super().overwrite(number)
        self._copy(self._buffers[number], self._arrays[number])


class _OpenCLLaunch(ResettingLaunch):
    """Launches of a kernel, timed by events."""

    def __init__(
        self,
        queue: Any,
        kernel: Any,
        sizes: tuple[int, ...],
        group: tuple[int, ...],
        arguments: Sequence[Any],
    ) -> None:
        buffers = _Buffers(queue, arguments)
        super().__init__(buffers)
        self._queue, self._kernel, self._sizes, self._group = queue, kernel, sizes, group
        try:
            kernel.set_args(*buffers.args)
        except Exception as e:
            raise RuntimeError(f"the kernel does not take these arguments: {e}") from e

    def run(self) -> None:
        self._enqueue().wait()

    def time_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time between the events of launches, in milliseconds."""
        events = [self._enqueue() for _ in range(batch)]
        events[-1].wait()
        return float(np.mean([e.profile.end - e.profile.start for e in events])) * 1e-6

    def _enqueue(self) -> Any:
        cl = _pyopencl()
        return cl.enqueue_nd_range_kernel(self._queue, self._kernel, self._sizes, self._group)


def find_device(platform: int = 0, device: int = 0) -> Any:
    """Return a pyopencl device of this machine; raise ForetuneError if there is none."""
    cl = _pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # there is no platform
        platforms = []
    if not platforms:
        raise UsageError(
            "there is no OpenCL runtime: install your device's driver, or for the CPU "
            "apt install pocl-opencl-icd"
        )
    return _numbered("device", _numbered("platform", platforms, platform).get_devices(), device)


def _numbered(what: str, found: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(found):
        listed = ", ".join(f"{i} ({one.name})" for i, one in enumerate(found))
        raise UsageError(f"there is no OpenCL {what} {number}: choose one of {listed}")
    return found[number]


@functools.cache
def _context(platform: int, device: int) -> tuple[Any, Any]:
    cl = _pyopencl()
    context = cl.Context([find_device(platform, device)])
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    return context, cl.CommandQueue(context, properties=profiling)


def _pyopencl() -> Any:
    return require("pyopencl", "opencl", "an OpenCL kernel")
