"""Shows the beginning of what measuring processes print, so that it does not flood the terminal.

A function that prints a line is called thousands of times while it is measured. A thread reads what
all processes of a worker print, shows the first lines on stderr, and drops the others.
"""

import contextlib
import os
import sys
import threading
import weakref
from typing import Any

MAX_LINES = 10
"""Lines that are shown of each worker."""
MAX_BYTES = 2000
"""Bytes that are shown, in case that lines are long."""
NOTICE = b"(measuring processes print more, which is not shown)\n"
_READ_BYTES = 1 << 16


class PrintedOutput:
    """A pipe to the beginning of stderr, for the processes that one worker starts in turn."""

    def __init__(self) -> None:
        self._write_end: int | None = None

    def file(self) -> int:
        """Return the file descriptor to which processes print; the pipe is opened at first."""
        if self._write_end is None:
            read_end, self._write_end = os.pipe()
            weakref.finalize(self, _close, self._write_end)
            # The thread must not keep this object alive, whose end closes the pipe.
            limit = _Limit(MAX_LINES, MAX_BYTES)
            threading.Thread(target=_show_beginning, args=(read_end, limit), daemon=True).start()
        return self._write_end


class _Limit:
    """How much may still be shown."""

    def __init__(self, lines: int, length: int) -> None:
        self._lines = lines
        self._bytes = length

    def is_reached(self) -> bool:
        """Return whether nothing more may be shown."""
        return self._lines <= 0 or self._bytes <= 0

    def take(self, printed: bytes) -> bytes:
        """Return what may be shown of it."""
        shown = b"".join(printed.splitlines(keepends=True)[: self._lines])[: self._bytes]
        self._lines -= shown.count(b"\n")
        self._bytes -= len(shown)
        return shown


def _show_beginning(read_end: int, limit: _Limit) -> None:
    """Show what is read until the limit, and read on: a process that prints must not wait."""
    while True:
        printed = os.read(read_end, _READ_BYTES)
        if not printed:
            break
        if limit.is_reached():
            continue
        shown = limit.take(printed)
        if limit.is_reached():
            shown += (b"" if shown.endswith(b"\n") else b"\n") + NOTICE
        _write_to_stderr(shown)
    _close(read_end)


def _write_to_stderr(content: bytes) -> None:
    stderr: Any = sys.__stderr__
    if stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):  # it may be closed
        os.write(stderr.fileno(), content)


def _close(file: int) -> None:
    with contextlib.suppress(OSError):
        os.close(file)
