"""Times calls on a GPU that the process uses through torch: by events, as Triton's own do_bench.

The caches are cleared before each call. While the GPU does that, the host prepares the call, so
that a launch from Python, of some ten microseconds, does not count.
"""

import sys
from collections.abc import Callable
from typing import Any

INTERFACES = {"cuda": "NVIDIA, AMD", "xpu": "Intel"}
"""Modules of torch for kinds of GPUs, and whose they are."""
CACHE_BYTES = 256 << 20
"""Bytes that are written before each call: more than any cache holds."""


class NoGpuUsed(Exception):
    """The process has not used a GPU through torch."""


def gpu_in_use() -> tuple[str, Any] | None:
    """Return the name of torch's module for the GPU that this process has used, and the module."""
    torch = sys.modules.get("torch")
    for name in INTERFACES:
        interface = getattr(torch, name, None)
        if interface is not None and interface.is_initialized():
            return name, interface
    return None


def gpu_synchronizer() -> Callable[[], object] | None:
    """Return what waits for the GPU, if this process has used one through torch."""
    used = gpu_in_use()
    return used[1].synchronize if used else None


def time_on_gpu(call: Callable[[], object], calls: int) -> list[int]:
    """Return the nanoseconds of each call, from its first kernel's start to its last one's end.

    Raises NoGpuUsed.
    """
    used = gpu_in_use()
    if used is None:
        raise NoGpuUsed(f"it uses no GPU through torch ({', '.join(INTERFACES)})")
    name, interface = used
    torch = sys.modules["torch"]
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device=name)
    events = []
    for _ in range(calls):
        start = interface.Event(enable_timing=True)
        end = interface.Event(enable_timing=True)
        cache.zero_()
        start.record()
        call()
        end.record()
        events.append((start, end))
    interface.synchronize()
    return [round(1e6 * start.elapsed_time(end)) for start, end in events]
