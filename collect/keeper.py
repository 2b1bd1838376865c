"""A keeper: on Linux, the parent of a worker process, which ends with everything it started.

A kernel may start processes that leave their session and whose parents end at once. The keeper
adopts them, because it is a "child subreaper". So they can be found, also after the worker died.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

MAX_PROCESSES = 512  # a worker that starts more processes is killed with them
END_TIMEOUT_S = 5.0  # time limit for the end of killed descendants
_POLL_S = 0.5
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM) if sys.platform == "linux" else ()
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")


def fork_worker(parent: int) -> int:
    """Return in a new process, the worker, and keep it; return the process it must not survive.

    This process becomes the keeper: it ends as the worker ends, or after SIGTERM, or when process
    ``parent`` has ended; before that, it kills all that the worker started. On other systems than
    Linux this process itself is the worker.
    """
    if sys.platform != "linux":
        return parent
    keeper, libc = os.getpid(), ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    worker = os.fork()
    if worker:
        status = _wait_for(worker, parent)
        _end_descendants()
        _end_like(status)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.setsid()  # what it sends to its group does not reach the keeper
    _limit_resources()
    return keeper


def _wait_for(worker: int, parent: int) -> int:
    """Return the exit status of the worker; kill it if it must end."""
    threads = _threads()
    while True:
        received = signal.sigtimedwait(_SIGNALS, _POLL_S)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == worker:
                    return ended[1]
        must_end = os.getppid() != parent or (
            received is not None and received.si_signo == signal.SIGTERM
        )
        if not must_end and _threads() > threads + MAX_PROCESSES:
            threads = _threads()
            must_end = len(_descendants()) > MAX_PROCESSES
        if must_end:
            os.kill(worker, signal.SIGKILL)


def _end_descendants() -> None:
    """Kill all processes below this one, which adopts those whose parents end."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # first they must not start others
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.01)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _set_limit("RLIMIT_CORE", 0)
        with contextlib.suppress(OSError):  # the action of SIGKILL cannot be set
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def _descendants() -> list[int]:
    import psutil  # a worker rarely leaves any

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _threads() -> int:
    """Return the number of threads of the system, which is cheap to read; -1 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return -1


def _limit_resources() -> None:
    """Cap threads and memory of this process, and let the kernel kill it first if memory is short.

    The cap on memory is the machine's. It is left out where a GPU's driver maps more.
    """
    cores = os.cpu_count() or 1
    _set_limit("RLIMIT_NPROC", _threads() + 2 * MAX_PROCESSES + 16 * cores)
    if not any(Path(path).exists() for path in _GPU_DRIVERS):
        _set_limit("RLIMIT_DATA", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _set_limit(name: str, limit: int) -> None:
    import resource

    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (soft, hard))
