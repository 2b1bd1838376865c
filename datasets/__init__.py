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

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__)
