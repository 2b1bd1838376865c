"""One server: starts it, waits until it answers, and stops it whatever happens.

The server runs under a guard (`foretune.plan.prove.guard`), which ends it when this process lets
go of a pipe, or dies. With a host, the guard runs there, and the pipe is the connection of ``ssh``.
"""

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import psutil

from foretune.errors import MeasurementError, UsageError
from foretune.plan.prove import guard
from foretune.plan.prove.failures import Failure, explain_exit

HOST = "127.0.0.1"
"""Where servers listen: no other machine reaches them."""
HEALTH_PATHS = ("/health", "/v1/models")
"""Asked in this order; a server without the first answers the second when its model is loaded."""
POLL_S = 0.1
REQUEST_TIMEOUT_S = 5.0
"""Seconds that one question about health may take."""
GRACE_S = 10.0
"""Seconds that a server has to end by itself."""
PORT_FREE_S = 5.0
"""Seconds within which the port of an ended server must be free."""
HTTP_OK = 200
HTTP_NOT_FOUND = 404
GIB = 2**30

_opener = build_opener(ProxyHandler({}))
"""Asks servers of this machine directly, never through a proxy."""


class ServerFailed(MeasurementError):
    """A server did not start, or ended while it should have served; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True)
class ServerCommand:
    """What starts a server.

    Attributes:
        words: the command, split; words with ``=`` before the program set its environment.
        port: where it listens, on this machine or on ``host``.
        folder: working directory, which has the files that the command reads; None for the current.
        host: name of another machine that ``ssh`` reaches without a question; empty for this one.
    """

    words: Sequence[str]
    port: int
    folder: Path | None = None
    host: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the command sets before its program."""
        pairs = [word.partition("=") for word in self.words[: self._program]]
        return {name: value for name, _, value in pairs}

    @property
    def program(self) -> list[str]:
        """The program and its arguments."""
        return list(self.words[self._program :])

    @property
    def _program(self) -> int:
        position = next((i for i, word in enumerate(self.words) if "=" not in word), None)
        if position is None:
            raise UsageError("the command has no program: give one after its variables")
        return position

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.program)])


@dataclass
class ServerProcess:
    """A server that this process started; a context manager that stops it.

    Attributes:
        command: what was started.
        log: file that gets all its output.
        started_s: seconds until it was healthy; NaN before.
    """

    command: ServerCommand
    log: Path
    grace_s: float = GRACE_S
    started_s: float = field(default=float("nan"), init=False)
    _guard: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{HOST}:{self.command.port}"

    def start(self) -> None:
        """Start the command; raises UsageError if its port is in use."""
        if not is_port_free(self.command.port):
            raise UsageError(
                f"port {self.command.port} is in use: stop what listens there, or prove that "
                f"server with --url http://{HOST}:{self.command.port}"
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            output.write(f"$ {self.command}\n".encode())
            output.flush()
            try:
                self._guard = subprocess.Popen(
                    _guarded(self.command, self.grace_s),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.command.folder,
                    start_new_session=True,  # Ctrl-C is for this process, which then lets go
                )
            except OSError as error:
                raise UsageError(f"cannot start a server: {error.strerror or error}") from error

    def wait_until_healthy(self, limit_s: float) -> None:
        """Wait until the server answers; raises ServerFailed if it ends, or takes too long."""
        begun = time.monotonic()
        while time.monotonic() - begun < limit_s:
            self.check_alive()
            if is_healthy(self.url):
                self.started_s = time.monotonic() - begun
                return
            time.sleep(POLL_S)
        raise ServerFailed(Failure(f"it did not answer within {limit_s:.0f} s: see {self.log}"))

    def check_alive(self) -> None:
        """Raise ServerFailed if the server has ended."""
        status = None if self._guard is None else self._guard.poll()
        if status is not None:
            raise ServerFailed(explain_exit(self.log, status))

    def check_serving(self) -> None:
        """Raise ServerFailed if the server is ending: it does not answer, and ends soon."""
        deadline = time.monotonic() + self.grace_s
        while not is_healthy(self.url) and time.monotonic() < deadline:
            self.check_alive()
            time.sleep(POLL_S)

    def memory_gib(self) -> float:
        """Return the memory of all its processes now; shared pages count once. NaN if unknown."""
        if self._guard is None or self.command.host:
            return float("nan")
        total = 0.0
        with suppress(psutil.Error):
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                with suppress(psutil.Error):
                    total += _proportional_bytes(process)
        return total / GIB if total else float("nan")

    def stop(self) -> None:
        """End the server and all of its processes; the port is free afterwards."""
        running = self._guard
        if running is None:
            return
        if running.stdin is not None:
            running.stdin.close()  # the guard sees the end of the pipe
        try:
            running.wait(timeout=2.0 * self.grace_s + PORT_FREE_S)
        except subprocess.TimeoutExpired:
            # The guard itself hangs: its server dies with it.
            running.kill()
            running.wait()
        self._guard = None

        deadline = time.monotonic() + PORT_FREE_S
        while not is_port_free(self.command.port) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _guarded(command: ServerCommand, grace_s: float) -> list[str]:
    """Return the command that runs a guard, here or on the command's host."""
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    program = ["env", *variables, *command.program] if variables else command.program
    path = Path(guard.__file__)
    if not command.host:
        return [sys.executable, "-I", str(path), str(grace_s), *program]

    # The connection forwards the port, and its end is the end of the guard's standard input.
    source = path.read_text(encoding="utf-8")
    remote = shlex.join(["python3", "-c", source, str(grace_s), *program])
    forward = f"{command.port}:{HOST}:{command.port}"
    options = ["-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-L", forward]
    return ["ssh", *options, command.host, remote]


def _proportional_bytes(process: psutil.Process) -> float:
    """Return a process's memory with its share of shared pages; all resident if unknown."""
    try:
        return float(process.memory_full_info().pss)
    except (AttributeError, psutil.AccessDenied):
        return float(process.memory_info().rss)


def is_healthy(url: str) -> bool:
    """Return whether a server says that it can serve."""
    for path in HEALTH_PATHS:
        status = _status(url + path)
        if status == HTTP_OK:
            return True
        if status != HTTP_NOT_FOUND:
            return False
    return False


def served_model(url: str) -> str:
    """Return the name under which a server serves its first model; empty if it does not tell."""
    with suppress(ValueError, LookupError, TypeError):
        return str(json.loads(read_text(f"{url}/v1/models"))["data"][0]["id"])
    return ""


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def read_text(url: str) -> str:
    """Return the text at an address; empty if there is none."""
    with suppress(OSError, ValueError), _opener.open(url, timeout=REQUEST_TIMEOUT_S) as answer:
        return str(answer.read().decode("utf-8", errors="replace"))
    return ""


def _status(url: str) -> int:
    """Return the HTTP status of an address; 0 if nothing answers."""
    try:
        with _opener.open(url, timeout=REQUEST_TIMEOUT_S) as answer:
            return int(answer.status)
    except URLError as error:
        return int(getattr(error, "code", 0))
    except (OSError, ValueError):
        return 0
