"""Benchmarks that are programs: a command line, or the import of a module, in fresh processes."""

import os
import subprocess
import sys
import threading
import time
from typing import Any

from foretune.tune.gate.agent.functions import Serve
from foretune.tune.gate.agent.timed_call import ProgramCall, waited_for_cpu_ns

MAX_MESSAGE_BYTES = 2000
"""Bytes at the end of a failed program's messages that are read."""
TIMED_IMPORT = """
import time
wall, cpu = time.perf_counter_ns(), time.process_time_ns()
__import__({module!r})
print()
print(time.perf_counter_ns() - wall, time.process_time_ns() - cpu)
"""
"""A program that prints how long an import takes: by the clock, and on the CPU."""


class ProgramFailed(Exception):
    """A program ended with an error."""


class CommandBenchmark:
    """A program with its words; the environment's programs come first on its path."""

    def __init__(self, command: str) -> None:
        self._command = command

    def run(self, serve: Serve) -> None:
        """Serve the command."""
        serve(ProgramCall(self._start))

    def _start(self) -> tuple[int, int | None, Any]:
        """Run the command once."""
        start = time.perf_counter_ns()
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {self._command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, messages, waited = _read_until_end(process)
        wall = time.perf_counter_ns() - start
        if process.returncode != 0:
            text = messages[-MAX_MESSAGE_BYTES:].decode(errors="replace").strip()
            last_line = text.splitlines()[-1] if text else "no message"
            raise ProgramFailed(f"exit code {process.returncode}: {last_line}")
        without_waiting = None if waited is None else max(wall - waited, 1)
        return wall, without_waiting, out.decode(errors="replace")


def _read_until_end(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes, int | None]:
    """Return both outputs, and how long the program was ready but had no CPU."""
    assert process.stdout is not None
    assert process.stderr is not None
    messages: list[bytes] = []
    stderr = process.stderr
    reader = threading.Thread(target=lambda: messages.append(stderr.read()))
    reader.start()
    out = process.stdout.read()
    waited = None
    if hasattr(os, "waitid"):
        # The counters of a process that ended can be read until it is waited for.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        waited = waited_for_cpu_ns(process.pid)
    process.wait()
    reader.join()
    process.stdout.close()
    stderr.close()
    return out, b"".join(messages), waited


class ImportBenchmark:
    """The import of a module in a fresh process, without the start of Python."""

    def __init__(self, module: str) -> None:
        self._module = module

    def run(self, serve: Serve) -> None:
        """Serve the import."""
        serve(ProgramCall(self._start))

    def _start(self) -> tuple[int, int | None, Any]:
        program = TIMED_IMPORT.format(module=self._module)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise ProgramFailed(lines[-1])
        # The module may print, too.
        wall, cpu = done.stdout.decode(errors="replace").splitlines()[-1].split()
        return int(wall), int(cpu), None
