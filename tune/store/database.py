"""The store's database connection, which stays open between transactions, and its SQLite file."""

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import StoreError
from foretune.files import open_private
from foretune.redaction import redact

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from foretune.tune.store.sql import StoreTransaction

PATH_ADVICE = "set FORETUNE_STORE to a file you can write"
_SIDE_FILES = ("-wal", "-shm")
"""Suffixes of the write-ahead log and of its shared index."""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs"}
)
"""Shared between machines. A write-ahead log needs memory shared by its users, so one machine."""
_Identity = tuple[int, int]
"""Device and inode."""


_IDLE_CONNECTIONS = 2
"""Connections to an SQLite file that stay open; more threads than that open their own."""


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


def _remove_stale_index(path: Path) -> None:
    """Delete the index of a log whose database was deleted while others had it open.

    Call it in an exclusive transaction, so that no other process makes the tables meanwhile.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            _beside(path, "-shm").unlink()


def _make_file(path: Path) -> None:
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


def _prepare_engine(engine: "Engine", patience_s: float) -> None:
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


def _enable_write_ahead_log(engine: "Engine", path: Path, patience_s: float) -> None:
    """Let readers read while one process writes; the file remembers it.

    Changing the journal fails at once while others read, so it is tried for ``patience_s``.
    """
    if is_network_file_system(path):
        return

    give_up = time.monotonic() + patience_s
    while True:
        try:
            with engine.connect() as connection:
                raw: Any = connection.connection.dbapi_connection
                raw.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def is_network_file_system(path: Path) -> bool:
    """Return whether other machines may write to the file system of ``path``, too."""
    import psutil

    mounts = {m.mountpoint: m.fstype for m in psutil.disk_partitions(all=True)}
    home = next((str(p) for p in path.parents if str(p) in mounts), "")
    return mounts.get(home, "") in _NETWORK_FILE_SYSTEMS


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _identity(path: Path) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Database:
    """Transactions on a database.

    Connections to an SQLite file stay open between transactions. They are closed before a fork, and
    when the file at the path is no longer the one that was opened. Other databases are connected
    for each transaction, because servers limit connections.

    Without ``create``, a missing folder, file or table is an error.
    """

    def __init__(
        self, location: str | os.PathLike[str], patience_s: float, create: bool = True
    ) -> None:
        text = os.fspath(location)
        if text.startswith("sqlite:///") and "?" not in text:
            text = text.removeprefix("sqlite:///")
        self._url = text if "://" in text else None
        self._path = None if self._url else Path(text).expanduser().absolute()
        self._lock_timeout_s = patience_s
        self._may_create = create
        self._engine: Engine | None = None
        self._file: OpenFile | None = None
        self._dispose: weakref.finalize[Any, Any] | None = None
        self._open_lock = threading.RLock()
        _DATABASES.add(self)

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        if self._url is None:
            return str(self._path)
        return redact(self._url)

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator["StoreTransaction"]:
        """Return the tables in a transaction, which is written completely or not at all.

        Raises:
            StoreError: the database cannot be opened, read or written, or is locked for too long.
        """
        from foretune.tune.store.sql import StoreTransaction

        begin = "IMMEDIATE" if write else "DEFERRED"
        with (
            self._translate_errors(),
            self._get_engine().connect().execution_options(begin=begin) as connection,
            connection.begin(),
        ):
            yield StoreTransaction(connection)

    def close(self) -> None:
        """Close idle connections; the next transaction opens new ones."""
        with self._open_lock:
            self._engine = None
            if self._dispose is not None:
                self._dispose()

    def renew_after_fork(self) -> None:
        """Forget, in a child process, what other threads of the parent had in use."""
        self._open_lock = threading.RLock()
        if self._engine is not None:
            _INHERITED.append(self._engine)
            self._engine = None
        if self._dispose is not None:
            self._dispose.detach()

    def _get_engine(self) -> "Engine":
        engine = self._engine
        if engine is not None and (self._file is None or self._file.is_current):
            return engine
        with self._open_lock:
            if self._engine is not None and self._file is not None and not self._file.is_current:
                self._file.detach()
                self.close()
                self._file.remove_log()
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _open(self) -> "Engine":
        if self._url in ("sqlite://", ":memory:"):
            raise StoreError("a database in memory forgets everything: name a file")
        if self._path is not None and self._path.suffix == ".json":
            raise StoreError(f"{self._path} is not a database: merge such a file into one")
        engine = self._make_engine()
        self._dispose = weakref.finalize(self, engine.dispose)
        try:
            self._prepare_tables(engine)
        except BaseException:
            self.close()
            raise
        self._file = None if self._path is None else OpenFile(self._path)
        return engine

    def _make_engine(self) -> "Engine":
        from sqlalchemy import URL, create_engine
        from sqlalchemy.pool import NullPool, QueuePool

        url = self._url or URL.create("sqlite", database=str(self._path))
        if self._path is None:
            engine = create_engine(url, poolclass=NullPool)
        else:
            engine = create_engine(
                url, poolclass=QueuePool, pool_size=_IDLE_CONNECTIONS, max_overflow=-1,
                pool_use_lifo=True,
            )  # fmt: skip
        if engine.dialect.name == "sqlite":
            _prepare_engine(engine, self._lock_timeout_s)
        elif engine.dialect.name != "postgresql":
            raise StoreError(f"{self.name}: a store is an SQLite file or in PostgreSQL")
        return engine

    def _prepare_tables(self, engine: "Engine") -> None:
        """Create missing tables."""
        from foretune.tune.store.sql import stored_version

        file = engine.url.database if engine.dialect.name == "sqlite" else None
        if not self._may_create:
            self._require_file(file)
        elif file is not None and not file.startswith("file:"):
            _make_file(Path(file))
        with engine.connect() as connection:
            found = stored_version(connection)
        if found is None:
            self._create(engine)

    def _require_file(self, file: str | None) -> None:
        """Raise StoreError if there is no file: connecting would make an empty one."""
        if file is None or file.startswith("file:") or Path(file).is_file():
            return
        if Path(file).exists():
            raise StoreError(f"{self.name} is not a store but a folder: name a file in it")
        raise StoreError(f"{self.name} does not exist: nothing has been tuned there yet")

    def _create(self, engine: "Engine") -> None:
        """Make the tables in one transaction, unless another process was faster."""
        from sqlalchemy.exc import DBAPIError

        from foretune.tune.store.sql import (
            SCHEMA_VERSION,
            insert_missing,
            metadata,
            stored_version,
            version,
        )

        if not self._may_create:
            raise StoreError(f"{self.name} is not a store: it has no tables of Foretune's")
        if self._path is not None:
            with engine.connect().execution_options(begin="EXCLUSIVE") as connection:
                connection.begin()
                _remove_stale_index(self._path)
            _enable_write_ahead_log(engine, self._path, self._lock_timeout_s)
        try:
            with (
                engine.connect().execution_options(begin="IMMEDIATE") as connection,
                connection.begin(),
            ):
                metadata.create_all(connection)
                insert_missing(connection, version, [{"version": SCHEMA_VERSION}])
        except DBAPIError:  # PostgreSQL lets two processes create a table, and fails the second
            with engine.connect() as connection:
                if stored_version(connection) is None:
                    raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

        try:
            yield
        except (DBAPIError, sqlite3.Error) as e:
            reason = str(getattr(e, "orig", e) or e).splitlines()[0]
            if "no such table" in reason:  # the file was replaced by another database
                self.close()
            raise StoreError(self._error_message(reason)) from e
        except ArgumentError as e:
            raise StoreError(f"the store's URL is none that SQLAlchemy knows: {e}") from e
        except SQLAlchemyError as e:
            raise StoreError(f"{self.name}: {e}") from e
        except ModuleNotFoundError as e:
            raise StoreError(
                f"the store's database needs {e.name}, which is not installed: pip install it "
                "(PostgreSQL: pip install '.[postgres]', URL postgresql+psycopg://…)"
            ) from e

    def _error_message(self, reason: str) -> str:
        low = reason.lower()
        if "locked" in low or "busy" in low:
            return f"{self.name} is locked by another process: wait for it, or {PATH_ADVICE}"
        if self._path is not None and "not a database" in low:
            return (
                f"{self.name} is not a store ({reason}): name another file, or move it away, "
                "and a new one is made"
            )
        if self._path is not None and "malformed" in low:
            return f"{self.name} is damaged ({reason}): move it away, and a new one is made"
        if "readonly" in low or "unable to open" in low or "disk" in low:
            return f"cannot write {self.name} ({reason}): {PATH_ADVICE}"
        return f"{self.name}: {reason}"


_DATABASES: "weakref.WeakSet[Database]" = weakref.WeakSet()
_INHERITED: "list[Engine]" = []
"""Engines of a parent process, kept: closing their connections would disturb the parent's."""


def _close_before_fork() -> None:
    """Close idle connections: SQLite confuses the locks of a parent with its child's."""
    for database in list(_DATABASES):
        database.close()


def _renew_in_child() -> None:
    for database in list(_DATABASES):
        database.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_before_fork, after_in_child=_renew_in_child)
