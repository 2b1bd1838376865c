"""The store's database connection, which stays open between transactions."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import StoreError
from foretune.redaction import redact
from foretune.tune.store.sqlite_file import (
    PATH_ADVICE,
    OpenFile,
    enable_write_ahead_log,
    make_file,
    prepare_engine,
    remove_stale_index,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from foretune.tune.store.sql import StoreTransaction

_IDLE_CONNECTIONS = 2
"""Connections to an SQLite file that stay open; more threads than that open their own."""


class Database:
    """Transactions on a database.

    Connections to an SQLite file stay open between transactions. They are closed before a fork, and
    when the file at the path is no longer the one that was opened. Other databases are connected
    for each transaction, because servers limit connections.

    Args:
        location: path of an SQLite file, or an SQLAlchemy URL.
        patience_s: seconds to wait for other processes that write.
        create: whether to make a missing folder, file or table; otherwise that is an error.
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
    def read_transaction(self) -> Iterator["StoreTransaction"]:
        """Return the tables in a transaction that only reads.

        Raises:
            StoreError: the database cannot be opened or read.
        """
        with self._transaction("DEFERRED") as rows:
            yield rows

    @contextmanager
    def write_transaction(self) -> Iterator["StoreTransaction"]:
        """Return the tables in a transaction that is written completely or not at all.

        Raises:
            StoreError: the database cannot be opened or written, or is locked for too long.
        """
        with self._transaction("IMMEDIATE") as rows:
            yield rows

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

    @contextmanager
    def _transaction(self, begin: str) -> Iterator["StoreTransaction"]:
        from foretune.tune.store.sql import StoreTransaction

        with (
            self._translate_errors(),
            self._get_engine().connect().execution_options(begin=begin) as connection,
            connection.begin(),
        ):
            yield StoreTransaction(connection)

    def _get_engine(self) -> "Engine":
        engine = self._engine
        if engine is not None and (self._file is None or self._file.is_current):
            return engine
        with self._open_lock:
            if self._engine is not None and self._file is not None and not self._file.is_current:
                self._let_go_of_file(self._file)
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _let_go_of_file(self, file: OpenFile) -> None:
        """Close connections to a file that was deleted, emptied or replaced."""
        file.detach()
        self.close()
        file.remove_log()

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
            prepare_engine(engine, self._lock_timeout_s)
        return engine

    def _prepare_tables(self, engine: "Engine") -> None:
        """Create missing tables, or migrate old ones."""
        from foretune.tune.store.tables import SCHEMA_VERSION, migrate, stored_version

        file = engine.url.database if engine.dialect.name == "sqlite" else None
        if not self._may_create:
            self._require_file(file)
        elif file is not None and not file.startswith("file:"):
            make_file(Path(file))
        with engine.connect() as connection:
            found = stored_version(connection)
        if found is None:
            self._create(engine)
        elif found < SCHEMA_VERSION:
            with (
                engine.connect().execution_options(begin="IMMEDIATE") as connection,
                connection.begin(),
            ):
                migrate(connection)

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

        from foretune.tune.store.tables import stored_version

        if not self._may_create:
            raise StoreError(f"{self.name} is not a store: it has no tables of Foretune's")
        if self._path is not None:
            with engine.connect().execution_options(begin="EXCLUSIVE") as connection:
                connection.begin()
                remove_stale_index(self._path)
            enable_write_ahead_log(engine, self._path, self._lock_timeout_s)
        try:
            _make_tables(engine)
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


def _make_tables(engine: "Engine") -> None:
    from foretune.tune.store.sql import insert_missing
    from foretune.tune.store.tables import SCHEMA_VERSION, metadata, version

    with engine.connect().execution_options(begin="IMMEDIATE") as connection, connection.begin():
        metadata.create_all(connection)
        insert_missing(connection, version, [{"version": SCHEMA_VERSION}])


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
