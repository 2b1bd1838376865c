"""Migrations: what makes the tables of an older Foretune those of this one, in one transaction."""

from collections.abc import Callable

from sqlalchemy import Connection, select, text, update

from foretune.tune.store.tables import SCHEMA_VERSION, choices, measurements, version


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
