"""Compiling configurations before they are measured, several at a time.

Triton compiles a configuration when it is first launched, one after the other; here threads do it
(the compiler leaves Python's lock), and nothing is measured until they are done: a launch that
waits for the lock would look slow. A thread cannot be stopped: what takes longer than it may is
given up, not killed.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import triton

from foretune.tune.autotune.place import current_index, interpreted

WORKERS = min(8, os.cpu_count() or 1)
"""Threads that compile."""


class Ahead:
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
        self._pool: ThreadPoolExecutor | None = None
        self._index = current_index()
        # Triton's warm-up takes every pointer for one that 16 divides.
        aligned = all(a.data_ptr() % 16 == 0 for a in args if hasattr(a, "data_ptr"))
        self._useful = aligned and not interpreted() and "grid" in self._kwargs

    def compile(self, configs: Sequence[triton.Config]) -> None:
        """Begin to compile ``configs``, in this order."""
        new = [c for c in configs if c not in self._futures]
        if not self._useful or not new:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                WORKERS,
                "foretune-compile",
                triton.runtime.driver.active.set_current_device,
                (self._index,),
            )
        for config in new:
            self._futures[config] = self._pool.submit(self._warm, config)

    def settle(self, limit_s: float) -> None:
        """Wait until everything is compiled, or nothing was finished for ``limit_s`` seconds."""
        left = {f for f in self._futures.values() if not f.done()}
        while left:
            done, left = wait(left, limit_s, FIRST_COMPLETED)
            if not done:
                return

    def done(self, config: triton.Config) -> bool:
        """Whether ``config`` can be launched without compiling it first.

        What cannot be compiled counts as done: the launch will say why.
        """
        future = self._futures.get(config)
        return future is None or future.done()

    def compiled(self, config: triton.Config) -> Any:
        """Return the compiled kernel; None if it is not there, or could not be compiled."""
        future = self._futures.get(config)
        return future.result() if future is not None and future.done() else None

    def close(self) -> None:
        """Begin nothing more; what is being compiled goes on."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _warm(self, config: triton.Config) -> Any:
        try:
            return self._fn.warmup(*self._args, **self._kwargs, **config.all_kwargs())
        except Exception:  # the launch will fail the same way, where it counts
            return None
