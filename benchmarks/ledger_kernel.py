"""A kernel that writes down where and when each of its configurations begins to be measured."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleeping_kernel import SleepingKernel

import foretune as ft

LEDGER_VARIABLE = "FLEET_LEDGER"
"""Names the file that all hosts write to."""


@dataclass(frozen=True)
class Entry:
    """The beginning of a measurement: seconds since the epoch, the host, and what it measures."""

    time_s: float
    host: str
    work: tuple[int, int]
    """The problem's ``n`` and the configuration's ``ms``."""


class LedgerKernel(SleepingKernel):
    """Sleeps, and leaves a line in ``$FLEET_LEDGER``."""

    name = "ledger"

    def build(self, problem: ft.Problem, config: ft.Configuration, inputs: Any) -> Any:
        """Write a line and return a launch that sleeps."""
        line = f"{time.time()} {platform.node()} {problem['n']} {config['ms']}\n"
        # One write of a short line at the end of a file: hosts do not mix them.
        with open(os.environ[LEDGER_VARIABLE], "a", encoding="utf-8") as ledger:
            ledger.write(line)
        return super().build(problem, config, inputs)


def read_ledger(path: Path) -> list[Entry]:
    """Return the entries of a ledger, the oldest first."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        time_s, host, n, ms = line.split()
        entries.append(Entry(time_s=float(time_s), host=host, work=(int(n), int(ms))))
    return entries
