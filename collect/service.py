"""A service: an object in a process of its own, which may hang, die, or be spoilt by what runs."""

import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from foretune.collect.channel import Channel
from foretune.collect.child import exit_cause, kill
from foretune.errors import MeasurementError

_START_TIMEOUT_S, _HELLO_TIMEOUT_S = 60.0, 5.0


class WorkerProcess:
    """Starts the process when it is asked first, and another one after it was closed.

    Args:
        factory: makes the object there. A function of the running script is sent along.
        pickling_advice: what to say, and what to do, where something cannot be sent.

    Attributes:
        calls_made: how many questions the present process was asked.
    """

    def __init__(self, factory: Callable[[], Any], pickling_advice: tuple[str, str]) -> None:
        self._factory = factory
        self._pickling_advice = pickling_advice
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._last_number = 0
        self.calls_made = 0

    def close(self) -> None:
        """Kill the process, and what it started."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            kill(self._process)
            self._process = None
        self.calls_made = 0

    def call(self, limit_s: float, method: str, *arguments: Any) -> Any:
        """Return what a method of the object returns.

        Raises:
            TimeoutError: it took longer than ``limit_s`` seconds, not counting the time to start
                the process and to import packages; the process was killed.
            ChildProcessError: the process died, or what it said cannot be read.
            ForetuneError: what the method raised; or it, or the object, cannot be sent.
        """
        request = self._pickled((method, arguments))
        channel = self._channel or self._start()
        self._last_number += 1
        self.calls_made += 1
        try:
            importing_s = max(limit_s, _START_TIMEOUT_S)
            channel.send(self._last_number, request, importing_s)
            self._receive_answer(channel, importing_s)
            answer, usable = self._receive_answer(channel, limit_s)
        except TimeoutError:
            self.close()
            raise
        except (EOFError, OSError):
            assert self._process is not None
            cause = exit_cause(self._process)
            self.close()
            raise ChildProcessError(f"the process died: {cause}") from None
        except Exception as e:
            self.close()
            raise ChildProcessError(f"its answer cannot be read: {type(e).__name__}: {e}") from e
        except BaseException:  # Ctrl-C: the child is in the middle of something
            self.close()
            raise
        if not usable:  # a launch took the device's context along: the next needs a new process
            self.close()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _receive_answer(self, channel: Channel, limit_s: float) -> Any:
        """Return what comes next about the last question; answers to others are dropped."""
        deadline = time.monotonic() + limit_s
        while True:
            number, answer = channel.receive(max(0.0, deadline - time.monotonic()))
            if number == self._last_number:
                return answer

    def _start(self) -> Channel:
        try:
            self._channel = self._connect()
            self._channel.send(0, (sys.path, self._pickled(self._factory)), _START_TIMEOUT_S)
        except OSError as e:
            self.close()
            raise MeasurementError(f"the measuring process cannot be started: {e}") from e
        return self._channel

    def _pickled(self, content: Any) -> bytes:
        try:
            return cloudpickle.dumps(content)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            what, instead = self._pickling_advice
            raise MeasurementError(
                f"{what} cannot be sent to another process: {e}; {instead}"
            ) from e

    def _connect(self) -> Channel:
        with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
            key = secrets.token_bytes(16)
            with _open_listener(Path(folder)) as (listener, address):
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "foretune.collect.worker",
                        address,
                        str(os.getpid()),
                    ],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
                assert self._process.stdin is not None
                self._process.stdin.write(key)
                self._process.stdin.close()
                return self._accept(listener, key)

    def _accept(self, listener: socket.socket, key: bytes) -> Channel:
        assert self._process is not None
        listener.settimeout(0.5)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                channel = Channel(listener.accept()[0], key)
                channel.receive(_HELLO_TIMEOUT_S)
            except (TimeoutError, EOFError):  # nobody yet, or somebody else
                continue
            return channel
        code = self._process.poll()
        self.close()
        what = f"ended with exit code {code}" if code is not None else "does not answer"
        raise MeasurementError(f"the measuring process {what}: see its message above")


@contextmanager
def _open_listener(folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """Listen in a folder, or where there are no such sockets on this machine alone."""
    if os.name == "posix":
        listener, address = socket.socket(socket.AF_UNIX), str(folder / "socket")
        listener.bind(address)
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with listener:
        listener.listen()
        yield listener, address
