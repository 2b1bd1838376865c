"""Numbered messages over a connection that other code may disturb.

A kernel may fork or write to any descriptor. So each message carries a secret mark, its length and
its checksum, and the receiver skips all other bytes.
"""

import math
import pickle
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

_HEADER = struct.Struct(">QQI")
_READ_BYTES = 1 << 16


class Channel:
    """One end of a connection; ``mark``, the same secret bytes at both, begins every message.

    ``dumps`` and ``loads`` convert contents to and from bytes.
    """

    def __init__(
        self,
        sock: socket.socket,
        mark: bytes,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        loads: Callable[[bytes], Any] = pickle.loads,
    ) -> None:
        self._socket = sock
        self._dumps = dumps
        self._loads = loads
        self._mark = mark
        self._buffer = bytearray()
        self._searched = 0  # where the search for the next mark goes on

    def send(self, number: int, content: Any, limit_s: float | None = None) -> None:
        """Send a message.

        Raises TimeoutError, OSError if the connection is closed, or the error of the conversion.
        """
        payload = self._dumps(content)
        header = _HEADER.pack(number, len(payload), zlib.crc32(payload))
        self._socket.settimeout(limit_s)
        self._socket.sendall(self._mark + header)
        self._socket.sendall(payload)  # it may be large: it is not copied

    def receive(self, limit_s: float = math.inf) -> tuple[int, Any]:
        """Return the next message: its number and content.

        Raises TimeoutError, EOFError if the connection is closed, or the error of the conversion.
        """
        deadline = time.monotonic() + limit_s
        while (message := self._next()) is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(None if remaining_s == math.inf else remaining_s)
            read = self._socket.recv(_READ_BYTES)
            if not read:
                raise EOFError
            self._buffer += read
        number, payload = message
        return number, self._loads(payload)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _next(self) -> tuple[int, bytes] | None:
        """Return the first complete message in the buffer; drop the bytes before it."""
        start = len(self._mark) + _HEADER.size
        while True:
            mark_at = self._buffer.find(self._mark)
            if mark_at < 0:  # the buffer may end with part of a mark
                del self._buffer[: max(0, len(self._buffer) - len(self._mark) + 1)]
                return None
            del self._buffer[:mark_at]
            if len(self._buffer) < start:
                return None
            number, length, checksum = _HEADER.unpack_from(self._buffer, len(self._mark))
            end = start + length
            if len(self._buffer) < end:
                if self._buffer.find(self._mark, max(start, self._searched)) < 0:
                    self._searched = len(self._buffer) - len(self._mark) + 1
                    return None  # the rest has not arrived yet
            elif zlib.crc32(payload := bytes(memoryview(self._buffer)[start:end])) == checksum:
                del self._buffer[:end]
                self._searched = 0
                return number, payload
            del self._buffer[: len(self._mark)]  # other bytes were written into this message
            self._searched = 0
