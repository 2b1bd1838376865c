"""The content of a file that a text names: a program or function may read it."""

import hashlib
import os
from functools import lru_cache

MAX_PATH = 1024
"""Longer texts are no paths."""
_WHOLE_BYTES = 1 << 24
"""Of a file of more than twice this (32 MiB), the first and the last so many bytes count, its size,
and when it was changed: reading all of it takes too long."""


def content_of_file_named(text: str) -> str:
    """Return a mark of the content of the file that a text names; empty if it names none."""
    if not text or len(text) > MAX_PATH or "\0" in text or "\n" in text:
        return ""
    try:
        if not os.path.isfile(text):
            return ""
        status = os.stat(text)
        return f" file {_digest(os.path.abspath(text), status.st_size, status.st_mtime_ns)}"
    except (OSError, ValueError) as e:
        return f" file that cannot be read: {type(e).__name__}"


@lru_cache(maxsize=1024)
def _digest(path: str, size: int, changed_at: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        digest.update(file.read(_WHOLE_BYTES))
        if size > 2 * _WHOLE_BYTES:
            digest.update(str(changed_at).encode())
            file.seek(size - _WHOLE_BYTES)
        digest.update(file.read(_WHOLE_BYTES))
    return digest.hexdigest()[:16]
