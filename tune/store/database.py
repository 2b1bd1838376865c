"""The store's database connection, which stays open between transactions, and its SQLite file."""

import contextlib
import math
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from foretune.errors import ForetuneError, StoreError
from foretune.redaction import redact
from foretune.support.files import open_private
from foretune.tune.store.sql import StoreTransaction

PATH_ADVICE = "set FORETUNE_STORE to a file you can write"
DAMAGE = "{name} is damaged ({reason}): move it away; then a new one is created"
"""The meaning of most reasons, and of a row that holds another type than was written."""
MESSAGES = {
    ("malformed",): DAMAGE,
    ("locked", "busy"): f"{{name}} is locked by another process: wait for it, or {PATH_ADVICE}",
    ("not a database",): "{name} is not a store ({reason}): name another file, or move it away; "
    "then a new one is created",
    ("readonly", "unable to open", "disk"): f"cannot write {{name}} ({{reason}}): {PATH_ADVICE}",
}
"""Parts of SQLite's reason -> its meaning for the user; other reasons mean `DAMAGE`."""
UNREACHABLE = "{name} cannot be used ({reason}): see whether it runs and accepts connections"
"""The meaning of any reason of PostgreSQL."""
_POSTGRES = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")
_SIDE_FILES = ("-wal", "-shm")
"""Suffixes of the write-ahead log and of its shared index."""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs"}
)
"""Shared between machines; a write-ahead log only works for processes that share memory."""
_DATABASES: "weakref.WeakSet[Database]" = weakref.WeakSet()
"""All databases of this process, which a fork concerns."""
_INHERITED: list[sqlite3.Connection] = []
"""Connections of a parent process. They stay open: closing them would disturb the parent's."""


class OpenFile:
    """A database file that has been opened, and its write-ahead log at that time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identity(path)
        self._side_files = {suffix: _identity(_beside(path, suffix)) for suffix in _SIDE_FILES}

    @property
    def is_current(self) -> bool:
        """Whether the path still leads to this file; False after it was deleted."""
        return self._identity is not None and _identity(self._path) == self._identity

    def remove_log(self) -> None:
        """Delete the log after closing; SQLite would apply it to a file that replaced this one."""
        for suffix, identity in self._side_files.items():
            beside = _beside(self._path, suffix)
            with contextlib.suppress(OSError):
                if identity is not None and _identity(beside) == identity:
                    beside.unlink()


def _remove_stale_index(path: Path) -> None:
    """Delete the index of a log whose database was deleted while others had it open.

    In an exclusive transaction, no other process creates the tables meanwhile.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            _beside(path, "-shm").unlink()


def _make_file(path: Path) -> None:
    """Create an empty file and its folder for their owner; SQLite's other files inherit this."""
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not path.exists():
            os.close(open_private(path))
    except OSError as e:
        raise StoreError(f"cannot write {path} ({e.strerror or e}): {PATH_ADVICE}") from e


def is_network_file_system(path: Path) -> bool:
    """Return whether other machines may also write to the file system of ``path``."""
    import psutil

    mounts = {m.mountpoint: m.fstype for m in psutil.disk_partitions(all=True)}
    home = next((str(p) for p in path.parents if str(p) in mounts), "")
    return mounts.get(home, "") in _NETWORK_FILE_SYSTEMS


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


class Database:
    """Transactions on a database, one at a time.

    The connection to an SQLite file stays open between transactions. It is closed before a fork,
    and when the file at the path is no longer the one that was opened. PostgreSQL is connected for
    each transaction, because servers limit connections.

    Without ``create``, a missing folder, file or table is an error.
    """

    def __init__(
        self, location: str | os.PathLike[str], patience_s: float, create: bool = True
    ) -> None:
        given = os.fspath(location)
        text = re.sub(r"^sqlite(\+\w+)?:///", "", given)
        if text != given and "?" in text:
            raise StoreError(f"{given}: a store's address has no options: leave out what follows ?")
        self._url = text if "://" in text else None
        self._path = Path("" if self._url else text).expanduser().absolute()
        self._patience_s = patience_s
        self._may_create = create
        self._connection: sqlite3.Connection | None = None
        self._file: OpenFile | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._has_tables = False
        self._lock = threading.RLock()
        _DATABASES.add(self)

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        return str(self._path) if self._url is None else redact(self._url)

    @property
    def _wait_s(self) -> int:
        """Whole seconds to wait for a connection; PostgreSQL waits for at least two."""
        return max(2, math.ceil(self._patience_s))

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator[StoreTransaction]:
        """Return the tables in a transaction, which is written completely or not at all.

        Raises StoreError if it cannot be opened, read or written, or is locked for too long.
        """
        # PostgreSQL has a connection per transaction: its threads need not wait for each other.
        with self._translate_errors(), self._lock if self._url is None else nullcontext():
            if self._file is not None and not self._file.is_current:
                file = self._file
                self.close()
                file.remove_log()
            if not self._has_tables:
                self._open()
            # A reader that turns writer while another writes fails at once, whatever the timeout.
            with self._begin("IMMEDIATE" if write else "DEFERRED") as table:
                yield table

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        with self._lock:
            self._connection = None
            self._file = None
            self._has_tables = False
            if self._finalizer is not None:
                self._finalizer()

    def close_before_fork(self) -> None:
        """Close the connection unless it is in use: SQLite confuses the locks of two processes."""
        if self._lock.acquire(blocking=False):
            if self._connection is not None and not self._connection.in_transaction:
                self.close()
            self._lock.release()

    def renew_after_fork(self) -> None:
        """Forget, in a child process, what other threads of the parent were using."""
        self._lock = threading.RLock()
        if self._connection is not None and self._finalizer is not None:
            _INHERITED.append(self._connection)
            self._finalizer.detach()
        self._connection = None
        self._file = None
        self._has_tables = False

    @contextmanager
    def _begin(self, kind: str) -> Iterator[StoreTransaction]:
        if self._url is not None:
            import psycopg

            url = _POSTGRES.sub("postgresql://", self._url)
            with psycopg.connect(url, **_time_limits(url, self._wait_s)) as server:
                yield StoreTransaction(server.cursor(), server=True)
            return
        assert self._connection is not None
        connection = self._connection
        try:
            connection.execute(f"BEGIN {kind}")
            yield StoreTransaction(connection.cursor())
            if connection is self._connection:  # else a child process of the transaction goes on
                # Reading needs no commit, which fails after a damaged page.
                connection.execute("ROLLBACK" if kind == "DEFERRED" else "COMMIT")
        except BaseException:
            if connection is self._connection and connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _open(self) -> None:
        try:
            if self._url is None:
                self._open_file()
            elif self._url == "sqlite://":
                raise StoreError("a database in memory keeps nothing: name a file")
            elif not _POSTGRES.match(self._url):
                raise StoreError(f"{self.name}: a store is an SQLite file or a PostgreSQL URL")
            with self._begin("DEFERRED") as table:
                found = table.version()
            if found is None:
                self._create()
        except BaseException:
            self.close()
            raise
        self._has_tables = True
        self._file = None if self._connection is None else OpenFile(self._path)

    def _open_file(self) -> None:
        path = self._path
        if path.suffix == ".json":
            raise StoreError(f"{path} is not a database: merge it into a store")
        if self._may_create:
            _make_file(path)
        elif path.is_dir():
            raise StoreError(f"{path} is not a store but a folder: name a file in it")
        elif not path.is_file():  # connecting would make an empty one
            raise StoreError(f"{path} does not exist: nothing has been tuned there yet")
        self._connection = sqlite3.connect(
            path, timeout=self._patience_s, isolation_level=None, check_same_thread=False
        )
        self._finalizer = weakref.finalize(self, self._connection.close)
        # A damaged text is one damaged row. By default, it would be an error of the whole query.
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        # In a write-ahead log, a crash of the process loses nothing; a power cut, the last rows.
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def _create(self) -> None:
        """Create the tables in one transaction, unless another process was faster."""
        if not self._may_create:
            raise StoreError(f"{self.name} is not a store: it has no tables of Foretune's")
        if self._url is None:
            with self._begin("EXCLUSIVE"):
                _remove_stale_index(self._path)
            self._enable_write_ahead_log()
        try:
            with self._begin("IMMEDIATE") as table:
                table.create_tables()
        except Exception:  # PostgreSQL lets two processes create a table, and fails the second
            with self._begin("DEFERRED") as table:
                if table.version() is None:
                    raise

    def _enable_write_ahead_log(self) -> None:
        """Let readers read while one process writes; the file keeps this mode.

        Changing the journal fails immediately while others read, so it is retried for a while.
        """
        give_up = time.monotonic() + self._patience_s
        while self._connection is not None and not is_network_file_system(self._path):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except ModuleNotFoundError as e:
            raise StoreError(
                f"the store's database needs {e.name}, which is not installed: pip install it "
                "(PostgreSQL: pip install '.[postgres]', URL postgresql+psycopg://…)"
            ) from e
        except ForetuneError:
            raise
        except Exception as e:
            raise StoreError(self._explain(e)) from e

    def _explain(self, error: Exception) -> str:
        """Return what an error of the database means, in one line."""
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if type(error).__module__.startswith("psycopg"):
            return UNREACHABLE.format(name=self.name, reason=reason)
        if not isinstance(error, sqlite3.Error):
            return DAMAGE.format(name=self.name, reason=f"{type(error).__name__}: {reason}")
        if "no such table" in reason:  # the file was replaced by another database
            self.close()
        for words, meaning in MESSAGES.items():
            if any(word in reason.lower() for word in words):
                return meaning.format(name=self.name, reason=reason)
        return DAMAGE.format(name=self.name, reason=reason)


def _time_limits(url: str, wait_s: int) -> dict[str, Any]:
    """Return libpq's options for a server that is silent, except those that ``url`` has.

    By default, libpq waits as long as the system's TCP does: minutes for a connection, a quarter of
    an hour for an answer if the server's machine is lost in the midst of a transaction.
    """
    limits = {
        "connect_timeout": wait_s,
        # What was sent must have arrived by then.
        "tcp_user_timeout": 1000 * wait_s,
        # While there is nothing to send, the server is asked whether it is there.
        "keepalives_idle": wait_s,
        "keepalives_interval": wait_s,
    }
    return {name: limit for name, limit in limits.items() if f"{name}=" not in url}


def _before_fork() -> None:
    for database in list(_DATABASES):
        database.close_before_fork()


def _after_fork_in_child() -> None:
    for database in list(_DATABASES):
        database.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
