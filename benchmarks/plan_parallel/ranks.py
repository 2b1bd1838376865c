"""Processes that hold a model's parts together, as the ranks of a deployment do."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from foretune.collect.worker_process import exit_cause
from foretune.errors import MeasurementError, MissingExtra
from foretune.support.lazy import EXTRA_OF

MODULE = "plan_parallel.rank_process"
START_S = 120.0
"""Importing torch may take a minute on a busy machine."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class RankGroup:
    """Processes joined by torch.distributed (gloo), each with one thread.

    They end with the ``with`` block, with an error in any of them, and with this process.

    Args:
        ranks: how many.
        limit_s: seconds that one request may take.

    Raises:
        MissingExtra: torch is not installed.
        MeasurementError: the processes cannot be started, or cannot be joined.
    """

    def __init__(self, ranks: int = 2, limit_s: float = 60.0) -> None:
        if find_spec("torch") is None:
            raise MissingExtra("torch", EXTRA_OF["torch"], "checking parallel layouts")
        if os.name != "posix":
            raise MeasurementError("checking parallel layouts needs Linux or macOS")
        self._limit_s = limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="foretune-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Any]] = []
        try:
            for rank in range(ranks):
                self._start(rank, ranks)
            self._collect_answers(range(ranks), START_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._connections)

    def call(self, method: str, *arguments: Any, ranks: Sequence[int] = ()) -> list[Any]:
        """Return what a method of `plan_parallel.rank_work.Rank` returns, by rank.

        Args:
            method: Name of the method.
            arguments: Arguments of the method.
            ranks: Ranks that run it; none means all.

        Raises:
            MeasurementError: one of them failed, died, or did not answer in time; none is left.
        """
        called = list(ranks) or list(range(len(self)))
        try:
            for rank in called:
                self._connections[rank].send((method, arguments))
            return self._collect_answers(called, self._limit_s)
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            raise MeasurementError("a rank died: see its message above") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes.clear()
        self._connections.clear()
        self._folder.cleanup()

    def _start(self, rank: int, ranks: int) -> None:
        parent_end, child_end = Pipe()
        self._connections.append(parent_end)
        command = [sys.executable, "-P", "-m", MODULE, str(child_end.fileno())]
        meeting = Path(self._folder.name) / "meeting"
        command += [str(rank), str(ranks), str(meeting), str(self._limit_s), str(os.getpid())]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # a rank prints to stderr
                pass_fds=[child_end.fileno()],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": _module_path()},
            )
        except OSError as e:
            raise MeasurementError(f"a rank's process cannot be started: {e}") from e
        finally:
            child_end.close()
        self._processes.append(process)

    def _collect_answers(self, ranks: Sequence[int], limit_s: float) -> list[Any]:
        """Return one answer of every rank; the first that fails is why all end."""
        deadline = time.monotonic() + limit_s
        waiting = {self._connections[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MeasurementError(f"{len(waiting)} ranks do not answer after {limit_s:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                answers[rank] = self._receive(connection, rank)
        return [answers[rank] for rank in ranks]

    def _receive(self, connection: "Connection[Any, Any]", rank: int) -> Any:
        try:
            answer = connection.recv()
        except (EOFError, ConnectionResetError):
            raise MeasurementError(
                f"rank {rank} died: {exit_cause(self._processes[rank])}"
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _module_path() -> str:
    """Return a ``PYTHONPATH`` on which a rank finds this package, too."""
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    return os.pathsep.join(filter(None, paths))
