"""The SQLite file of a store: its identity, write-ahead log and transactions."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import StoreError
from foretune.files import open_private

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

PATH_ADVICE = "set FORETUNE_STORE to a file you can write"
_SIDE_FILES = ("-wal", "-shm")
"""Suffixes of the write-ahead log and of its shared index."""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs"}
)
"""Shared between machines. A write-ahead log needs memory shared by its users, so one machine."""
_Identity = tuple[int, int]
"""Device and inode."""


class OpenFile:
    """A database file that has been opened, and its write-ahead log at that time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identity(path)
        self._side_files = {suffix: _identity(_beside(path, suffix)) for suffix in _SIDE_FILES}

    @property
    def is_current(self) -> bool:
        """Whether the path still leads to this file; False after it was deleted or emptied."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_size > 0 and (found.st_dev, found.st_ino) == self._identity

    def detach(self) -> None:
        """Unlink this file if it was emptied: closing it would write the log into it."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == 0 and _identity(self._path) == self._identity:
                self._path.unlink()

    def remove_log(self) -> None:
        """Delete the log after closing; SQLite would apply it to the file that came instead."""
        for suffix, identity in self._side_files.items():
            beside = _beside(self._path, suffix)
            with contextlib.suppress(OSError):
                if identity is not None and _identity(beside) == identity:
                    beside.unlink()


def remove_stale_index(path: Path) -> None:
    """Delete the index of a log whose database was deleted while others had it open.

    Call it in an exclusive transaction, so that no other process makes the tables meanwhile.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            _beside(path, "-shm").unlink()


def make_file(path: Path) -> None:
    """Make an empty file and its folder, for their owner alone; SQLite's other files follow it.

    Raises:
        StoreError: it cannot be made.
    """
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not path.exists():
            os.close(open_private(path))
    except OSError as e:
        raise StoreError(f"cannot write {path} ({e.strerror or e}): {PATH_ADVICE}") from e


def prepare_engine(engine: "Engine", patience_s: float) -> None:
    """Begin transactions explicitly: the driver begins those that write too late, or never."""
    from sqlalchemy import event

    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * patience_s)}")
        # In a write-ahead log, a crash of the process loses nothing; a power cut, the last rows.
        connection.execute("PRAGMA synchronous = NORMAL")

    def begin_transaction(connection: "Connection") -> None:
        # A reader that turns writer while another writes fails at once, whatever the timeout.
        kind = connection.get_execution_options().get("begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {kind}")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begin_transaction)


def enable_write_ahead_log(engine: "Engine", path: Path, patience_s: float) -> None:
    """Let readers read while one process writes; the file remembers it.

    Changing the journal fails at once while others read, so it is tried for ``patience_s``.
    """
    if is_network_file_system(path):
        return

    def enable() -> None:
        with engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA journal_mode = WAL")

    _retry_until_unlocked(enable, patience_s)


def is_network_file_system(path: Path) -> bool:
    """Return whether other machines may write to the file system of ``path``, too."""
    import psutil

    mounts = {m.mountpoint: m.fstype for m in psutil.disk_partitions(all=True)}
    home = next((str(p) for p in path.parents if str(p) in mounts), "")
    return mounts.get(home, "") in _NETWORK_FILE_SYSTEMS


def _retry_until_unlocked(attempt: Callable[[], None], patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while True:
        try:
            attempt()
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _identity(path: Path) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
