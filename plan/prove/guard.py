"""Runs a server, and ends all of its processes when the caller lets go, or is killed.

It is a program of the standard library alone, so that it starts at once, and on other machines::

    python guard.py GRACE_S COMMAND …

The caller keeps a pipe open as standard input. When the pipe closes, by decision or because the
caller was killed, the guard ends the server: SIGTERM to its session, after ``GRACE_S`` seconds
SIGKILL to everything that is left. It exits with the server's status, or 128 + the number of the
signal that ended it.

Nothing escapes: the server has its own session; on Linux, processes that leave it become
children of the guard, and the server dies if the guard is killed.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Numbers of Linux' prctl."""
POLL_S = 0.05
"""Seconds between two looks at the server."""
NOT_STARTED = 127
"""Exit status if the command cannot be run, as in shells."""


def main() -> int:
    """Run the command of ``sys.argv`` until it ends or standard input closes."""
    grace_s = float(sys.argv[1])
    command = sys.argv[2:]
    # Signals to the guard would leave the server alone: the caller closes the pipe instead.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)

    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_prepare_server,
        )
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_STARTED

    # Wait until the server ends, or the caller lets go.
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break

    _end_everything(server, grace_s)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _prepare_server() -> None:
    """Undo what a child inherits of the guard; runs in the child before the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Set an option of this process; only Linux has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_everything(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask the server's session to end, then kill what is left of it and of its descendants."""
    _signal_all(server, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and (server.poll() is None or _descendants()):
        _reap(server)
        time.sleep(POLL_S)

    # Killed parents hand their children over, so repeat until none is left.
    while True:
        _signal_all(server, signal.SIGKILL)
        server.wait()
        _reap(server)
        if not _descendants():
            return
        time.sleep(POLL_S)


def _signal_all(server: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to the server's group, and to all descendants of this process."""
    # Linux may give the number of a server that has ended to another program.
    if server.returncode is None or sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
    for process in _descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _reap(server: "subprocess.Popen[bytes]") -> None:
    """Collect the exit status of ended children; the server's own is kept."""
    server.poll()
    if server.returncode is None:
        return
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _descendants() -> list[int]:
    """Return the numbers of all living descendants; empty where /proc is missing."""
    children: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for number in numbers:
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                # The name in parentheses may hold spaces: state and parent follow its end.
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(number)

    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        of_parent = children.get(waiting.pop(), [])
        found += of_parent
        waiting += of_parent
    return found


if __name__ == "__main__":
    sys.exit(main())
