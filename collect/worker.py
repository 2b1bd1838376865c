"""The child process of a `Service`: answers its parent until the connection closes.

Run as ``python -m foretune.collect.worker ADDRESS PARENT`` with the connection's key on standard
input; PARENT is the process id of who started it, which may be gone before this begins.
"""

import contextlib
import os
import pickle
import socket
import sys
from typing import Any

from foretune.collect.channel import Channel
from foretune.collect.child import begin
from foretune.errors import ForetuneError, MeasurementError


def serve(address: str, key: bytes, parent: int) -> None:
    """Answer (method of the served object, arguments) with its result or the error it raised.

    A question whose imports are done is answered with None first. Each answer has its question's
    number, and says whether this process can go on; if not, its parent ends it.
    """
    begin(parent)
    with connected(address) as sock, contextlib.suppress(EOFError, OSError):
        channel = Channel(sock, key)
        if hasattr(os, "register_at_fork"):  # who is forked by a kernel must not answer
            os.register_at_fork(after_in_child=sock.close)
        channel.send(0, None)
        path, make = channel.receive()[1]
        sys.path += [p for p in path if p not in sys.path]  # the kernel's module may lie anywhere
        served = pickle.loads(make)()
        while True:
            number, question = channel.receive()
            refused: Any = None
            try:
                method, arguments = pickle.loads(question)
            except (ImportError, AttributeError) as e:
                refused = MeasurementError(f"the kernel cannot be imported elsewhere: {e}")
            channel.send(number, None)  # imports are over: from here on the time is the kernel's
            answer = refused or _answer(served, method, arguments)
            channel.send(number, (answer, not getattr(served, "lost", False)))


def connected(address: str) -> socket.socket:
    """Return a connection to ``PATH`` or ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    if os.name == "posix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
        return sock
    return socket.create_connection((host, int(port)))


def _answer(served: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(served, method)(*arguments)
    except ForetuneError as e:
        return e
    except Exception as e:
        return MeasurementError(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer.read(), int(sys.argv[2]))
