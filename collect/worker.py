"""The child process of an `IsolatedRunner`: answers its parent until the connection closes.

Run as ``python -m foretune.collect.worker ADDRESS PARENT`` with the connection's key on standard
input; PARENT is the process id of who started it, which may be gone before this begins.
"""

import contextlib
import sys
from multiprocessing.connection import Client
from typing import Any

from foretune.collect.child import begin
from foretune.collect.workbench import Workbench
from foretune.errors import ForetuneError, MeasurementError


def serve(address: str, key: bytes, parent: int) -> None:
    """Answer (method of `Workbench`, arguments) with its result or the error it raised.

    Each answer comes with whether this process can go on; if not, its parent ends it.
    """
    begin(parent)
    with Client(address, authkey=key) as connection, contextlib.suppress(EOFError, OSError):
        path, device, timing, power = connection.recv()
        sys.path += [p for p in path if p not in sys.path]  # the kernel's module may lie anywhere
        workbench = Workbench(device, timing, power)
        while True:
            try:
                method, arguments = connection.recv()
            except (ImportError, AttributeError) as e:
                answer = MeasurementError(f"the kernel cannot be imported elsewhere: {e}")
                connection.send((answer, True))
            else:
                answer = _answer(workbench, method, arguments)
                connection.send((answer, not workbench.lost))


def _answer(workbench: Workbench, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(workbench, method)(*arguments)
    except ForetuneError as e:
        return e
    except Exception as e:
        return MeasurementError(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer.read(), int(sys.argv[2]))
