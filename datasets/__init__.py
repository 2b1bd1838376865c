"""The run table: schema, reading and writing, and the log that loses nothing."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
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
    "Imported",
    "RunLog",
    "from_measurements",
    "import_runs",
    "latest",
    "read_runs",
    "to_measurements",
    "validate",
    "write_runs",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
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
