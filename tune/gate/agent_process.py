"""A process of an environment that answers requests: the other end of `agent.server`."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import foretune.collect
from foretune.collect.message_channel import Channel
from foretune.collect.printed_output import PrintedOutput
from foretune.collect.worker_process import START_TIMEOUT_S, exit_cause
from foretune.errors import MeasurementError, UsageError
from foretune.tune.gate.environment import Environment

PACKAGE_FOLDER = Path(foretune.collect.__file__).absolute().parents[1]
START_FILE = Path(__file__).absolute().parent / "agent" / "start.py"


class RequestFailed(Exception):
    """The agent says that a benchmark failed, or the process ended; the message is the reason."""


class AgentProcess:
    """A fresh process of an environment.

    Answers are JSON: the gate runs nothing that a process sends which runs a user's code.
    """

    def __init__(self, environment: Environment, hash_seed: int, printed: PrintedOutput) -> None:
        if os.name != "posix":
            raise MeasurementError("a gate needs Linux or macOS: its processes inherit a socket")
        self._environment = environment
        here, there = socket.socketpair()
        mark = secrets.token_bytes(16)
        output = printed.file() if sys.__stderr__ else subprocess.DEVNULL
        command = [environment.python, START_FILE, PACKAGE_FOLDER, str(there.fileno())]
        try:
            with there:
                self._process = subprocess.Popen(
                    command,
                    cwd=environment.folder,
                    env=environment.variables(hash_seed),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                )
        except OSError as e:
            here.close()
            raise UsageError(f"{environment.python} cannot be started: {e}") from e
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(mark)
        self._channel = Channel(here, mark, dumps=_dumps, loads=json.loads)
        self._number = 0
        self.is_alive = True

    def ask(self, do: str, *, limit_s: float, **content: Any) -> dict[str, Any]:
        """Return the answer to a request; see `receive`."""
        self.send(do, **content)
        return self.receive(limit_s=limit_s)

    def send(self, do: str, **content: Any) -> None:
        """Send a request, whose answer `receive` returns; raise RequestFailed if it cannot."""
        self._number += 1
        try:
            self._channel.send(self._number, {"do": do, **content}, START_TIMEOUT_S)
        except (TimeoutError, OSError):
            raise RequestFailed(self._end_with_cause()) from None

    def receive(self, *, limit_s: float) -> dict[str, Any]:
        """Return the answer to the last request.

        Raises RequestFailed if the benchmark failed; then it is closed. After a time-out, or if the
        process died, `is_alive` is False.
        """
        try:
            number = 0
            while number != self._number:
                number, answer = self._channel.receive(limit_s)
        except TimeoutError:
            self.end()
            raise RequestFailed(f"no answer within {limit_s:g} s") from None
        except (EOFError, OSError):
            raise RequestFailed(self._end_with_cause()) from None
        except ValueError as e:
            self.end()
            raise RequestFailed(f"its answer cannot be read: {e}") from None
        if not isinstance(answer, dict):
            self.end()
            raise RequestFailed("its answer is no mapping")
        if answer.get("failure"):
            raise RequestFailed(str(answer["failure"]))
        return answer

    def _end_with_cause(self) -> str:
        cause = exit_cause(self._process)
        self.end()
        return f"the process ended: {cause}"

    def end(self) -> None:
        """Close the connection, and kill the process and its children."""
        self.is_alive = False
        self._channel.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _dumps(content: Any) -> bytes:
    return json.dumps(content).encode()
