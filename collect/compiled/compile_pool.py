"""Parallel compilation in worker processes, because a compiler may hang or abort."""

import importlib
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compile_result import CompileResult
from foretune.collect.compiled.gpu_targets import Target
from foretune.collect.compiled.static_features import occupancy_of, static_features
from foretune.collect.worker_process import WorkerProcess
from foretune.device import available_cores
from foretune.errors import UsageError
from foretune.measurement import Status
from foretune.registry import object_at
from foretune.space import Configuration
from foretune.support.lazy import require

LIMIT_S = 60.0
"""Default time limit of one configuration."""
MAX_ERROR_LENGTH = 300
"""Maximum characters kept of a compiler's message."""
_JOIN_S = 0.05
"""Period of the check whether a thread has ended."""
_PICKLING_ADVICE = ("an argument of the kernel", "give its type or another value")


def compile_configs(
    kernel: str,
    args: Sequence[Any],
    configs: Iterable[Mapping[str, Any]],
    target: Target,
    *,
    kwargs: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    limit_s: float = LIMIT_S,
    cache_dir: str | Path | None = None,
) -> Iterator[tuple[int, CompileResult]]:
    """Compile all configurations in parallel; yield (position, result) as each one finishes.

    The machine code stays in Triton's cache, by default that of ``TRITON_CACHE_DIR``. A launch
    finds it there with the same Triton release, kernel source, environment variables that Triton
    hashes, and path of the folder, because Triton's cache holds absolute paths.

    ``kernel`` is its location (`load_kernel`). Only the metadata of tensors is sent to the workers;
    a torch dtype stands for a pointer aligned to 16 bytes. Configurations are compile-time
    parameters and launch options. ``jobs`` is the number of processes, by default one per core.
    Raises UsageError if the kernel does not exist, or an argument is missing or unknown.
    """
    named = {name: describe(value) for name, value in (kwargs or {}).items()}
    folder = "" if cache_dir is None else str(Path(cache_dir).absolute())
    compiler = partial(_Compiler, kernel, list(map(describe, args)), named, target, folder)
    waiting = deque(enumerate(map(Configuration, configs)))
    n_pending = len(waiting)
    n_jobs = jobs or available_cores()
    if n_jobs < 1:
        raise UsageError(f"{n_jobs} jobs compile nothing: give at least 1")

    # A thread for each worker process: it sends waiting configurations, and collects results.
    done: SimpleQueue[tuple[int, CompileResult] | BaseException] = SimpleQueue()
    n_workers = min(n_jobs, n_pending)
    workers = [WorkerProcess(compiler, _PICKLING_ADVICE) for _ in range(n_workers)]
    # Not a pool of the standard library: at exit, Python would wait for all that it was given.
    threads = [
        Thread(target=_drive, args=(worker, waiting, done, limit_s), daemon=True)
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(n_pending):
            finished = done.get()
            if isinstance(finished, BaseException):
                raise finished
            yield finished
    finally:
        waiting.clear()
        for worker, thread in zip(workers, threads, strict=True):
            # Again and again: the thread may be just starting the process.
            while thread.is_alive():
                worker.kill()
                thread.join(_JOIN_S)


def _drive(
    worker: WorkerProcess,
    waiting: deque[tuple[int, Configuration]],
    done: SimpleQueue[tuple[int, CompileResult] | BaseException],
    limit_s: float,
) -> None:
    """Compile waiting configurations in one process until none is left."""
    try:
        while True:
            try:
                position, config = waiting.popleft()
            except IndexError:
                return
            done.put((position, _compile_or_fail(worker, config, limit_s)))
    except BaseException as e:
        done.put(e)
    finally:
        worker.close()


def _compile_or_fail(worker: WorkerProcess, config: Configuration, limit_s: float) -> CompileResult:
    try:
        result: CompileResult = worker.call("compile", config, limit_s=limit_s)
        return result
    except TimeoutError:
        return CompileResult(config, Status.TIMEOUT, f"not compiled within {limit_s:g} s")
    except ChildProcessError as e:
        return CompileResult(config, Status.COMPILE_ERROR, str(e))


class _Compiler:
    """Compiles configurations of one kernel; lives in a worker process.

    Arguments are as `describe` returns them.
    """

    def __init__(
        self, kernel: str, args: list[Any], kwargs: dict[str, Any], target: Target, cache_dir: str
    ) -> None:
        # The launching process shows Triton's own warnings.
        warnings.simplefilter("ignore")
        if cache_dir:
            os.environ["TRITON_CACHE_DIR"] = cache_dir
        # Otherwise Triton's own functions are interpreted.
        os.environ.pop("TRITON_INTERPRET", None)
        require("triton", "gpu", "compiling Triton kernels")
        # Imported now, so that the import does not count in a configuration's time.
        importlib.import_module("foretune.collect.compiled.compiling")
        self._kernel = load_kernel(kernel)
        self._args = args
        self._kwargs = kwargs
        self._target = target

    def compile(self, config: Configuration) -> CompileResult:
        """Return the result for one configuration; raise UsageError if all would fail alike."""
        from triton import knobs

        from foretune.collect.compiled.compiling import compile_full, specialize

        started = time.perf_counter()
        cache_hits: list[bool] = []
        try:
            specialized = specialize(self._kernel, self._args, self._kwargs, config, self._target)
            started = time.perf_counter()
            knobs.compilation.listener = lambda *, cache_hit, **_: cache_hits.append(cache_hit)
            compiled = compile_full(specialized)
            seconds = time.perf_counter() - started
            features = static_features(compiled, self._target)
        except UsageError:
            raise
        except Exception as e:
            seconds = time.perf_counter() - started
            return CompileResult(config, Status.COMPILE_ERROR, _first_line(e), compile_s=seconds)

        # Code that is too large to launch compiles, too.
        excess = occupancy_of(features, self._target).excess if "registers" in features else ""
        return CompileResult(
            config,
            status=Status.INVALID if excess else Status.OK,
            error=excess,
            static=features,
            compile_s=seconds,
            cached=bool(cache_hits and cache_hits[-1]),
            hash=compiled.hash,
        )


def _first_line(error: BaseException) -> str:
    """Return an error's reason: Triton's message ends with it, ptxas' message begins with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    reason = lines[0] if type(error).__name__ == "PTXASError" else lines[-1]
    return f"{type(error).__name__}: {reason}"[:MAX_ERROR_LENGTH]


def load_kernel(location: str) -> Any:
    """Return the kernel at ``MODULE:NAME`` or ``FILE.py:NAME`` in a form that compiles.

    Raises ForetuneError if it cannot be imported, MissingExtra without Triton.
    """
    with _interpreter_off():
        return object_at(location)


@contextmanager
def _interpreter_off() -> Iterator[None]:
    """Make `triton.jit` return kernels that compile, whatever environment and module request."""
    before = os.environ.get("TRITON_INTERPRET")
    # For Triton itself, which may not be imported yet.
    os.environ["TRITON_INTERPRET"] = "0"
    try:
        require("triton", "gpu", "compiling Triton kernels")
        from triton import knobs

        # The knob overrides the environment.
        knobs.runtime.interpret = False
        try:
            yield
        finally:
            del knobs.runtime.interpret
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
