"""Splitting a kernel's work over threads: static ranges on persistent, pinned threads.

Numba functions compiled with ``nogil=True`` run side by side; handing work to a Python thread costs
some microseconds a launch, and unlike ``numba.prange`` no second compilation per configuration.

Every thread has a core of its own. Left to the scheduler, two threads that wake each other may end
up on one core and stay there: on a virtual machine the same configuration then takes either of two
very different times.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

from foretune.device import available_cores


def thread_counts() -> tuple[int, ...]:
    """Return the powers of two up to the cores this process may use, and that number itself."""
    cores = available_cores()
    powers = {2**i for i in range(cores.bit_length()) if 2**i <= cores}
    return tuple(sorted(powers | {cores}))


def split_range(length: int, parts: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Return up to ``parts`` ranges that cover ``length``, cut at multiples of ``multiple``."""
    units = -(-length // multiple)
    cuts = [min(length, units * i // parts * multiple) for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def run_parallel(work: Callable[[int, int], object], ranges: list[tuple[int, int]]) -> None:
    """Call ``work(start, stop)`` for every range, each on a thread of its own; wait for all."""
    if len(ranges) == 1:
        work(*ranges[0])
        return
    for future in [_executor(i).submit(work, *r) for i, r in enumerate(ranges)]:
        future.result()


@cache
def _executor(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"foretune-kernel-{number}", initializer=_pin, initargs=(number,))


def _pin(number: int) -> None:
    """Keep the calling thread on one core (Linux; elsewhere the scheduler decides)."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
