"""Numbered messages between two processes, over a socket into which others may write as well.

A kernel that forks leaves a second process that answers; one that writes where it should not may
hit the socket. Each message therefore begins with a secret mark and says its number, its length and
its checksum. What is no message is skipped.
"""

import hashlib
import pickle
import socket
import struct
import time
import zlib
from typing import Any

_HEADER = struct.Struct(">QQI")
_READ_BYTES = 1 << 16
MAX_BYTES = 1 << 32
"""Of a message; a longer one is none."""


class Channel:
    """One end of a connection.

    Args:
        sock: connected; it is closed with the channel.
        key: the secret of both ends.
    """

    def __init__(self, sock: socket.socket, key: bytes) -> None:
        self._socket = sock
        self._mark = hashlib.sha256(key).digest()[:16]
        self._buffer = bytearray()

    def send(self, number: int, content: Any, limit_s: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: the other end does not take it.
            OSError: the connection is gone.
            Exception: what pickle raises, if it cannot be sent.
        """
        payload = pickle.dumps(content)
        header = _HEADER.pack(number, len(payload), zlib.crc32(payload))
        self._socket.settimeout(limit_s)
        self._socket.sendall(self._mark + header + payload)

    def receive(self, limit_s: float | None = None) -> tuple[int, Any]:
        """Return the number and content of the next message.

        Raises:
            TimeoutError: none came in time, or only a part of one.
            EOFError: the other end is gone.
            Exception: what pickle raises, if its content cannot be read here.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while (message := self._next()) is None:
            remaining_s = None if deadline is None else deadline - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            read = self._socket.recv(_READ_BYTES)
            if not read:
                raise EOFError
            self._buffer += read
        number, payload = message
        return number, pickle.loads(payload)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _next(self) -> tuple[int, bytes] | None:
        """Return the first whole message that was read; drop what comes before it."""
        header_end = len(self._mark) + _HEADER.size
        while True:
            mark_at = self._buffer.find(self._mark)
            if mark_at < 0:  # a mark may have begun at the end
                del self._buffer[: max(0, len(self._buffer) - len(self._mark) + 1)]
                return None
            del self._buffer[:mark_at]
            if len(self._buffer) < header_end:
                return None
            number, length, checksum = _HEADER.unpack_from(self._buffer, len(self._mark))
            if length <= MAX_BYTES:
                if len(self._buffer) < header_end + length:
                    if self._buffer.find(self._mark, header_end) < 0:
                        return None  # the rest is on its way
                elif (
                    zlib.crc32(payload := bytes(self._buffer[header_end : header_end + length]))
                    == checksum
                ):
                    del self._buffer[: header_end + length]
                    return number, payload
            del self._buffer[: len(self._mark)]  # something else got in between
