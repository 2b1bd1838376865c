"""Compiles configurations in threads before they are measured.

Triton compiles a configuration at its first launch. Threads are faster, because the compiler
releases the GIL. Nothing is measured meanwhile: a launch that waits for the GIL would look slow. A
compilation past its time limit is abandoned, and its daemon thread runs on.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress

import triton

from foretune.tune.triton.descriptors import arguments_after_hook
from foretune.tune.triton.kernel import KernelCall
from foretune.tune.triton.runtime import active_driver, current_device_index

MAX_COMPILE_THREADS = min(8, os.cpu_count() or 1)
"""Maximum number of parallel compilations."""


class CompileAhead:
    """Compiles configurations of one call."""

    def __init__(self, kernel: KernelCall) -> None:
        self._fn, self._args = kernel.tuner.fn, kernel.args
        self._kwargs = {n: v for n, v in kernel.kwargs.items() if n != "warmup"}
        self._futures: dict[triton.Config, Future[None]] = {}
        self._timed_out: set[triton.Config] = set()
        self._slots = threading.Semaphore(MAX_COMPILE_THREADS)
        self._index = current_device_index()
        self._enabled = active_driver() is not None and "grid" in self._kwargs

    def compile(self, configs: Sequence[triton.Config], limit_s: float) -> None:
        """Compile ``configs``; give up those that take longer than ``limit_s`` seconds."""
        if not self._enabled:
            return
        for config in configs:
            if config not in self._futures:
                future = self._futures[config] = Future[None]()
                work = threading.Thread(
                    target=self._compile_one, args=(config, future), daemon=True
                )
                work.start()
        left = {self._futures[c] for c in configs if c not in self._timed_out}
        while left:
            finished, left = wait(left, limit_s, FIRST_COMPLETED)
            if not finished:
                self._abandon({f for f in left if f.running()})
                left = {f for f in left if not f.running()}

    def is_ready(self, config: triton.Config) -> bool:
        """Whether ``config`` did not time out; a compile error shows at its launch."""
        return config not in self._timed_out

    def _abandon(self, stuck: "set[Future[None]]") -> None:
        for config, future in self._futures.items():
            if future in stuck:
                self._timed_out.add(config)
                self._slots.release()

    def _compile_one(self, config: triton.Config, future: "Future[None]") -> None:
        with self._slots:
            future.set_running_or_notify_cancel()
            with suppress(Exception):  # the launch reports the same error
                triton.runtime.driver.active.set_current_device(self._index)
                args, kwargs = arguments_after_hook(
                    config, self._fn.arg_names, self._args, self._kwargs
                )
                self._fn.warmup(*args, **kwargs, **config.all_kwargs())
            future.set_result(None)
