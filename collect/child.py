"""Child processes that answer their parent over a connection: how they begin, how they ended."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

WORKER_VARIABLE = "FORETUNE_SERVES"
"""Set in the environment of a child process: what is measured there must not tune anything."""
EXIT_TIMEOUT_S = 2.0
"""How long a process that has closed its connection may take to end by itself."""
KILL_TIMEOUT_S = 10.0
"""How long one that was killed may take: one in the middle of a system call does not end."""


def become_worker(parent: int) -> None:
    """Make this process a child that serves: to be called before anything else.

    Ctrl-C is the parent's to handle; what is printed goes to stderr, where it cannot break
    ``--json``; and it ends with its parent, even in the middle of something that hangs.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ[WORKER_VARIABLE] = "1"
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def exit_cause(process: "subprocess.Popen[bytes]") -> str:
    """Return what ended a process that is ending: a signal or an exit code.

    One that goes on after a moment is not waited for.
    """
    try:
        code = process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "it closed its connection and went on"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that was started in a session of its own, and what it started there."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with all that was started here
    os._exit(1)
