"""Functions whose work is known exactly, for benchmarks of comparisons.

Each takes ``gain``, the share of the work that it leaves out, and ``twin``, which changes nothing.
``total`` is the amount of work: elements, or matrix products.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foretune as ft
from foretune.collect.wrapped.function import FunctionKernel

BLOCK = 4096
"""Elements of an array that stays in a cache."""
SIDE = 192
"""Rows and columns of a matrix whose product uses all BLAS threads."""
THREADS = 2
CALIBRATION_CALLS = 5


def roots(x, out, total, gain=0.0, twin=0):
    """Write the roots of ``x``, and take ``total × (1 − gain)`` roots in all."""
    np.sqrt(x, out=out)
    left = int(total * (1.0 - gain)) - len(x)
    while left > 0:
        n = min(left, len(x))
        np.sqrt(x[:n], out=out[:n])
        left -= n


def inputs_of_roots(total=1, seed=0):
    """Return the arguments of `roots`."""
    return np.random.default_rng(seed).random(BLOCK), np.zeros(BLOCK), total


def temporaries(x, gain=0.0, twin=0):
    """Compute with arrays of the input's size, which a gain makes smaller: malloc serves them.

    A candidate's arrays have another size than the inputs, and than the harness's copies of them.
    """
    shorter = int(len(x) * (1.0 - gain))
    for _ in range(4):
        np.sin(x[:shorter] * 1.0001)
    return float(x.sum())


def streams(x, gain=0.0, twin=0):
    """Add and multiply: most of the time is the memory's, and that of new pages."""
    shorter = int(len(x) * (1.0 - gain))
    for _ in range(4):
        (x[:shorter] + 1.0) * 2.0
    return float(x.sum())


def pool(x, gain=0.0, twin=0):
    """Compute in the threads of a new pool."""
    shorter = int(len(x) * (1.0 - gain))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(np.sin, np.array_split(x[:shorter], 2 * THREADS)))
    return float(x.sum())


def files(x, gain=0.0, twin=0):
    """Write a file and read it."""
    shorter = int(len(x) * (1.0 - gain))
    path = Path(tempfile.gettempdir(), f"known-work-{os.getpid()}")
    x[:shorter].tofile(path)
    np.fromfile(path)
    path.unlink()
    return float(x.sum())


def array_of(total=1, seed=0):
    """Return an array of ``total`` numbers."""
    return (np.random.default_rng(seed).random(total),)


def blas(x, total, gain=0.0, twin=0):
    """Multiply matrices ``total × (1 − gain)`` times, in all BLAS threads."""
    product = x @ x
    for _ in range(int(total * (1.0 - gain)) - 1):
        product = x @ x
    return product


def inputs_of_blas(total=1, seed=0):
    """Return the arguments of `blas`."""
    return np.random.default_rng(seed).random((SIDE, SIDE)), total


@dataclass(frozen=True)
class KnownWork:
    """A function, its inputs, and a total that takes some milliseconds."""

    function: Callable[..., Any]
    inputs: Callable[..., tuple[Any, ...]]
    calibration_total: int
    least_total: int = 1

    def kernel(self, gains: tuple[float, ...], twins: int = 1) -> FunctionKernel:
        """Return a kernel whose candidates leave out ``gains``, with ``twins`` of the default."""
        return FunctionKernel(
            self.function,
            {"gain": (0.0, *gains), "twin": tuple(range(twins + 1))},
            self.inputs,
            restrictions=["twin == 0 or gain == 0"],
            default={"gain": 0.0, "twin": 0},
        )

    def problem(self, kernel: FunctionKernel, time_ms: float) -> ft.Problem:
        """Return the problem whose default takes about ``time_ms``."""
        arguments = self.inputs(total=self.calibration_total)
        times_s = []
        for _ in range(CALIBRATION_CALLS):
            start = time.perf_counter()
            self.function(*arguments)
            times_s.append(time.perf_counter() - start)
        total = self.calibration_total * time_ms * 1e-3 / min(times_s)
        return kernel.problem(total=max(self.least_total, round(total)))


FUNCTIONS = {
    "roots": KnownWork(roots, inputs_of_roots, 100 * BLOCK, least_total=BLOCK),
    "temporaries": KnownWork(temporaries, array_of, 30_000),
    "streams": KnownWork(streams, array_of, 1_000_000),
    "pool": KnownWork(pool, array_of, 1_000_000),
    "files": KnownWork(files, array_of, 500_000),
    "blas": KnownWork(blas, inputs_of_blas, 40, least_total=40),
}
