"""Runs a load generator of others under the guard of servers: nothing of it outlives its run."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from foretune.errors import MeasurementError
from foretune.plan.prove import guard

GRACE_S = 5.0
"""Seconds that a tool has to end when it is asked to."""


def run_tool(
    words: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str]
) -> int:
    """Run a program until it ends, and return its status; ``log`` gets its output.

    Raises MeasurementError if it takes longer than ``limit_s``. It is ended then, and also if this
    process is interrupted or killed.
    """
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-I", str(Path(guard.__file__)), str(GRACE_S), *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for this process, which then lets go
        )
        try:
            return running.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"{words[0]} did not end within {limit_s:.0f} s: see {log}"
            ) from None
        finally:
            # The guard sees the end of the pipe, and ends what is left.
            if running.stdin is not None:
                running.stdin.close()
            running.wait()
