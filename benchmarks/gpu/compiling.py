"""Compilation that runs ahead on all cores while the device measures.

It is done in processes: a thread of this one that compiles would take Python's lock between the
launches that are timed. They compile for the same target as Triton would here, without touching the
device, and leave what they made in Triton's cache on disk, where building finds it.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from stage import Job

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "replay_gpu"))

from replay_driver import ReplayDriver

from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.kernel import Inputs
from foretune.problem import Problem

AHEAD = 24
"""Configurations per compiling process that are handed out before they are measured."""
MOST_S = 60.0
"""What measuring waits for one compilation."""
NEVER_LOADED = "OutOfResources"
"""What Triton raises for a program that was compiled and does not fit the device."""


@dataclass(frozen=True)
class Compiled:
    """What came of compiling a configuration: seconds, or why it failed."""

    seconds: float = float("nan")
    error: str = ""


def compiled_ahead(
    executor: Callable[[int], Executor],
    compile_job: Callable[[Job], Compiled],
    jobs: Iterable[Job],
    threads: int = 0,
) -> Iterator[tuple[Job, Compiled]]:
    """Yield jobs with their compiled programs or errors, while later jobs are compiled.

    Args:
        executor: Makes an executor with the given number of workers.
        compile_job: Compiles a job in a worker.
        jobs: Read some hundred jobs ahead.
        threads: Number of workers; 0: one less than the cores.
    """
    threads = threads or max(1, (os.cpu_count() or 2) - 1)
    waiting: deque[tuple[Job, Future[Compiled]]] = deque()
    source = iter(jobs)
    pool = executor(threads)
    try:
        while True:
            while len(waiting) < AHEAD * threads and (job := next(source, None)) is not None:
                waiting.append((job, _submitted(pool, compile_job, job)))
            if not waiting:
                return
            job, future = waiting.popleft()
            try:
                compiled = _result(future)
            except BrokenExecutor:  # the compiler crashed: on this job, or on one of the others
                _stop(pool)
                compiled = _alone(executor, compile_job, job)
                pool = executor(threads)
                waiting = deque((j, _submitted(pool, compile_job, j)) for j, _ in waiting)
            yield job, compiled
    finally:
        _stop(pool)


def processes(device: str) -> Callable[[int], Executor]:
    """Return what makes processes that compile for ``device``, a name of the table of devices."""
    return lambda workers: ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_begin, initargs=(device,)
    )


def compile_in_process(job: Job) -> Compiled:
    """Compile a job in a process of `processes`."""
    start = time.perf_counter()
    try:
        job.kernel.build(job.problem, job.config, _described(job.kernel, job.problem))
    except Exception as e:
        if type(e).__name__ != NEVER_LOADED:  # that is the device's to say, which may have more
            return Compiled(error=_reason(e))
    finally:
        _STAND_IN[0][0].launches.clear()
    return Compiled(time.perf_counter() - start)


_STAND_IN: list[tuple[ReplayDriver, Any]] = []


@cache
def _described(kernel: TritonKernel, problem: Problem) -> Inputs:
    return kernel.inputs_without_data(problem)


def _begin(device: str) -> None:
    """Let Triton compile for ``device`` and launch nothing; torch must not find a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    driver = ReplayDriver(lambda launch: 0.0, device=device, compile=True)
    active = driver.active()
    active.__enter__()
    _STAND_IN.append((driver, active))  # until the process ends


def _reason(error: BaseException) -> str:
    """Return what is wrong; Triton's own errors quote the code, and have the reason as cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _submitted(
    pool: Executor, compile_job: Callable[[Job], Compiled], job: Job
) -> Future[Compiled]:
    """Return the future of a job; a broken one where the pool is broken already."""
    try:
        return pool.submit(compile_job, job)
    except BrokenExecutor as e:
        future: Future[Compiled] = Future()
        future.set_exception(e)
        return future


def _alone(
    executor: Callable[[int], Executor], compile_job: Callable[[Job], Compiled], job: Job
) -> Compiled:
    """Compile a job in a separate process; return its program or error."""
    pool = executor(1)
    try:
        return _result(pool.submit(compile_job, job))
    except BrokenExecutor:
        return Compiled(error="the compiler crashed")
    finally:
        _stop(pool)


def _result(future: Future[Compiled]) -> Compiled:
    try:
        return future.result(timeout=MOST_S)
    except TimeoutError:
        return Compiled(error=f"compiling took more than {MOST_S:.0f} s")


def _stop(pool: Executor) -> None:
    """End a pool and its unfinished work, which may hang."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
