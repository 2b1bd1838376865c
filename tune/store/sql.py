"""The store's SQL: what one transaction can read and write.

Rows are plain dictionaries and tuples; what their JSON means is not known here.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from foretune.tune.store.tables import choices, marks, measurements, subjects

Row = Mapping[str, Any]
_INSERT: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class StoreTransaction:
    """The tables within one transaction.

    Args:
        connection: on which the transaction has begun.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def subjects(self) -> list[tuple[str, ...]]:
        """Return (kernel, source, device, versions) of every subject."""
        c = subjects.c
        return self._fetch_all(select(c.kernel, c.source, c.device, c.versions))

    def measurement_rows(self, subject: str, problem: str | None) -> list[tuple[str, ...]]:
        """Return (problem, record) of each configuration measured, oldest first."""
        c = measurements.c
        query = select(c.described, c.record).where(
            *_column_filters(measurements, subject, problem)
        )
        return self._fetch_all(query.order_by(c.sequence, c.problem, c.config))

    def choice_rows(self, subject: str, problem: str | None) -> list[tuple[str, ...]]:
        """Return (problem, record) of each choice, oldest first."""
        c = choices.c
        query = select(c.described, c.record).where(*_column_filters(choices, subject, problem))
        return self._fetch_all(query.order_by(c.sequence, c.problem))

    def marks_of_host(self, subject: str, problem: str, host: str) -> list[tuple[Any, ...]]:
        """Return (pid, start of that process, configuration) of the marks of a host."""
        c = marks.c
        query = select(c.pid, c.started, c.described).where(
            *_column_filters(marks, subject, problem), c.host == host
        )
        return self._fetch_all(query.order_by(c.config))

    def marks_of_configuration(self, config: Row) -> list[tuple[Any, ...]]:
        """Return (host, pid, start of that process, moment) of the marks of a configuration."""
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

    def insert_subject(self, subject: Row) -> None:
        """Write a subject if it is not there."""
        self._insert_missing(subjects, [subject])

    def upsert_measurements(self, rows: Sequence[Row]) -> None:
        """Write measurements; they take the place of those of the same configuration."""
        self._upsert(measurements, rows)

    def upsert_choices(self, rows: Sequence[Row]) -> None:
        """Write choices; they take the place of those that rest on no more measurements."""
        self._upsert(choices, rows, lambda new, old: new.measured >= old.measured)

    def insert_choice(self, choice: Row) -> None:
        """Write a choice if its problem has none."""
        self._insert_missing(choices, self._with_sequence(choices, [choice]))

    def insert_better_choice(self, choice: Row) -> None:
        """Write a choice if its problem has none, or one that rests on fewer measurements."""
        self._upsert(choices, [choice], lambda new, old: new.measured > old.measured)

    def mark(self, mark: Row) -> None:
        """Write who measures a configuration."""
        self._connection.execute(delete(marks).where(*_key_filters(marks, mark)))
        self._connection.execute(insert(marks), [mark])

    def unmark(self, config: Row) -> None:
        """Delete the marks of a configuration: of the process that ``config`` names, or of all."""
        same = [column == config[column.name] for column in marks.primary_key
                if column.name in config]  # fmt: skip
        self._connection.execute(delete(marks).where(*same))

    def delete(self, subject: str | None, problem: str | None) -> int:
        """Delete a problem, a subject or everything; return how many measurements and choices."""
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

    def _insert_missing(self, table: Table, rows: Sequence[Row]) -> None:
        insert_missing(self._connection, table, rows)

    def _upsert(
        self, table: Table, rows: Sequence[Row], better: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """Write rows; one takes the place of another with the same key, if it is ``better``."""
        # In one order, so that two who write the same rows wait for each other and never both.
        rows = sorted(
            self._with_sequence(table, rows),
            key=lambda row: [row[column.name] for column in table.primary_key],
        )
        if rows and (dialect_insert := _INSERT.get(self._connection.dialect.name)) is not None:
            statement = dialect_insert(table)
            new = {c.name: statement.excluded[c.name] for c in table.c if not c.primary_key}
            statement = statement.on_conflict_do_update(
                index_elements=list(table.primary_key),
                set_=new,
                where=better(statement.excluded, table.c) if better else None,
            )
            self._connection.execute(statement, rows)
            return
        for row in rows:
            same = _key_filters(table, row)
            existing = self._connection.execute(
                select(table).where(*same).with_for_update()
            ).first()
            if existing is None or better is None or better(SimpleNamespace(**row), existing):
                self._connection.execute(delete(table).where(*same))
                self._connection.execute(insert(table), [row])

    def _with_sequence(self, table: Table, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with their place in the order of writing.

        Two transactions at the same time may use the same numbers: then neither came first.
        """
        last = self._connection.execute(select(func.max(table.c.sequence))).scalar() or 0
        return [{**row, "sequence": last + i} for i, row in enumerate(rows, start=1)]


def insert_missing(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Write the rows whose key is not there; leave what is there alone."""
    if (dialect_insert := _INSERT.get(connection.dialect.name)) is not None:
        connection.execute(dialect_insert(table).on_conflict_do_nothing(), list(rows))
        return
    for row in rows:
        existing = connection.execute(
            select(table).where(*_key_filters(table, row)).with_for_update()
        )
        if existing.first() is None:
            connection.execute(insert(table), [row])


def _column_filters(table: Table, subject: str | None, problem: str | None) -> list[Any]:
    wanted = {"subject": subject, "problem": problem}
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def _key_filters(table: Table, row: Row) -> list[Any]:
    return [column == row[column.name] for column in table.primary_key]
