"""The child process of a `WorkerProcess`: answers its parent until the connection closes.

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
from foretune.collect.child import become_worker
from foretune.errors import ForetuneError, MeasurementError


def serve(address: str, key: bytes, parent: int) -> None:
    """Answer (method of the served object, arguments) with its result or the error it raised.

    A question whose imports are done is answered with None first. Each answer has its question's
    number, and says whether this process can go on; if not, its parent ends it.
    """
    become_worker(parent)
    with connect(address) as sock, contextlib.suppress(EOFError, OSError):
        channel = Channel(sock, key)
        if hasattr(os, "register_at_fork"):  # who is forked by a kernel must not answer
            os.register_at_fork(after_in_child=sock.close)
        channel.send(0, None)
        path, factory = channel.receive()[1]
        sys.path += [p for p in path if p not in sys.path]  # the kernel's module may lie anywhere
        served = pickle.loads(factory)()
        while True:
            number, request = channel.receive()
            import_error: Any = None
            try:
                method, arguments = pickle.loads(request)
            except (ImportError, AttributeError) as e:
                import_error = MeasurementError(f"the kernel cannot be imported elsewhere: {e}")
            channel.send(number, None)  # imports are over: from here on the time is the kernel's
            answer = import_error or _call(served, method, arguments)
            channel.send(number, (answer, not getattr(served, "device_lost", False)))


def connect(address: str) -> socket.socket:
    """Return a connection to ``PATH`` or ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    if os.name == "posix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
        return sock
    return socket.create_connection((host, int(port)))


def _call(served: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(served, method)(*arguments)
    except ForetuneError as e:
        return e
    except Exception as e:
        return MeasurementError(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer.read(), int(sys.argv[2]))
