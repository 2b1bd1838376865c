"""Connection kept open, tables, migrations."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, text, update

from foretune.errors import StoreError, redact
from foretune.tune.store.tables import SCHEMA_VERSION, choices, measurements, version

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from foretune.tune.store.sql import StoreTransaction


def migrate(connection: Connection) -> None:
    """Bring the tables to this version; do nothing if another process already did.

    Args:
        connection: on which a transaction that writes has begun.
    """
    query = select(version.c.version).with_for_update()
    found = connection.execute(query).scalar_one()
    for step in _STEPS[found - 1 :]:
        step(connection)
    connection.execute(update(version).values(version=SCHEMA_VERSION))


def _sequences_instead_of_clocks(connection: Connection) -> None:
    """Version 2: rows are ordered by when they were written, not by what clocks said."""
    for table in (measurements, choices):
        connection.execute(
            text(f"ALTER TABLE {table.name} ADD COLUMN sequence BIGINT NOT NULL DEFAULT 0")
        )
        keys = [column.name for column in table.primary_key]
        same = " AND ".join(f"{key} = :{key}" for key in keys)
        rows = connection.execute(
            text(f"SELECT {', '.join(keys)} FROM {table.name} ORDER BY moment, {', '.join(keys)}")
        )
        numbered = [{**row, "n": n} for n, row in enumerate(rows.mappings(), start=1)]
        if numbered:
            connection.execute(
                text(f"UPDATE {table.name} SET sequence = :n WHERE {same}"), numbered
            )
        connection.execute(text(f"ALTER TABLE {table.name} DROP COLUMN moment"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)


_STEPS: list[Callable[[Connection], None]] = [_sequences_instead_of_clocks]


PATH_ADVICE = "set FORETUNE_STORE to a file you can write"
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs"}
)
"""File systems of several machines. SQLite's write-ahead log needs memory that its users share."""


class Database:
    """Transactions on a database, with every failure turned into one line.

    No connection outlives its transaction, so that a fork, a thread or a moved file finds nothing
    half-open.

    Args:
        location: path of an SQLite file, or an SQLAlchemy URL.
        patience_s: seconds to wait for other processes that write.
        create: whether folder, file and tables are made where they are missing; else that is an
            error.
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
        self._open_lock = threading.Lock()

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        if self._url is None:
            return str(self._path)
        return redact(self._url)

    @contextmanager
    def read_transaction(self) -> Iterator["StoreTransaction"]:
        """Return the tables within one transaction that only reads.

        Raises:
            StoreError: the database cannot be opened or read.
        """
        with self._transaction(writes=False) as rows:
            yield rows

    @contextmanager
    def write_transaction(self) -> Iterator["StoreTransaction"]:
        """Return the tables within one transaction, all of which is written, or nothing.

        Raises:
            StoreError: the database cannot be opened or written, or is locked for too long.
        """
        with self._transaction(writes=True) as rows:
            yield rows

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator["StoreTransaction"]:
        from foretune.tune.store.sql import StoreTransaction

        with (
            self._translate_errors(),
            self._get_engine().connect().execution_options(writes=writes) as connection,
            connection.begin(),
        ):
            yield StoreTransaction(connection)

    def _get_engine(self) -> "Engine":
        if (engine := self._current_engine()) is None:
            with self._open_lock:
                if (engine := self._current_engine()) is None:
                    self._engine = engine = self._open()
        return engine

    def _current_engine(self) -> "Engine | None":
        """Return the engine; None before the first use, and after somebody deleted the file."""
        return None if self._path is not None and _is_empty(self._path) else self._engine

    def _open(self) -> "Engine":
        from sqlalchemy import URL, create_engine
        from sqlalchemy.pool import NullPool

        from foretune.tune.store.tables import SCHEMA_VERSION

        if self._url in ("sqlite://", ":memory:"):
            raise StoreError("a database in memory forgets everything: name a file")
        if self._path is not None and self._path.suffix == ".json":
            raise StoreError(f"{self._path} is not a database: merge such a file into one")
        url = self._url or URL.create("sqlite", database=str(self._path))
        engine = create_engine(url, poolclass=NullPool)
        if self._may_create and self._path is not None:
            _make_folder(self._path)
        if not self._may_create:
            self._require_file(engine.url.database if engine.dialect.name == "sqlite" else None)
        if engine.dialect.name == "sqlite":
            _prepare_sqlite(engine, self._lock_timeout_s)
        found = _version(engine)
        if found is None:
            self._create(engine)
        elif found < SCHEMA_VERSION:
            with engine.connect() as connection, connection.execution_options(writes=True).begin():
                migrate(connection)
        return engine

    def _require_file(self, file: str | None) -> None:
        """Raise StoreError if there is none: a mere connection would make an empty one."""
        if file is None or file.startswith("file:") or Path(file).is_file():
            return
        if Path(file).exists():
            raise StoreError(f"{self.name} is not a store but a folder: name a file in it")
        raise StoreError(f"{self.name} does not exist: nothing has been tuned there yet")

    def _create(self, engine: "Engine") -> None:
        """Make the tables in one transaction; when several processes do, the first one does."""
        from sqlalchemy.exc import DBAPIError

        if not self._may_create:
            raise StoreError(f"{self.name} is not a store: it has no tables of Foretune's")
        if self._path is not None and not _is_network_file_system(self._path):
            _retry_until_unlocked(lambda: _enable_wal(engine), self._lock_timeout_s)
        try:
            _make_tables(engine)
        except DBAPIError:  # PostgreSQL lets two create a table, and fails the second
            if _version(engine) is None:
                raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

        try:
            yield
        except (DBAPIError, sqlite3.Error) as e:
            reason = str(getattr(e, "orig", e) or e).splitlines()[0]
            if "no such table" in reason:  # somebody moved the file away
                self._engine = None
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


def _is_empty(path: Path) -> bool:
    """Return whether there is no file, or nothing in it."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return True


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"cannot write {path} ({e.strerror or e}): {PATH_ADVICE}") from e


def _prepare_sqlite(engine: "Engine", patience_s: float) -> None:
    """Begin transactions ourselves: the driver would begin those that write too late, or never."""
    from sqlalchemy import event

    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * patience_s)}")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows

    def begin_transaction(connection: "Connection") -> None:
        writes = connection.get_execution_options().get("writes", False)
        # A reader that turns writer while another writes fails at once, without patience.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begin_transaction)


def _version(engine: "Engine") -> int | None:
    """Return the version of the tables; None where there are none.

    Raises:
        StoreError: a newer Foretune made them.
    """
    from sqlalchemy import inspect, select

    from foretune.tune.store.tables import SCHEMA_VERSION, version

    with engine.connect() as connection:
        if not inspect(connection).has_table(version.name):
            return None
        found = connection.execute(select(version.c.version)).scalar()
    if found is not None and found > SCHEMA_VERSION:
        raise StoreError(
            f"the store has version {found}, this Foretune knows up to {SCHEMA_VERSION}: "
            "install a newer Foretune, or set FORETUNE_STORE to another file"
        )
    return found


def _make_tables(engine: "Engine") -> None:
    from foretune.tune.store.sql import insert_missing
    from foretune.tune.store.tables import SCHEMA_VERSION, metadata, version

    with engine.connect() as connection, connection.execution_options(writes=True).begin():
        metadata.create_all(connection)
        insert_missing(connection, version, [{"version": SCHEMA_VERSION}])


def _enable_wal(engine: "Engine") -> None:
    """Let readers read while one writes; the file remembers it."""
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.execute("PRAGMA journal_mode = WAL")


def _retry_until_unlocked(attempt: Callable[[], None], patience_s: float) -> None:
    """Try until it succeeds: changing the journal fails at once while anybody reads."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            attempt()
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _is_network_file_system(path: Path) -> bool:
    """Return whether other machines may write to the file system of ``path``, too."""
    import psutil

    mounts = {m.mountpoint: m.fstype for m in psutil.disk_partitions(all=True)}
    home = next((str(p) for p in path.parents if str(p) in mounts), "")
    return mounts.get(home, "") in _NETWORK_FILE_SYSTEMS
