"""The child process of an `IsolatedRunner`: answers its parent until the connection closes.

Run as ``python -m foretune.collect.worker ADDRESS`` with the connection's key on standard input.
"""

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Client

from foretune.collect.meters import find_meter
from foretune.collect.workbench import Workbench
from foretune.errors import ForetuneError, MeasurementError


def serve(address: str, key: bytes) -> None:
    """Answer (method of `Workbench`, arguments) with its result or the error it raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # kernels that print must not break --json
    with Client(address, authkey=key) as connection, contextlib.suppress(EOFError, OSError):
        options = connection.recv()
        device = options["device"]
        meter = find_meter(device.kind) if options["power"] else None
        workbench = Workbench(device.name, options["timing"], meter)
        while True:
            method, arguments = connection.recv()
            try:
                answer = getattr(workbench, method)(*arguments)
            except ForetuneError as e:
                answer = e
            except Exception as e:
                answer = MeasurementError(f"{type(e).__name__}: {e}")
            connection.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer.read())
