"""Splitting a kernel's work over threads: static ranges on a persistent pool.

Numba functions compiled with ``nogil=True`` run side by side; a Python pool costs some 20 µs a
launch, and unlike ``numba.prange`` it needs no second compilation per configuration.
"""

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


def split(length: int, parts: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Return up to ``parts`` ranges that cover ``length``, cut at multiples of ``multiple``."""
    units = -(-length // multiple)
    cuts = [min(length, units * i // parts * multiple) for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def in_parallel(work: Callable[[int, int], object], ranges: list[tuple[int, int]]) -> None:
    """Call ``work(start, stop)`` for every range, each on a thread of its own; wait for all."""
    others = [_pool(len(ranges) - 1).submit(work, *r) for r in ranges[1:]]
    work(*ranges[0])
    for future in others:
        future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="foretune-kernel")
