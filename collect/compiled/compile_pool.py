"""Parallel compilation in worker processes, because a compiler may hang or abort."""

import importlib
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compile_result import (
    CompileResult,
    error_reason,
    shown_configuration,
)
from foretune.collect.compiled.gpu_targets import Target
from foretune.collect.compiled.static_features import occupancy_of, static_features
from foretune.collect.worker_process import WorkerProcess
from foretune.device import available_cores
from foretune.errors import UsageError
from foretune.measurement import Status
from foretune.registry import object_at
from foretune.support.lazy import require

LIMIT_S = 60.0
"""Default time limit of one configuration."""
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
    Raises UsageError if the kernel does not exist, or an argument is missing or unknown in all
    configurations; in some, that is their compile error.
    """
    named = {name: describe(value) for name, value in (kwargs or {}).items()}
    folder = "" if cache_dir is None else str(Path(cache_dir).absolute())
    compiler = partial(_Compiler, kernel, list(map(describe, args)), named, target, folder)
    waiting = deque(enumerate(map(dict, configs)))
    n_pending = len(waiting)
    n_jobs = jobs or available_cores()
    if n_jobs < 1:
        raise UsageError(f"{n_jobs} jobs compile nothing: give at least 1")

    # A thread for each worker process: it sends waiting configurations, and collects results.
    done: SimpleQueue[_Finished | BaseException] = SimpleQueue()
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
        # Wrong arguments may be the own error of some entries: these come last.
        misused: list[_Misuse] = []
        for _ in range(n_pending):
            finished = done.get()
            if isinstance(finished, BaseException):
                raise finished
            if isinstance(finished, _Misuse):
                misused.append(finished)
            else:
                yield finished
            if len(misused) == n_pending:
                raise min(misused, key=lambda misuse: misuse.position).error
        for misuse in misused:
            yield misuse.position, misuse.result()
    finally:
        waiting.clear()
        for worker, thread in zip(workers, threads, strict=True):
            # Again and again: the thread may be just starting the process.
            while thread.is_alive():
                worker.kill()
                thread.join(_JOIN_S)


class _Misuse(NamedTuple):
    """A configuration with which an argument is missing or unknown."""

    position: int
    config: dict[str, Any]
    error: UsageError

    def result(self) -> CompileResult:
        """Return it as a configuration that cannot be compiled."""
        return CompileResult(
            shown_configuration(self.config), Status.COMPILE_ERROR, str(self.error)
        )


_Finished = tuple[int, CompileResult] | _Misuse


def _drive(
    worker: WorkerProcess,
    waiting: deque[tuple[int, dict[str, Any]]],
    done: SimpleQueue[_Finished | BaseException],
    limit_s: float,
) -> None:
    """Compile waiting configurations in one process until none is left."""
    try:
        # A kernel that cannot be loaded ends it for all, unless its module hangs or aborts.
        with suppress(TimeoutError, ChildProcessError):
            worker.call("load", limit_s=limit_s)
        while True:
            try:
                position, config = waiting.popleft()
            except IndexError:
                return
            try:
                done.put((position, _compile_or_fail(worker, config, limit_s)))
            except UsageError as e:
                done.put(_Misuse(position, config, e))
    except BaseException as e:
        done.put(e)
    finally:
        worker.close()


def _compile_or_fail(
    worker: WorkerProcess, config: dict[str, Any], limit_s: float
) -> CompileResult:
    try:
        result: CompileResult = worker.call("compile", config, limit_s=limit_s)
        return result
    except TimeoutError:
        return CompileResult(
            shown_configuration(config), Status.TIMEOUT, f"not compiled within {limit_s:g} s"
        )
    except ChildProcessError as e:
        return CompileResult(shown_configuration(config), Status.COMPILE_ERROR, str(e))


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

    def load(self) -> None:
        """Do nothing: the constructor loaded the kernel, or raised an error."""

    def compile(self, config: dict[str, Any]) -> CompileResult:
        """Return the result for one configuration; UsageError if its arguments do not fit."""
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
            return CompileResult(
                shown_configuration(config),
                Status.COMPILE_ERROR,
                error_reason(e),
                compile_s=seconds,
            )

        # Code that is too large to launch compiles, too.
        excess = occupancy_of(features, self._target).excess if "registers" in features else ""
        return CompileResult(
            shown_configuration(config),
            status=Status.INVALID if excess else Status.OK,
            error=excess,
            static=features,
            compile_s=seconds,
            cached=bool(cache_hits and cache_hits[-1]),
            hash=compiled.hash,
        )


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
