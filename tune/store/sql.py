"""The store's tables and SQL, valid for SQLite and PostgreSQL. Rows hold opaque JSON.

All data that varies between kernels is in one JSON column, so a new parameter needs no new table.
"""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


MAX_PID = 2**31
"""Larger numbers of processes do not exist."""
MAX_SEQUENCE = 2**62
"""A larger place in the order of writing comes from a damaged row."""


@dataclass(frozen=True)
class SubjectRow:
    """A row of subjects as it was read: a damaged file may hold any type."""

    id: Any
    kernel: Any
    source: Any
    device: Any
    versions: Any


@dataclass(frozen=True)
class ResultRow:
    """A row of measurements or choices as it was read; ``config`` is None for a choice."""

    problem: Any
    config: Any
    described: Any
    record: Any


@dataclass(frozen=True)
class Mark:
    """A configuration that a process is, or was, measuring; ``described`` is its JSON."""

    host: str
    pid: int
    started: float
    since: float
    described: str


@dataclass(frozen=True)
class ResultRows:
    """The readable rows of a query; ``unreadable`` is the number of rows in damaged pages."""

    rows: list[ResultRow]
    unreadable: int = 0


@dataclass(frozen=True)
class MeasurementCounts:
    """Counts of the measurements of a subject; ``problems`` are the keys of measured problems."""

    measurements: int
    failed: int
    problems: frozenset[str]


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
        found = rows[0][0]
        if not isinstance(found, int):
            raise StoreError("the store's version is damaged: move the store away")
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

    def subjects(self) -> list[SubjectRow]:
        """Return every subject."""
        columns = ", ".join(_COLUMNS["subjects"])
        return [SubjectRow(*row) for row in self._fetch(f"SELECT {columns} FROM foretune_subjects")]

    def rows(self, name: TableName, subject: str, problem: str | None = None) -> ResultRows:
        """Return the measurements or choices of a subject, or of one problem, oldest first."""
        which = {"subject": subject, "problem": problem}
        order = ", ".join(("sequence", *_KEYS[name]))
        select = f"SELECT {_result_columns(name)} FROM foretune_{name}"
        try:
            found = self._fetch(f"{select}{_where(which)} ORDER BY {order}", which)
        except sqlite3.DatabaseError as e:
            if "malformed" not in str(e):
                raise
            return self._readable_rows(name, which)
        return ResultRows([ResultRow(*row) for row in found])

    def sample(self, subject: str, problem: str, limit: int) -> ResultRows:
        """Return some measurements of a problem: those with the smallest keys, which are hashes."""
        which = {"subject": subject, "problem": problem}
        select = f"SELECT {_result_columns('measurements')} FROM foretune_measurements"
        found = self._fetch(f"{select}{_where(which)} ORDER BY config LIMIT {limit}", which)
        return ResultRows([ResultRow(*row) for row in found])

    def has_more_rows_than(self, limit: int, subject: str) -> bool:
        """Return whether a subject has more than ``limit`` measurements, without counting all."""
        which = {"subject": subject}
        first = f"SELECT 1 FROM foretune_measurements{_where(which)} LIMIT {limit + 1}"
        return len(self._fetch(first, which)) > limit

    def problems(self, subject: str, limit: int) -> list[ResultRow]:
        """Return one measurement of each problem of a subject, of at most ``limit`` problems.

        The database leaps through the index from problem to problem, so their rows do not matter.
        """
        which = {"subject": subject}
        leap = (
            "WITH RECURSIVE leap(problem, n) AS ("
            f"SELECT MIN(problem), 1 FROM foretune_measurements{_where(which)} "
            "UNION ALL SELECT (SELECT MIN(problem) FROM foretune_measurements"
            f"{_where(which)} AND problem > leap.problem), n + 1 "
            f"FROM leap WHERE problem IS NOT NULL AND n < {limit}) "
            "SELECT problem FROM leap WHERE problem IS NOT NULL"
        )
        found = []
        for (problem,) in self._fetch(leap, which):
            found += self.sample(subject, problem, limit=1).rows
        return found

    def count_measurements(self, subject: str, ok: str) -> MeasurementCounts:
        """Count the measurements of a subject; ``ok`` is the pattern of successful records."""
        which = {"subject": subject}
        table = f"FROM foretune_measurements{_where(which)}"
        total = self._fetch(f"SELECT COUNT(*) {table}", which)[0][0]
        succeeded = self._fetch(
            f"SELECT COUNT(*) {table} AND record LIKE :ok", {**which, "ok": ok}
        )[0][0]
        problems = self._fetch(f"SELECT DISTINCT problem {table}", which)
        return MeasurementCounts(
            measurements=total,
            failed=total - succeeded,
            problems=frozenset(problem for (problem,) in problems),
        )

    def newest_record(self, subject: str) -> Any:
        """Return the record of the measurement that was written last; None without one."""
        which = {"subject": subject}
        found = self._fetch(
            f"SELECT record FROM foretune_measurements{_where(which)} "
            "ORDER BY sequence DESC LIMIT 1",
            which,
        )
        return found[0][0] if found else None

    def marks(self, which: Row) -> list[Mark]:
        """Return the readable marks of configurations."""
        columns = "host, pid, started, since, described"
        select = f"SELECT {columns} FROM foretune_begun"
        found = self._fetch(f"{select}{_where(which)} ORDER BY config, since", which)
        return [Mark(*row) for row in found if _is_mark(row)]

    def is_measured(self, which: Row) -> bool:
        """Return whether a configuration has a row."""
        return bool(self._fetch(f"SELECT 1 FROM foretune_measurements{_where(which)}", which))

    def insert_subject(self, subject: Subject) -> None:
        """Write a subject unless it exists; repair it if its row is damaged."""
        row = {"id": subject.id, **asdict(subject)}
        texts = _COLUMNS["subjects"][1:]
        updates = ", ".join(f"{name} = excluded.{name}" for name in texts)
        differs = " OR ".join(f"excluded.{name} <> foretune_subjects.{name}" for name in texts)
        conflict = f"ON CONFLICT (id) DO UPDATE SET {updates} WHERE {differs}"
        self._execute(_insert("subjects", conflict), [row])

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
        values = {"subject": subject, "problem": problem}
        self._execute(f"DELETE FROM foretune_begun{_where(values)}", [values])
        count = 0
        for name in ("measurements", "choices"):
            self._execute(f"DELETE FROM foretune_{name}{_where(values)}", [values])
            count += self._cursor.rowcount
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
        newest = self._fetch(f"SELECT MAX(sequence) FROM foretune_{name}")[0][0]
        is_sound = isinstance(newest, int) and 0 <= newest < MAX_SEQUENCE
        last = newest if is_sound else 0
        return [{**row, "sequence": last + i} for i, row in enumerate(rows, start=1)]

    def _readable_rows(self, name: TableName, which: Row) -> ResultRows:
        """Read rows one by one, because some lie in damaged pages of an SQLite file."""
        numbers = self._row_numbers(name, which)
        rows = []
        for number in numbers:
            select = f"SELECT sequence, {_result_columns(name)} FROM foretune_{name}"
            try:
                rows += self._fetch(f"{select} WHERE rowid = :number", {"number": number})
            except sqlite3.DatabaseError:
                continue
        rows.sort(key=lambda row: row[0] if isinstance(row[0], int) else 0)
        return ResultRows([ResultRow(*row[1:]) for row in rows], len(numbers) - len(rows))

    def _row_numbers(self, name: TableName, which: Row) -> list[int]:
        """Return the numbers of rows by the index of the keys, which holds them as well."""
        keys = ", ".join(_KEYS[name])
        select = f"SELECT rowid FROM foretune_{name}{_where(which)} ORDER BY {keys}"
        return [number for (number,) in self._fetch(select, which)]


@cache
def _insert(name: str, conflict: str) -> str:
    columns = _COLUMNS[name]
    values = ", ".join(f":{column}" for column in columns)
    return f"INSERT INTO foretune_{name} ({', '.join(columns)}) VALUES ({values}) {conflict}"


def _where(which: Row) -> str:
    given = " AND ".join(f"{name} = :{name}" for name, value in which.items() if value is not None)
    return f" WHERE {given}" if given else ""


def _result_columns(name: TableName) -> str:
    config = "config" if name == "measurements" else "NULL"
    return f"problem, {config}, described, record"


def _is_mark(row: Sequence[Any]) -> bool:
    """Return whether a row of marks has the types that were written."""
    host, pid, started, since, described = row
    numbers = isinstance(started, int | float) and isinstance(since, int | float)
    texts = isinstance(host, str) and isinstance(described, str)
    return texts and numbers and isinstance(pid, int) and 0 < pid < MAX_PID


@cache
def _for_server(sql: str) -> str:
    """Convert a statement's parameters to psycopg's notation."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)
