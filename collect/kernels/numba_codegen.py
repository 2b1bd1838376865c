"""Compiles generated source with Numba, and runs it in a thread pool."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from foretune.device import available_cores
from foretune.support.lazy import require

BUILD_FOLDER = "FORETUNE_BUILD_FOLDER"
"""Environment variable: the folder of compiled code that the processes of a runner share."""


def function_source(name: str, arguments: str, body: list[str]) -> str:
    """Return the source of ``def name(arguments)`` with one line per element of ``body``."""
    return "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in body)]) + "\n"


def compile_function(source: str, name: str, **functions: Any) -> Any:
    """Compile the function ``name`` of ``source`` without the GIL and with contracted FMAs.

    The names of `foretune.collect.kernels.simd` and ``functions`` (already compiled) are in its
    scope. Numba compiles for concrete argument types at the first call. Results are cached by
    source and functions, and in `BUILD_FOLDER` if it is set.

    Raises:
        MissingExtra: Numba is not installed.
    """
    return _compile_function(source, name, tuple(functions.items()))


@lru_cache(maxsize=2048)
def _compile_function(source: str, name: str, functions: tuple[tuple[str, Any], ...]) -> Any:
    numba = require("numba", "cpu", "a CPU kernel")
    from foretune.collect.kernels import simd

    scope = {**vars(simd), **dict(functions)}
    file = _shared_file(source, functions)
    exec(compile(source, file, "exec"), scope)
    return numba.njit(
        scope[name],
        nogil=True,
        fastmath={"contract", "reassoc"},
        error_model="numpy",
        cache=bool(file),
    )


def _shared_file(source: str, functions: tuple[tuple[str, Any], ...]) -> str:
    """Return a file of this source, beside which Numba keeps the code; empty without a folder."""
    if BUILD_FOLDER not in os.environ:
        return ""
    given = [
        f"{name} {value.py_func.__code__.co_filename if hasattr(value, 'py_func') else repr(value)}"
        for name, value in functions
    ]
    digest = hashlib.sha256("\n".join([source, *given]).encode()).hexdigest()[:32]
    file = Path(os.environ[BUILD_FOLDER], f"{digest}.py")
    if not file.exists():
        file.write_text(source, encoding="utf-8")
    return str(file)


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
    """Call ``work(start, stop)`` for every range, one thread each, and wait for all."""
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
