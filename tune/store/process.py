"""Identifies processes, so that one can tell whether another still runs."""

import functools
import math
import os
import platform
from dataclasses import dataclass

START_TOLERANCE_S = 2.0
"""A change of the clock changes a process's apparent start time by up to this much."""


@dataclass(frozen=True)
class Process:
    """A process of a host; the start time (seconds since 1970) distinguishes reused pids."""

    host: str
    pid: int
    started: float

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None if unknown: on another host, or hidden by permissions."""
        if self.host != platform.node():
            return None
        now = _start_time(self.pid)
        if now is None:
            return False
        return None if math.isnan(now) else abs(now - self.started) <= START_TOLERANCE_S


def this_process() -> Process:
    """Return the calling process; in a forked child, the child."""
    return process_of(os.getpid())


@functools.cache
def process_of(pid: int) -> Process:
    """Return the process with this number on this host."""
    return Process(platform.node(), pid, _start_time(pid) or math.nan)


def _start_time(pid: int) -> float | None:
    """Return a process's start time; None without such a process, NaN without permission."""
    import psutil

    try:
        process = psutil.Process(pid)
        killed = process.status() == psutil.STATUS_ZOMBIE  # and its parent does not know yet
        return None if killed else float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return math.nan
