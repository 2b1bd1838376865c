"""The store's tables and SQL, valid for SQLite and PostgreSQL. Rows hold opaque JSON.

All data that varies between kernels is in one JSON column, so a new parameter needs no new table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Literal

from foretune.errors import StoreError
from foretune.tune.store.subject import Subject

SCHEMA_VERSION = 2
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS foretune_version (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE IF NOT EXISTS foretune_subjects (
    id VARCHAR(32) NOT NULL, kernel TEXT NOT NULL, source TEXT NOT NULL, device TEXT NOT NULL,
    versions TEXT NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE IF NOT EXISTS foretune_measurements (
    subject VARCHAR(32) NOT NULL, problem VARCHAR(16) NOT NULL, config VARCHAR(16) NOT NULL,
    described TEXT NOT NULL, record TEXT NOT NULL, sequence BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (subject, problem, config)
);
CREATE TABLE IF NOT EXISTS foretune_choices (
    subject VARCHAR(32) NOT NULL, problem VARCHAR(16) NOT NULL, described TEXT NOT NULL,
    record TEXT NOT NULL, measured INTEGER NOT NULL, sequence BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (subject, problem)
);
CREATE TABLE IF NOT EXISTS foretune_begun (
    subject VARCHAR(32) NOT NULL, problem VARCHAR(16) NOT NULL, config VARCHAR(16) NOT NULL,
    host VARCHAR(255) NOT NULL, pid INTEGER NOT NULL, started DOUBLE PRECISION NOT NULL,
    described TEXT NOT NULL, since DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (subject, problem, config, host, pid)
);
CREATE INDEX IF NOT EXISTS ix_foretune_measurements_sequence ON foretune_measurements (sequence);
CREATE INDEX IF NOT EXISTS ix_foretune_choices_sequence ON foretune_choices (sequence);
INSERT INTO foretune_version (version) VALUES ({SCHEMA_VERSION}) ON CONFLICT DO NOTHING
"""
"""``described`` is the problem; in ``foretune_begun``, the configuration. ``sequence`` is the order
of writing, because the clocks of several machines differ."""
_MARK_KEY = ("subject", "problem", "config", "host", "pid")
_COLUMNS = {
    "subjects": ("id", "kernel", "source", "device", "versions"),
    "measurements": ("subject", "problem", "config", "described", "record", "sequence"),
    "choices": ("subject", "problem", "described", "record", "measured", "sequence"),
    "begun": (*_MARK_KEY, "started", "described", "since"),
}
_KEYS = {"measurements": ("subject", "problem", "config"), "choices": ("subject", "problem")}

Row = Mapping[str, Any]
TableName = Literal["measurements", "choices"]
Replace = Literal["always", "not worse", "better", "never"]
"""When a row replaces another with the same key: by the number of measurements."""
_UPSERT_CONDITIONS: Mapping[Replace, str] = {
    "always": "",
    "not worse": " WHERE excluded.measured >= foretune_choices.measured",
    "better": " WHERE excluded.measured > foretune_choices.measured",
    "never": " WHERE 1 = 0",
}


class StoreTransaction:
    """The tables within an open transaction; ``server`` is whether it is PostgreSQL."""

    def __init__(self, cursor: Any, server: bool = False) -> None:
        self._cursor = cursor
        self._server = server

    def version(self) -> int | None:
        """Return the version of the tables; None without tables.

        Raises StoreError if another version of Foretune created them.
        """
        tables = "SELECT name FROM sqlite_master WHERE name = 'foretune_version'"
        if self._server:
            tables = "SELECT 1 WHERE to_regclass('foretune_version') IS NOT NULL"
        rows = self._fetch(tables) and self._fetch("SELECT version FROM foretune_version")
        if not rows:
            return None
        found = int(rows[0][0])
        if found != SCHEMA_VERSION:
            raise StoreError(
                f"the store has version {found}, this Foretune knows version {SCHEMA_VERSION}: "
                "install another Foretune, or set FORETUNE_STORE to another file"
            )
        return found

    def create_tables(self) -> None:
        """Create the missing tables."""
        for statement in _SCHEMA.split(";"):
            self._cursor.execute(statement)

    def subjects(self) -> list[tuple[Any, ...]]:
        """Return (kernel, source, device, versions) of every subject."""
        return self._fetch("SELECT kernel, source, device, versions FROM foretune_subjects")

    def rows(
        self, name: TableName, subject: str, problem: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Return (problem, record) of each measurement or choice, oldest first."""
        which, order = {"subject": subject, "problem": problem}, ("sequence", *_KEYS[name])
        what = f"SELECT described, record FROM foretune_{name}"
        return self._fetch(f"{what}{_where(which)} ORDER BY {', '.join(order)}", which)

    def marks(self, which: Row) -> list[tuple[Any, ...]]:
        """Return (host, pid, start time, time of marking, configuration) of marks."""
        what = "SELECT host, pid, started, since, described FROM foretune_begun"
        return self._fetch(f"{what}{_where(which)} ORDER BY config, since", which)

    def is_measured(self, which: Row) -> bool:
        """Return whether a configuration has a row."""
        return bool(self._fetch(f"SELECT 1 FROM foretune_measurements{_where(which)}", which))

    def insert_subject(self, subject: Subject) -> None:
        """Write a subject unless it exists."""
        row = {"id": subject.id, **asdict(subject)}
        self._execute(_insert("subjects", "ON CONFLICT DO NOTHING"), [row])

    def upsert(self, name: TableName, rows: Sequence[Row], replace: Replace = "always") -> None:
        """Write rows, replacing those with the same keys."""
        keys = _KEYS[name]
        updates = ", ".join(f"{c} = excluded.{c}" for c in _COLUMNS[name] if c not in keys)
        conflict = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}"
        # Sorted, so that two processes that write the same rows cannot wait for each other.
        ordered = sorted(self._with_sequence(name, rows), key=lambda row: [row[k] for k in keys])
        self._execute(_insert(name, conflict + _UPSERT_CONDITIONS[replace]), ordered)

    def mark(self, mark: Row) -> None:
        """Mark a configuration as being measured by a process."""
        self.unmark([mark])
        self._execute(_insert("begun", ""), [mark])

    def unmark(self, configs: Sequence[Row]) -> None:
        """Delete marks of configurations, by all processes or by the process given in them."""
        if configs:
            same = {name: configs[0][name] for name in _MARK_KEY if name in configs[0]}
            self._execute(f"DELETE FROM foretune_begun{_where(same)}", configs)

    def delete(self, subject: str | None, problem: str | None) -> int:
        """Delete a problem, a subject or everything; return the number of deleted rows."""
        values, count = {"subject": subject, "problem": problem}, 0
        for name in ("begun", "measurements", "choices"):
            self._execute(f"DELETE FROM foretune_{name}{_where(values)}", [values])
            count += 0 if name == "begun" else self._cursor.rowcount
        if problem is None:
            which = "" if subject is None else " WHERE id = :subject"
            self._execute(f"DELETE FROM foretune_subjects{which}", [values])
        return count

    def _execute(self, sql: str, rows: Sequence[Row]) -> None:
        self._cursor.executemany(_for_server(sql) if self._server else sql, rows)

    def _fetch(self, sql: str, values: Row | None = None) -> list[tuple[Any, ...]]:
        self._cursor.execute(_for_server(sql) if self._server else sql, values or {})
        return [tuple(row) for row in self._cursor.fetchall()]

    def _with_sequence(self, name: TableName, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with their place in the order of writing; simultaneous ones may tie."""
        last = self._fetch(f"SELECT MAX(sequence) FROM foretune_{name}")[0][0] or 0
        return [{**row, "sequence": last + i} for i, row in enumerate(rows, start=1)]


@cache
def _insert(name: str, conflict: str) -> str:
    columns = _COLUMNS[name]
    values = ", ".join(f":{column}" for column in columns)
    return f"INSERT INTO foretune_{name} ({', '.join(columns)}) VALUES ({values}) {conflict}"


def _where(which: Row) -> str:
    given = " AND ".join(f"{name} = :{name}" for name, value in which.items() if value is not None)
    return f" WHERE {given}" if given else ""


@cache
def _for_server(sql: str) -> str:
    """Convert a statement's parameters to psycopg's notation."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)
