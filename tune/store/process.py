"""Processes that measure: who this one is, and whether another one still lives."""

import functools
import math
import os
import platform
from dataclasses import dataclass

_START_TOLERANCE_S = 2.0
"""The same process seems to have started at times this far apart when the clock is set."""


@dataclass(frozen=True)
class Process:
    """A process of some host, told apart from a later one with the same number.

    Attributes:
        host: the machine's name.
        pid: its number there.
        started: when it started, seconds since 1970.
    """

    host: str
    pid: int
    started: float

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None where nobody can look: on another host, behind a lock."""
        if self.host != platform.node():
            return None
        now = _start_time(self.pid)
        if now is None:
            return False
        return None if math.isnan(now) else abs(now - self.started) <= _START_TOLERANCE_S


def this_process() -> Process:
    """Return the process that calls; after a fork, the child."""
    return _process(os.getpid())


@functools.cache
def _process(pid: int) -> Process:
    return Process(platform.node(), pid, _start_time(pid) or math.nan)


def _start_time(pid: int) -> float | None:
    """Return when a process started; None if there is none, NaN if that is kept from us."""
    import psutil

    try:
        process = psutil.Process(pid)
        killed = process.status() == psutil.STATUS_ZOMBIE  # and its parent does not know yet
        return None if killed else float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return math.nan
