"""The store's tables.

Everything that varies is one column of JSON: a kernel with another parameter needs no new table.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 2

metadata = MetaData()


def _key(name: str, length: int) -> Column[Any]:
    return Column(name, String(length), primary_key=True)


def _sequence() -> Column[Any]:
    """Return the order in which rows were written: clocks of a fleet differ, and are set back."""
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
