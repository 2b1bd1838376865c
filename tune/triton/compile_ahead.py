"""Compiling configurations before they are measured, several at a time.

Triton compiles a configuration when it is first launched, one after the other; here threads do it
(the compiler leaves Python's lock), and nothing is measured until they are done: a launch that
waits for the lock would look slow. A thread cannot be stopped: what takes longer than it may is
given up, another one takes its place, and it does not keep the process from ending.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import triton

from foretune.tune.triton.descriptors import arguments_after_hook
from foretune.tune.triton.runtime import current_device_index, is_interpreted

MAX_COMPILE_THREADS = min(8, os.cpu_count() or 1)
"""Configurations compiled at a time."""


class CompileAhead:
    """Compiles configurations of one call.

    Args:
        fn: the decorated kernel below the tuner.
        args: of the call.
        kwargs: of the call, ``grid`` among them.
    """

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._fn, self._args = fn, args
        self._kwargs = {n: v for n, v in kwargs.items() if n != "warmup"}
        self._futures: dict[triton.Config, Future[Any]] = {}
        self._timed_out: set[triton.Config] = set()
        self._slots = threading.Semaphore(MAX_COMPILE_THREADS)
        self._index = current_device_index()
        self._enabled = not is_interpreted() and "grid" in self._kwargs

    def compile(self, configs: Sequence[triton.Config], limit_s: float) -> None:
        """Compile ``configs``; return when all are, or those left take longer than ``limit_s``."""
        if not self._enabled:
            return
        for config in configs:
            if config not in self._futures:
                future = self._futures[config] = Future[Any]()
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
        """Whether ``config`` can be launched without compiling it first.

        What cannot be compiled counts as done: the launch will say why.
        """
        return config not in self._timed_out

    def compiled_kernel(self, config: triton.Config) -> Any:
        """Return the compiled kernel; None if it is not there, or could not be compiled."""
        future = self._futures.get(config)
        return future.result() if future is not None and future.done() else None

    def _abandon(self, stuck: "set[Future[Any]]") -> None:
        for config, future in self._futures.items():
            if future in stuck:
                self._timed_out.add(config)
                self._slots.release()

    def _compile_one(self, config: triton.Config, future: "Future[Any]") -> None:
        with self._slots:
            future.set_running_or_notify_cancel()
            try:
                triton.runtime.driver.active.set_current_device(self._index)
                args, kwargs = arguments_after_hook(
                    config, self._fn.arg_names, self._args, self._kwargs
                )
                knobs = config.all_kwargs()
                future.set_result(self._fn.warmup(*args, **kwargs, **knobs))
            except Exception:  # the launch will fail the same way, where it counts
                future.set_result(None)
