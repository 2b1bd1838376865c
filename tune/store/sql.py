"""The store's tables and SQL statements. Rows are plain dictionaries and tuples with opaque JSON.

What varies between kernels is one JSON column, so a new parameter needs no new table.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from foretune.errors import StoreError

SCHEMA_VERSION = 2

metadata = MetaData()


def _key(name: str, length: int) -> Column[Any]:
    return Column(name, String(length), primary_key=True)


def _sequence() -> Column[Any]:
    """Return the column with the order of writing; the clocks of several machines differ."""
    return Column("sequence", BigInteger, nullable=False, index=True, server_default="0")


version = Table("foretune_version", metadata, Column("version", Integer, primary_key=True))
subjects = Table(
    "foretune_subjects", metadata, _key("id", 32),
    *(Column(name, Text, nullable=False) for name in ("kernel", "source", "device", "versions")),
)  # fmt: skip
measurements = Table(
    "foretune_measurements", metadata, _key("subject", 32), _key("problem", 16), _key("config", 16),
    Column("described", Text, nullable=False),  # the problem, JSON
    Column("record", Text, nullable=False),
    _sequence(),
)  # fmt: skip
choices = Table(
    "foretune_choices", metadata, _key("subject", 32), _key("problem", 16),
    Column("described", Text, nullable=False),
    Column("record", Text, nullable=False),
    Column("measured", Integer, nullable=False),
    _sequence(),
)  # fmt: skip
marks = Table(
    "foretune_begun", metadata, _key("subject", 32), _key("problem", 16), _key("config", 16),
    _key("host", 255),
    Column("pid", Integer, primary_key=True, autoincrement=False),
    Column("started", Double, nullable=False),
    Column("described", Text, nullable=False),  # the configuration, JSON
    Column("since", Double, nullable=False),
)  # fmt: skip


def stored_version(connection: Connection) -> int | None:
    """Return the version of the tables; None without tables.

    Raises:
        StoreError: another version of Foretune made them.
    """
    if not inspect(connection).has_table(version.name):
        return None
    found = connection.execute(select(version.c.version)).scalar()
    if found not in (None, SCHEMA_VERSION):
        raise StoreError(
            f"the store has version {found}, this Foretune knows version {SCHEMA_VERSION}: "
            "install another Foretune, or set FORETUNE_STORE to another file"
        )
    return found


Row = Mapping[str, Any]
Replace = Literal["always", "not worse", "better"]
"""When a row takes the place of another with the same key: see `_UPSERT_CONDITIONS`."""
TableName = Literal["subjects", "measurements", "choices"]
_TABLES: Mapping[TableName, Table] = {
    "subjects": subjects, "measurements": measurements, "choices": choices,
}  # fmt: skip
_INSERT: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_UPSERT_CONDITIONS: Mapping[Replace, Any] = {
    "always": None,
    "not worse": lambda new, old: new.measured >= old.measured,
    "better": lambda new, old: new.measured > old.measured,
}


class StoreTransaction:
    """The tables within a transaction that has begun on ``connection``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def subjects(self) -> list[tuple[str, ...]]:
        """Return (kernel, source, device, versions) of every subject."""
        c = subjects.c
        return self._fetch_all(select(c.kernel, c.source, c.device, c.versions))

    def rows(
        self, name: TableName, subject: str, problem: str | None = None
    ) -> list[tuple[str, ...]]:
        """Return (problem, record) of each measurement or choice, oldest first."""
        table = _TABLES[name]
        query = select(table.c.described, table.c.record).where(
            *_column_filters(table, subject, problem)
        )
        return self._fetch_all(query.order_by(table.c.sequence, *table.primary_key))

    def marks_of_host(self, subject: str, problem: str, host: str) -> list[tuple[Any, ...]]:
        """Return (pid, start time, configuration) of the marks of a host."""
        c = marks.c
        query = select(c.pid, c.started, c.described).where(
            *_column_filters(marks, subject, problem), c.host == host
        )
        return self._fetch_all(query.order_by(c.config))

    def marks_of_configuration(self, config: Row) -> list[tuple[Any, ...]]:
        """Return (host, pid, start time, time of marking) of the marks of a configuration."""
        c = marks.c
        query = select(c.host, c.pid, c.started, c.since).where(
            *_column_filters(marks, config["subject"], config["problem"]),
            c.config == config["config"],
        )
        return self._fetch_all(query.order_by(c.since))

    def is_measured(self, config: Row) -> bool:
        """Return whether a configuration has a row."""
        c = measurements.c
        query = select(c.config).where(
            *_column_filters(measurements, config["subject"], config["problem"]),
            c.config == config["config"],
        )
        return bool(self._fetch_all(query))

    def insert_missing(self, name: TableName, row: Row) -> None:
        """Write a row unless there is one with its key."""
        table = _TABLES[name]
        insert_missing(self._connection, table, self._with_sequence(table, [row]))

    def upsert(self, name: TableName, rows: Sequence[Row], replace: Replace = "always") -> None:
        """Write rows in the place of those with the same keys."""
        table = _TABLES[name]
        # Sorted, so that two processes that write the same rows cannot wait for each other.
        rows = sorted(
            self._with_sequence(table, rows),
            key=lambda row: [row[column.name] for column in table.primary_key],
        )
        if rows:
            dialect = self._connection.dialect.name
            self._connection.execute(_upsert_statement(dialect, table, replace), rows)

    def mark(self, mark: Row) -> None:
        """Mark a configuration as being measured by a process."""
        self._connection.execute(
            delete(marks).where(*(c == mark[c.name] for c in marks.primary_key))
        )
        self._connection.execute(insert(marks), [mark])

    def unmark(self, configs: Sequence[Row]) -> None:
        """Delete marks of configurations, by all processes or by the process that they name."""
        names = [c.name for c in marks.primary_key if configs and c.name in configs[0]]
        if names:
            keys = [{n: config[n] for n in names} for config in configs]
            self._connection.execute(_delete_statement(marks, tuple(names)), keys)

    def delete(self, subject: str | None, problem: str | None) -> int:
        """Delete a problem, a subject or everything; return the number of deleted rows."""
        counts = {
            table: self._connection.execute(
                delete(table).where(*_column_filters(table, subject, problem))
            ).rowcount
            for table in (measurements, choices, marks)
        }
        if problem is None:
            which = [] if subject is None else [subjects.c.id == subject]
            self._connection.execute(delete(subjects).where(*which))
        return counts[measurements] + counts[choices]

    def _fetch_all(self, query: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(query)]

    def _with_sequence(self, table: Table, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with their place in the order of writing.

        Two simultaneous transactions may use the same numbers; then neither came first.
        """
        if "sequence" not in table.c:
            return list(rows)
        last = self._connection.execute(_last_sequence(table)).scalar() or 0
        return [{**row, "sequence": last + i} for i, row in enumerate(rows, start=1)]


def insert_missing(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Write the rows with new keys."""
    statement = _insert_missing_statement(connection.dialect.name, table)
    connection.execute(statement, list(rows))


# Statements are built once: building one takes longer than SQLite needs to run it.


@cache
def _insert_missing_statement(dialect: str, table: Table) -> Any:
    return _INSERT[dialect](table).on_conflict_do_nothing()


@cache
def _upsert_statement(dialect: str, table: Table, replace: Replace) -> Any:
    statement, better = _INSERT[dialect](table), _UPSERT_CONDITIONS[replace]
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={c.name: statement.excluded[c.name] for c in table.c if not c.primary_key},
        where=better(statement.excluded, table.c) if better else None,
    )


@cache
def _last_sequence(table: Table) -> Any:
    return select(func.max(table.c.sequence))


@cache
def _delete_statement(table: Table, names: tuple[str, ...]) -> Any:
    return delete(table).where(*(table.c[name] == bindparam(f"{name}") for name in names))


def _column_filters(table: Table, subject: str | None, problem: str | None) -> list[Any]:
    wanted = {"subject": subject, "problem": problem}
    return [table.c[name] == value for name, value in wanted.items() if value is not None]
