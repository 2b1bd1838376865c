"""The run table: schema, reading and writing, the log that loses nothing, and shipped tables."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.datasets.catalog import Card, card, load, shipped
    from foretune.datasets.importers import Imported, import_runs
    from foretune.datasets.log import RunLog
    from foretune.datasets.runs import (
        from_measurements,
        latest,
        read_runs,
        to_measurements,
        write_runs,
    )
    from foretune.datasets.schema import SCHEMA_VERSION, validate

__all__ = [
    "SCHEMA_VERSION",
    "Card",
    "Imported",
    "RunLog",
    "card",
    "from_measurements",
    "import_runs",
    "latest",
    "load",
    "read_runs",
    "shipped",
    "to_measurements",
    "validate",
    "write_runs",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "catalog": (
                "Card",
                "card",
                "load",
                "shipped",
            ),
            "importers": (
                "Imported",
                "import_runs",
            ),
            "log": ("RunLog",),
            "runs": (
                "from_measurements",
                "latest",
                "read_runs",
                "to_measurements",
                "write_runs",
            ),
            "schema": (
                "SCHEMA_VERSION",
                "validate",
            ),
        },
    )
