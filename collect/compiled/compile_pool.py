"""Parallel compilation in processes that may die."""

import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path, PurePath
from typing import Any

from foretune.collect.child import exit_cause
from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.targets import Target
from foretune.device import available_cores
from foretune.errors import ForetuneError, MeasurementError, UsageError
from foretune.lazy import require
from foretune.measurement import Status
from foretune.space import Configuration


@dataclass(frozen=True)
class CompileRequest:
    """What all configurations of one batch have in common.

    Attributes:
        path: where modules are looked for, like ``sys.path``.
        kernel: ``module:attribute``.
        args: positional arguments, described.
        kwargs: the same by name.
        target: what to compile for.
        tier: ``full``, or ``ttgir`` for the first stages only.
        cache_dir: Triton's cache; empty for the one that is set.
    """

    path: tuple[str, ...]
    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    tier: str
    cache_dir: str = ""


def load_kernel(reference: str, compiling: bool = True) -> Any:
    """Return the kernel called ``module:attribute``.

    Args:
        reference: what it is called.
        compiling: it is to be compiled, even if its module would interpret it.

    Raises:
        UsageError: there is none, or its module cannot be imported.
        MissingExtra: Triton is not installed.
    """
    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(f"kernel {reference!r}: give MODULE:NAME, like my_kernels:softmax")
    _refuse_file(reference, module, attribute)
    try:
        with _interpreter_off() if compiling else nullcontext():
            found = importlib.import_module(module)
    except ForetuneError:
        raise
    except ImportError as e:
        raise UsageError(f"module {module!r} cannot be imported here: {e}") from e
    except (Exception, SystemExit) as e:
        raise UsageError(f"module {module!r} fails when imported: {type(e).__name__}: {e}") from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _refuse_file(reference: str, module: str, attribute: str) -> None:
    """Raise UsageError if ``module`` is the path of a file."""
    path = PurePath(module)
    if len(path.parts) == 1 and path.suffix != ".py" and not module.startswith("."):
        return
    name = path.stem if path.suffix == ".py" else path.name.lstrip(".")
    advice = "" if path.parent == PurePath() else f"go to the folder {path.parent} and "
    raise UsageError(
        f"kernel {reference!r} names a file, not a module: {advice}give {name}:{attribute}"
    )


@contextmanager
def _interpreter_off() -> Iterator[None]:
    """Within, `triton.jit` makes kernels that can be compiled, whatever the environment says.

    Some modules ask for the interpreter themselves where they find no GPU.
    """
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "0"  # Triton itself may be imported only now
    try:
        require("triton", "gpu", "compiling Triton kernels")
        from triton import knobs

        knobs.runtime.interpret = False  # stands against the environment
        try:
            yield
        finally:
            del knobs.runtime.interpret
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


@dataclass(frozen=True)
class CompileResult:
    """One configuration, compiled or not.

    Attributes:
        config: the configuration.
        status: ``ok``; ``invalid`` (compiled, but too large for the target to launch);
            ``compile_error``; ``timeout``.
        error: the reason of a failure, one line.
        static: what the code shows, by the names in `FEATURES`; empty where it did not compile.
        compile_s: seconds it took; NaN where it did not compile.
        cached: whether Triton's cache had it already.
        hash: Triton's name of it, the folder in its cache; empty for the TTGIR tier.
    """

    config: Configuration
    status: Status
    error: str = ""
    static: Mapping[str, float] = field(default_factory=dict)
    compile_s: float = math.nan
    cached: bool = False
    hash: str = ""

    @property
    def ok(self) -> bool:
        """Whether it compiled and can be launched."""
        return self.status is Status.OK


LIMIT_S = 60.0
START_TIMEOUT_S = 120.0
"""Seconds a worker may take to import the kernel's module; torch alone takes a few."""


def compile_configs(
    kernel: Any,
    args: Sequence[Any],
    configs: Iterable[Mapping[str, Any]],
    target: Target,
    *,
    kwargs: Mapping[str, Any] | None = None,
    tier: str = "full",
    jobs: int | None = None,
    limit_s: float = LIMIT_S,
    cache_dir: str | Path | None = None,
) -> Iterator[tuple[int, CompileResult]]:
    """Yield (position, outcome) of every configuration, as they are done.

    Args:
        kernel: ``module:attribute``, or the kernel itself if other processes can import it.
        args: positional arguments; tensors are only looked at, never sent.
        configs: compile-time parameters and launch options, one mapping per configuration.
        target: what to compile for.
        kwargs: further arguments by name.
        tier: ``full``: machine code, kept in Triton's cache. ``ttgir``: the first stages only,
            which take a fraction of the time and leave nothing behind.
        jobs: processes at once; as many as there are cores if None.
        limit_s: seconds one configuration may take before its process is killed.
        cache_dir: Triton's cache; the one that is set (``TRITON_CACHE_DIR``) if None.

    Raises:
        UsageError: the kernel cannot be found, an argument is missing or unknown.
        MeasurementError: no process can be started.
    """
    if tier not in ("full", "ttgir"):
        raise UsageError(f"tier {tier!r}: there are 'full' and 'ttgir'")
    request = CompileRequest(
        path=tuple(p or str(Path.cwd()) for p in sys.path),
        kernel=kernel if isinstance(kernel, str) else kernel_reference(kernel),
        args=tuple(map(describe, args)),
        kwargs={name: describe(value) for name, value in (kwargs or {}).items()},
        target=target,
        tier=tier,
        cache_dir="" if cache_dir is None else str(Path(cache_dir).absolute()),
    )
    waiting = [(i, Configuration(c)) for i, c in enumerate(configs)]
    waiting.reverse()
    n = min(jobs or available_cores(), len(waiting))
    workers = [_Worker(request, limit_s) for _ in range(n)]
    try:
        for worker in workers:
            worker.start()
        yield from _distribute(workers, waiting)
    finally:
        for worker in workers:
            worker.close()


def precompile(
    kernel: Any,
    args: Sequence[Any],
    configs: Iterable[Mapping[str, Any]],
    target: Target,
    cache_dir: str | Path | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    limit_s: float = LIMIT_S,
) -> list[CompileResult]:
    """Fill a Triton cache, so that launches with such arguments on such a device find their code.

    The machine needs no GPU, but the Triton release, the kernel's source and the environment
    variables that Triton puts into its hash must be those of the launching machine, and the folder
    must lie at the same path there: Triton's cache holds absolute paths.

    Args:
        kernel: ``module:attribute``, or the kernel itself if other processes can import it.
        args: positional arguments; a torch dtype stands for a pointer that is a multiple of 16.
        configs: what to build.
        target: what to build for.
        cache_dir: the folder; Triton's own (``TRITON_CACHE_DIR``) if None.
        kwargs: further arguments by name.
        jobs: processes at once; as many as there are cores if None.
        limit_s: seconds one configuration may take.

    Returns:
        One outcome per configuration, in order.

    Raises:
        UsageError: the kernel cannot be found, an argument is missing or unknown.
    """
    done = compile_configs(
        kernel, args, configs, target,
        kwargs=kwargs, jobs=jobs, limit_s=limit_s, cache_dir=cache_dir,
    )  # fmt: skip
    return [outcome for _, outcome in sorted(done, key=lambda pair: pair[0])]


def kernel_reference(kernel: Any) -> str:
    """Return the ``module:attribute`` by which another process finds ``kernel``.

    A kernel under further decorators is found with those on top.

    Raises:
        UsageError: it cannot be found by name.
    """
    inner = kernel
    while not hasattr(inner, "__wrapped__") and hasattr(inner, "fn"):
        inner = inner.fn
    module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", None)
    name = str(name or getattr(inner, "__name__", ""))
    if module == "__main__":
        raise UsageError(
            f"kernel {name!r} is defined in the script that runs: another process cannot import "
            "it; put it in a module of its own"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not any(layer is kernel for layer in _layers(found)):
        raise UsageError(
            f"kernel {name!r} is not what module {module!r} calls by that name: "
            "another process cannot import it; give 'module:attribute'"
        )
    return f"{module}:{name}"


def _layers(kernel: Any) -> Iterator[Any]:
    """Yield a kernel and what it decorates, and so on."""
    while kernel is not None:
        yield kernel
        kernel = getattr(kernel, "fn", None)


class _Worker:
    """A child process and what it is busy with.

    Args:
        request: what it works on.
        limit_s: seconds one configuration may take.
    """

    def __init__(self, request: CompileRequest, limit_s: float) -> None:
        self.job: tuple[int, Configuration] | None = None
        self.ready = False
        self.deadline = 0.0
        self.connection: Connection[Any, Any] | None = None
        self._request = request
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which then imports the kernel."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "foretune.collect.compiled.compile_worker",
                 str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that its assembler can be killed with it
            )  # fmt: skip
        self.connection = Connection(ours.detach())
        self.ready, self.job = False, None
        self.deadline = time.monotonic() + START_TIMEOUT_S
        self.connection.send(self._request)

    def assign(self, job: tuple[int, Configuration]) -> None:
        """Send a configuration; its time begins."""
        assert self.connection is not None
        self.job = job
        self.deadline = time.monotonic() + self._limit_s
        self.connection.send(job[1])

    def has_answered(self) -> bool:
        """Whether `take` returns at once."""
        return self.connection is not None and self.connection.poll()

    def receive(self) -> CompileResult | None:
        """Return what came back; None if it only says that it is ready.

        Raises:
            ForetuneError: nothing can be compiled as ordered.
        """
        assert self.connection is not None
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            return self._exited()
        if isinstance(answer, ForetuneError):
            raise answer
        self.ready = True
        self.job = None
        return answer

    def kill_overdue(self) -> CompileResult:
        """Kill the process, which took too long, and return what that means.

        Raises:
            MeasurementError: it did not even start.
        """
        self.close()
        if self.job is None:
            raise MeasurementError(f"a compiling process was not ready after {START_TIMEOUT_S:g} s")
        config, self.job = self.job[1], None
        return CompileResult(config, Status.TIMEOUT, f"not compiled after {self._limit_s:g} s")

    def close(self) -> None:
        """Kill the process and all that it started."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        self.ready = False

    def _exited(self) -> CompileResult:
        assert self._process is not None
        cause, job = exit_cause(self._process), self.job
        self.close()
        if job is None:
            raise MeasurementError(f"a compiling process ended with {cause}: see its message above")
        self.job = None
        return CompileResult(job[1], Status.COMPILE_ERROR, f"the compiler died: {cause}")


def _distribute(
    workers: list[_Worker], waiting: list[tuple[int, Configuration]]
) -> Iterator[tuple[int, CompileResult]]:
    while True:
        for worker in workers:
            if waiting and worker.ready and worker.job is None:
                worker.assign(waiting.pop())
        busy = {w.connection: w for w in workers if w.connection and (w.job or not w.ready)}
        if not waiting and not any(w.job for w in workers):
            return
        for worker in _wait_for_workers(busy):
            position = worker.job[0] if worker.job else -1
            outcome = worker.receive() if worker.has_answered() else worker.kill_overdue()
            if outcome is not None:
                yield position, outcome
            if worker.connection is None and waiting:
                worker.start()


def _wait_for_workers(busy: "dict[Connection[Any, Any], _Worker]") -> list[_Worker]:
    """Return the workers that have answered or whose time is over, after waiting for one."""
    first = min(w.deadline for w in busy.values())
    found: Any = wait(list(busy), timeout=max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [w for c, w in busy.items() if c in found or w.deadline <= now]
