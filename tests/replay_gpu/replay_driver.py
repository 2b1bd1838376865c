"""A Triton driver that launches nothing and answers with recorded times.

For trying, testing and benchmarking tuning logic on a machine without a GPU: a kernel goes through
Triton's own binder, specialisation and, if wanted, compiler; only the launch is replaced. CPU
tensors stand for those of the device. ::

    def times(launch):
        return 1.0 + abs(launch.config["BLOCK"] - 256) / 256  # milliseconds

    with ReplayDriver(times).active() as driver:
        kernel[grid](x, n)
    print(driver.launches)
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.compiler
from replay_device import ReplayDevice
from triton.backends.compiler import GPUTarget

from foretune.collect.compiled.static_features import read_cubin
from foretune.device import find_device
from foretune.errors import UsageError

_FIRST_INDEX = 1 << 16
_INDICES = itertools.count(_FIRST_INDEX)
"""Kernels keep what was compiled per device number: each driver has its own, no real one's."""
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@dataclass(frozen=True, eq=False)
class ReplayedLaunch:
    """One launch of a kernel, as its driver would see it.

    Attributes:
        kernel: name of the function.
        arguments: what is not a constant of the kernel, by name. In `ReplayDriver.launches`
            tensors are replaced by ones on the ``meta`` device: shape, strides and type, no data.
        config: the kernel's constants, and ``num_warps``, ``num_stages``, ``num_ctas``, ``maxnreg``
            where they are set.
        grid: programs in each of three directions.
        time_ms: what it took; NaN while ``times`` is asked, and if it failed.
        error: why it failed.
    """

    kernel: str
    arguments: Mapping[str, Any]
    config: Mapping[str, Any]
    grid: tuple[int, int, int]
    time_ms: float = float("nan")
    error: BaseException | None = None


Times = Callable[[ReplayedLaunch], float]
"""Milliseconds of a launch. It may raise what the launch would raise, e.g. Triton's
``OutOfResources``, and may change the tensors of the launch, as the kernel would."""


class ReplayDriver:
    """Use it with ``triton.runtime.driver.set_active`` or, better, as ``with driver.active():``.

    Safe for many threads: each has its own clock, see `ReplayDevice`.

    Attributes:
        device_interface: what stands for ``torch.cuda``; set its ``capturing`` or ``busy``.
        launches: what was launched, in order, failed launches included.
        compilations: kernel name and configuration of each compilation since `active`.
        flushes: how often the last-level cache would have been flushed.
        do_bench: the benchmarker that Triton's autotuner gets.
    """

    def __init__(
        self,
        times: Times,
        *,
        device: str = "NVIDIA H200",
        compile: bool = False,
        on_compile: Callable[[str, Mapping[str, Any]], None] | None = None,
        repeats: int = 1,
        asynchronous_faults: bool = False,
    ) -> None:
        """Replay launches on a device.

        Args:
            times: how long a launch takes, or what it raises.
            device: name in Foretune's table of devices, which decides the compile target.
            compile: really compile for that target, then check shared memory as a real launch does.
                Otherwise a kernel's code is never looked at, which needs `active`.
            on_compile: called with kernel name and configuration before each compilation, really
                done or not; it may raise what the compiler would, or take its time. Needs `active`.
            repeats: calls the benchmarker makes.
            asynchronous_faults: what ``times`` raises, unless it is an error of Triton's, does not
                come out of the launch but of the next wait and of everything after, as an illegal
                memory access does.

        Raises:
            UnknownName: a device nobody knows, or of an architecture Triton does not compile for.
            UsageError: ``repeats`` is not positive.
        """
        if repeats < 1:
            raise UsageError("repeats must be at least 1")
        self.device_interface = ReplayDevice(find_device(device), next(_INDICES))
        self.times = times
        self.compiles = compile
        self.on_compile = on_compile
        self.repeats = repeats
        self.asynchronous_faults = asynchronous_faults
        self.launches: list[ReplayedLaunch] = []
        self.compilations: list[tuple[str, dict[str, Any]]] = []
        self.flushes = 0
        self._lock = threading.Lock()
        self._compiled: weakref.WeakSet[Any] = weakref.WeakSet()
        self.utils = SimpleNamespace(
            load_binary=self._load_binary,
            unload_module=lambda module: None,
            get_device_properties=self._device_properties,
        )
        self.get_device_capability = self.device_interface.get_device_capability
        self.get_current_device = self.device_interface.current_device
        self.set_current_device = self.device_interface.set_device
        self.exchange_capture_mode = self.device_interface.exchange_capture_mode

    @contextmanager
    def active(self) -> Iterator["ReplayDriver"]:
        """Make this Triton's driver for as long as the context lasts, in all threads."""
        config = triton.runtime.driver
        compiler = triton.compiler
        # Not `config.active`, which would look for a GPU, nor `config.reset_active`, likewise.
        driver_before = config._active
        compile_before = compiler.compile
        compiler.compile = _wrapped_compile(compile_before)
        config.set_active(self)
        try:
            yield self
        finally:
            config._active = driver_before
            compiler.compile = compile_before
            for compiled in self._compiled:  # else they ask the driver to unload them when they go
                compiled.module = None

    def track(self, compiled: Any) -> Any:
        """Return a compiled kernel; what is loaded of it goes when this driver does."""
        self._compiled.add(compiled)
        return compiled

    @classmethod
    def is_active(cls) -> bool:
        """Return false: it is never chosen by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """Return the target that kernels are compiled for."""
        return self.device_interface.target.triton_target

    def get_current_stream(self, device: Any = None) -> int:
        """Return the only stream."""
        return 0

    def get_device_interface(self) -> ReplayDevice:
        """Return what stands for ``torch.cuda``."""
        return self.device_interface

    def get_active_torch_device(self) -> torch.device:
        """Return the device whose tensors are launched with: the CPU."""
        return torch.device("cpu")

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Return what `clear_cache` wants: next to nothing, as no cache is flushed."""
        return torch.empty(1, dtype=torch.int)

    def clear_cache(self, cache: Any) -> None:
        """Count a flush of the last-level cache."""
        with self._lock:
            self.flushes += 1

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return a function in the manner of ``triton.testing.do_bench``."""
        return self.do_bench

    def do_bench(
        self,
        kernel_call: Callable[[], Any],
        quantiles: Sequence[float] | None = None,
        return_mode: str = "mean",
        **_: Any,
    ) -> Any:
        """Call ``kernel_call`` and return what its launches took, in milliseconds.

        Args:
            kernel_call: launches.
            quantiles: which to return, as a list; of one, the number itself.
            return_mode: ``min``, ``max``, ``mean``, ``median`` or ``all``, without ``quantiles``.
        """
        samples = []
        for _call in range(self.repeats):
            self.device_interface.synchronize()
            before_ms = self.device_interface.clock_ms
            kernel_call()
            self.device_interface.synchronize()
            samples.append(self.device_interface.clock_ms - before_ms)
        if quantiles is not None:
            found = np.quantile(samples, list(quantiles)).tolist()
            return found[0] if len(found) == 1 else found
        return samples if return_mode == "all" else float(getattr(np, return_mode)(samples))

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Return what Triton calls to launch a compiled kernel; it replays the launch."""
        function = source.fn
        constants = {p.name for p in function.params if p.is_constexpr}
        options = {
            name: value for name in _OPTIONS if (value := getattr(metadata, name, None)) is not None
        }

        def launch(
            x: int,
            y: int,
            z: int,
            stream: Any,
            handle: Any,
            packed: Any,
            launch_metadata: Any,
            enter: Any,
            leave: Any,
            *values: Any,
        ) -> None:
            if x * y * z == 0:  # nothing to run: CUDA would refuse it, Triton does not ask
                return
            if enter is not None:
                enter(launch_metadata)
            bound = dict(zip(function.arg_names, values, strict=True))
            self._replay(
                ReplayedLaunch(
                    kernel=function.__name__,
                    arguments={n: v for n, v in bound.items() if n not in constants},
                    config={n: v for n, v in bound.items() if n in constants} | options,
                    grid=(x, y, z),
                )
            )
            if leave is not None:
                leave(launch_metadata)

        return launch

    def _replay(self, launch: ReplayedLaunch) -> None:
        self.device_interface.raise_fault()
        try:
            time_ms = float(self.times(launch))
        except Exception as error:
            self._record_launch(replace(launch, error=error))
            if not self.asynchronous_faults or isinstance(error, triton.TritonError):
                raise
            self.device_interface.inject_fault(error)
            return
        self._record_launch(replace(launch, time_ms=time_ms))
        self.device_interface.advance_clock(time_ms)

    def _record_launch(self, launch: ReplayedLaunch) -> None:
        described = {name: _without_data(value) for name, value in launch.arguments.items()}
        with self._lock:
            self.launches.append(replace(launch, arguments=described))

    def record_compilation(self, source: Any, options: Mapping[str, Any]) -> None:
        """Log a compilation that begins, and let ``on_compile`` have its say."""
        function = source.fn
        config = {function.arg_names[path[0]]: v for path, v in source.constants.items()}
        constants = {p.name for p in function.params if p.is_constexpr}
        config = {name: value for name, value in config.items() if name in constants}
        config |= {name: options[name] for name in _OPTIONS if options.get(name) is not None}
        with self._lock:
            self.compilations.append((function.__name__, config))
        if self.on_compile is not None:
            self.on_compile(function.__name__, config)

    def _load_binary(
        self, name: str, binary: Any, shared_bytes: int, device: int
    ) -> tuple[object, object, int, int, int]:
        """Return module, function, and what the driver tells: registers, spilled words, threads.

        Of AMD's binaries neither registers nor spills are read: they are 0.
        """
        self.device_interface.check_loading()
        target = self.get_current_target()
        resources = dict[str, float]()
        if target.backend == "cuda":
            resources = read_cubin(binary)
        spilled_words = (
            int(resources.get("stack_bytes", 0)) // 4
        )  # CUDA calls all local memory that
        return object(), object(), int(resources.get("registers", 0)), spilled_words, 1024

    def _device_properties(self, device: Any = None) -> dict[str, int]:
        """Return properties under the names that Triton gives them."""
        interface = self.device_interface
        specs = interface.device.specs
        return {
            "max_shared_mem": interface.get_device_properties().shared_memory_per_block_optin,
            "max_num_regs": interface.get_device_properties().regs_per_multiprocessor,
            "multiprocessor_count": int(specs.get("cores", 1)),
            "warpSize": interface.target.warp_size,
            "sm_clock_rate": int(specs.get("clock_mhz", 0) * 1000),
        }


class _UncompiledKernel:
    """What a kernel is compiled into when its code is not looked at: just its launch."""

    def __init__(self, source: Any, options: Mapping[str, Any], driver: ReplayDriver) -> None:
        self.src = source
        self.name = source.fn.__name__
        driver.device_interface.check_loading()
        self.hash = f"{self.name}-{source.signature}-{sorted(map(str, options.items()))}"
        target = driver.get_current_target()
        self.metadata = SimpleNamespace(
            **options, name=self.name, target=target, shared=0, hash=self.hash
        )
        self.asm: dict[str, Any] = {}
        self.metadata_group: dict[str, str] = {}
        self.function = self.packed_metadata = None
        self.n_regs = self.n_spills = 0
        self.run = driver.launcher_cls(source, self.metadata)

    def launch_metadata(self, grid: Any, stream: Any, *values: Any) -> None:
        """Return none: hooks of launches get no metadata."""


def _wrapped_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiler that asks the active driver first; `original` for all other drivers.

    A kernel keeps the compiler that it finds at its first launch, also after `active` is over.
    """

    def compile(source: Any, target: Any = None, options: Any = None, **kwargs: Any) -> Any:
        driver = triton.runtime.driver._active
        if not isinstance(driver, ReplayDriver) or not hasattr(source, "fn"):
            return original(source, target=target, options=options, **kwargs)
        driver.record_compilation(source, options or {})
        if driver.compiles:
            return driver.track(original(source, target=target, options=options, **kwargs))
        return _UncompiledKernel(source, options or {}, driver)

    return compile


def _without_data(value: Any) -> Any:
    """Return a tensor's shape, strides and type without its data, anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
