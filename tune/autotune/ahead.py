"""Compiling configurations before they are needed, several at a time.

Triton compiles a configuration when it is first launched, one after the other; here threads do it
while the device measures (the compiler leaves Python's lock). A thread cannot be stopped: what
takes longer than it may is given up, not killed, and no other is started in its place.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import triton

from foretune.tune.autotune.place import current_index, interpreted

WORKERS = 8


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
        self._futures: dict[triton.Config, Future[None]] = {}
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
                min(WORKERS, os.cpu_count() or 1),
                "foretune-compile",
                triton.runtime.driver.active.set_current_device,
                (self._index,),
            )
        for config in new:
            self._futures[config] = self._pool.submit(self._warm, config)

    def wait(self, config: triton.Config, limit_s: float) -> bool:
        """Wait until ``config`` is compiled; return whether that took no longer than ``limit_s``.

        What cannot be compiled counts as done: the launch will say why.
        """
        future = self._futures.get(config)
        return future is None or bool(wait([future], limit_s).done)

    def done(self, config: triton.Config) -> bool:
        """Whether ``config`` can be launched without compiling it first."""
        future = self._futures.get(config)
        return future is None or future.done()

    def close(self) -> None:
        """Begin nothing more; what is being compiled goes on."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _warm(self, config: triton.Config) -> None:
        with suppress(Exception):  # the launch will fail the same way, where it counts
            self._fn.warmup(*self._args, **self._kwargs, **config.all_kwargs())
