"""Child processes that answer their parent over a connection: how they begin, how they ended."""

import os
import signal
import subprocess
import sys
import threading
import time


def begin(parent: int) -> None:
    """Make this process a child that serves: to be called before anything else.

    Ctrl-C is the parent's to handle; what is printed goes to stderr, where it cannot break
    ``--json``; and it ends with its parent, even in the middle of something that hangs.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def ending(process: "subprocess.Popen[bytes]") -> str:
    """Wait for a process that is ending, and return what ended it: a signal or an exit code."""
    code = process.wait()
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
