"""Run tables: schema, files, the crash-safe log, importers and shipped tables."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.datasets.catalog import DatasetCard, card, load, shipped
    from foretune.datasets.importers import ImportResult, import_runs
    from foretune.datasets.run_log import RunLog
    from foretune.datasets.runs import (
        from_measurements,
        newest_runs,
        read_runs,
        to_measurements,
        write_runs,
    )
    from foretune.datasets.schema import SCHEMA_VERSION, validate

__all__ = [
    "SCHEMA_VERSION",
    "DatasetCard",
    "ImportResult",
    "RunLog",
    "card",
    "from_measurements",
    "import_runs",
    "load",
    "newest_runs",
    "read_runs",
    "shipped",
    "to_measurements",
    "validate",
    "write_runs",
]

_MODULE_OF = {
    "DatasetCard": "foretune.datasets.catalog",
    "ImportResult": "foretune.datasets.importers",
    "RunLog": "foretune.datasets.run_log",
    "SCHEMA_VERSION": "foretune.datasets.schema",
    "card": "foretune.datasets.catalog",
    "from_measurements": "foretune.datasets.runs",
    "import_runs": "foretune.datasets.importers",
    "load": "foretune.datasets.catalog",
    "newest_runs": "foretune.datasets.runs",
    "read_runs": "foretune.datasets.runs",
    "shipped": "foretune.datasets.catalog",
    "to_measurements": "foretune.datasets.runs",
    "validate": "foretune.datasets.schema",
    "write_runs": "foretune.datasets.runs",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
