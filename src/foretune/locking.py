"""A lock on a file: who holds it is the only one to write."""

import os
from pathlib import Path
from typing import IO

from foretune.errors import OutputError


class Lock:
    """Held from its making to `release`; a process that dies lets go of it.

    Args:
        path: of what is locked; a hidden file beside it is made, and removed at the end.

    Raises:
        OutputError: another process holds it, or the directory cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(f".{path.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                self._handle = self._file.open("w")
                _acquire(self._handle, path)
                if self._is_current():  # else whoever held it has just removed it
                    return
                self._handle.close()
        except OSError as e:
            raise OutputError(f"cannot write to {path.parent}: {e.strerror or e}") from e

    def release(self) -> None:
        """Let go; do nothing the second time."""
        if not self._handle.closed:
            if self._is_current():
                self._file.unlink(missing_ok=True)
            self._handle.close()

    def _is_current(self) -> bool:
        """Whether the file that is locked is the one that others would find."""
        try:
            return os.path.samestat(os.fstat(self._handle.fileno()), self._file.stat())
        except OSError:
            return False


def _acquire(file: IO[str], path: Path) -> None:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows: two writers of one file are the user's to avoid
        pass
    except OSError as e:
        file.close()
        raise OutputError(f"{path} is in use by another process: wait for it, or kill it") from e
