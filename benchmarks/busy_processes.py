"""Other load for the benchmarks that also run on a busy machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def other_load(processes: int) -> Iterator[None]:
    """Keep ``processes`` other processes computing."""
    code = "while True: sum(range(10000))"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
