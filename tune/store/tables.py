"""The store's tables, their versions and migrations.

What varies between kernels is one JSON column, so a new parameter needs no new table.
"""

from collections.abc import Callable
from typing import Any

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
    inspect,
    select,
    text,
    update,
)

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
        StoreError: a newer Foretune made them.
    """
    if not inspect(connection).has_table(version.name):
        return None
    found = connection.execute(select(version.c.version)).scalar()
    if found is not None and found > SCHEMA_VERSION:
        raise StoreError(
            f"the store has version {found}, this Foretune knows up to {SCHEMA_VERSION}: "
            "install a newer Foretune, or set FORETUNE_STORE to another file"
        )
    return found


def migrate(connection: Connection) -> None:
    """Bring the tables to this version, in a write transaction that has begun.

    Does nothing if another process was faster.
    """
    query = select(version.c.version).with_for_update()
    found = connection.execute(query).scalar_one()
    for step in _STEPS[found - 1 :]:
        step(connection)
    connection.execute(update(version).values(version=SCHEMA_VERSION))


def _sequences_instead_of_clocks(connection: Connection) -> None:
    """Version 2 orders rows by when they were written instead of by the writers' clocks."""
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
