"""What a configuration must leave unchanged: its inputs, the clock and the checker.

A configuration that changes the state of its process could make others look faster, or correct. If
it changes inputs or replaces functions, it fails. It may keep state in its own module, but then the
next configuration gets another process. What `ProcessState` holds is put back.
"""

import gc
import inspect
import os
import random
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from foretune.collect.timing import CPU_TIMER
from foretune.collect.wrapped.values import as_numpy, is_array, is_tensor, leaves
from foretune.kernel import Kernel

SAMPLED_BYTES = 1 << 24
"""Bytes of a larger array on the host (16 MiB) that are compared, in evenly spaced blocks."""
DEVICE_BYTES = 1 << 21
"""Bytes that are summed at a time on a device. Their positions and products, of eight bytes each,
take eight times as much memory."""
_BLOCKS = 64
_CLOCKS = (
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
)
_GUARDED_LIBRARIES = ("numpy", "numpy.linalg")
"""Modules whose functions are guarded."""
_GUARDED_CHECKERS = (
    "foretune.kernel",
    "foretune.relative_error",
    "foretune.collect.timing",
    "foretune.collect.benchmark",
    "foretune.collect.burst",
    "foretune.collect.call_times",
    "foretune.collect.comparison",
    "foretune.collect.round_inputs",
    "foretune.collect.wrapped.values",
    "foretune.collect.wrapped.new_values",
    "foretune.collect.wrapped.whole_numbers",
    "foretune.collect.wrapped.call_arguments",
    "foretune.collect.wrapped.function",
    "foretune.collect.wrapped.output_comparison",
    "foretune.collect.wrapped.shared_memory",
    "foretune.collect.wrapped.source_kernel",
)
"""Foretune's modules that time and check a configuration: their classes are guarded, too."""


class FunctionGuard:
    """Remembers the functions of clock, NumPy and checker; make it before loading a kernel."""

    def __init__(self) -> None:
        modules = [import_module(name) for name in (*_GUARDED_LIBRARIES, *_GUARDED_CHECKERS)]
        classes = {
            value
            for module in modules
            for value in vars(module).values()
            if inspect.isclass(value) and value.__module__ in _GUARDED_CHECKERS
        }

        # What each module and class holds now, by name.
        clocks = {name: getattr(time, name) for name in _CLOCKS}
        self._known: list[tuple[Any, dict[str, Any]]] = [(time, clocks)]
        self._known += [(owner, dict(vars(owner))) for owner in (*modules, *classes)]

    def restore(self) -> list[str]:
        """Restore the functions that were replaced, and return their names."""
        replaced = []
        for owner, known in self._known:
            now = vars(owner)
            for name in [n for n, value in known.items() if now.get(n) is not value]:
                setattr(owner, name, known[name])
                replaced.append(f"{owner.__name__}.{name}")
        for name in list(vars(CPU_TIMER)):
            delattr(CPU_TIMER, name)
            replaced.append(f"CPU_TIMER.{name}")
        return replaced


class ProcessState:
    """State of this process that configurations share.

    Working directory, environment, cores of all threads, profiler, trace function, random numbers,
    NumPy's error handling and the interpreter's settings.
    """

    def __init__(self) -> None:
        self._folder, self._variables, self._cores = _process_state()
        self._interpreter = _interpreter_state()

    def restore(self) -> bool:
        """Put back what a configuration changed; return whether it changed anything."""
        changed = self._restore_interpreter()
        folder, variables, cores = _process_state()
        if variables != self._variables:
            changed = True
            os.environ.clear()
            os.environ.update(self._variables)
        # Threads may have started or ended.
        moved = {
            thread: known
            for thread, known in self._cores.items()
            if cores.get(thread, known) != known
        }
        for thread, known in moved.items():
            changed = True
            with suppress(OSError):  # it may have ended
                os.sched_setaffinity(thread, known)
        if folder != self._folder:
            changed = True
            with suppress(OSError):
                os.chdir(self._folder)
        return changed

    def _restore_interpreter(self) -> bool:
        changed = False
        for name, value in _interpreter_state().items():
            if value != self._interpreter[name]:
                changed = True
                _SETTERS[name](self._interpreter[name])
        return changed


_GETTERS: dict[str, Callable[[], Any]] = {
    "profile": sys.getprofile,
    "trace": sys.gettrace,
    "thread_profile": threading.getprofile,
    "thread_trace": threading.gettrace,
    "switch_interval": sys.getswitchinterval,
    "recursion_limit": sys.getrecursionlimit,
    "garbage_collection": gc.isenabled,
    "garbage_thresholds": gc.get_threshold,
    "random": random.getstate,
    "numpy_errors": np.geterr,
    "warnings": lambda: list(warnings.filters),
}
_SETTERS: dict[str, Callable[[Any], Any]] = {
    "profile": sys.setprofile,
    "trace": sys.settrace,
    "thread_profile": threading.setprofile,
    "thread_trace": threading.settrace,
    "switch_interval": sys.setswitchinterval,
    "recursion_limit": sys.setrecursionlimit,
    "garbage_collection": lambda enabled: gc.enable() if enabled else gc.disable(),
    "garbage_thresholds": lambda thresholds: gc.set_threshold(*thresholds),
    "random": random.setstate,
    "numpy_errors": lambda handling: np.seterr(**handling),
    "warnings": lambda filters: setattr(warnings, "filters", filters),
}
"""Functions that read and set a state of the interpreter, taken before a kernel is loaded."""


def _interpreter_state() -> dict[str, Any]:
    return {name: read() for name, read in _GETTERS.items()}


def _process_state() -> tuple[str, dict[str, str], dict[int, set[int]]]:
    folder = ""
    with suppress(OSError):  # it may be deleted
        folder = os.getcwd()
    return folder, dict(os.environ), _cores_of_threads()


def _cores_of_threads() -> dict[int, set[int]]:
    """Return the cores of each thread of this process."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    cores = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it may have ended
                cores[int(name)] = os.sched_getaffinity(int(name))
    return cores or {0: os.sched_getaffinity(0)}


def fingerprints(values: Any) -> list[tuple[Any, int]]:
    """Return the arrays in nested values, each with the fingerprint of its content."""
    return [(leaf, fingerprint(leaf)) for leaf in leaves(values) if is_array(leaf)]


def has_changed(arrays: list[tuple[Any, int]], output: Any) -> bool:
    """Whether an array changed that is not part of the output."""
    outputs = [leaf for leaf in leaves(output) if isinstance(leaf, np.ndarray) or is_tensor(leaf)]
    return any(
        fingerprint(array) != known and not any(_is_part(array, out) for out in outputs)
        for array, known in arrays
    )


def own_state(kernel: Kernel) -> dict[Any, Any]:
    """Return marks of the state that a kernel's code can keep; Foretune's own keeps nothing."""
    function: Any = inspect.unwrap(getattr(kernel, "function", None) or type(kernel).build)
    function = getattr(function, "py_func", function)
    names = getattr(function, "__globals__", {})
    if str(names.get("__name__", "")).startswith("foretune."):
        return {}
    state = {name: _mark(value) for name, value in names.items() if not name.startswith("__")}
    kept = (*(getattr(function, "__defaults__", None) or ()), *_captured(function))
    state["", "kept"] = [_mark(value) for value in kept]
    state["", "attributes"] = {n: _mark(v) for n, v in getattr(function, "__dict__", {}).items()}
    return state


def checker_ids(kernel: Kernel) -> list[int]:
    """Return the identities of the objects that decide whether a kernel's output is right.

    They change when one of them is replaced. A kernel need not have all of them.
    """
    names = ("function", "check", "verify", "answer", "atol", "tolerance", "accepted_error")
    return [id(getattr(kernel, name, None)) for name in names]


def fingerprint(array: Any) -> int:
    """Return a checksum of an array; on the host, of evenly spaced blocks of a large one."""
    if isinstance(array, list):
        return zlib.crc32(repr(array).encode())
    if is_tensor(array) and str(array.layout) != "torch.strided":
        array = array.detach().to_dense()
    flat = array.detach().reshape(-1) if is_tensor(array) else array.ravel(order="K")
    if is_tensor(array) and array.device.type != "cpu":
        return _checksum_on_device(flat)
    length = len(flat)
    item = flat.element_size() if is_tensor(array) else flat.itemsize
    if length * item <= SAMPLED_BYTES:
        return zlib.crc32(as_numpy(flat).tobytes())
    block = max(1, SAMPLED_BYTES // _BLOCKS // item)
    checksum = 0
    for start in np.linspace(0, length - block, _BLOCKS, dtype=np.int64):
        checksum = zlib.crc32(as_numpy(flat[start : start + block]).tobytes(), checksum)
    return checksum


def _checksum_on_device(flat: Any) -> int:
    """Return the sum of a tensor's bytes times their positions, modulo 2^64.

    Only this number is copied from the device.
    """
    torch = sys.modules["torch"]
    data = flat.contiguous().view(torch.uint8)
    total = 0
    positions = torch.arange(1, 1 + min(len(data), DEVICE_BYTES), device=flat.device)
    for start in range(0, len(data), DEVICE_BYTES):
        part = data[start : start + DEVICE_BYTES]
        total = total + (start // DEVICE_BYTES + 1) * (part * positions[: len(part)]).sum()
    return int(total)


def _mark(value: Any) -> Any:
    """Return a value that changes when a name is rebound, or an array or container changes."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return id(value), fingerprint(value)
    return (id(value), len(value)) if isinstance(value, dict | list | set) else id(value)


def _captured(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # empty
            yield cell.cell_contents


def _is_part(array: Any, output: Any) -> bool:
    """Whether two arrays or tensors share memory."""
    if isinstance(array, np.ndarray) and isinstance(output, np.ndarray):
        return np.may_share_memory(array, output)
    if is_tensor(array) and is_tensor(output):
        return bool(array.untyped_storage().data_ptr() == output.untyped_storage().data_ptr())
    return False
