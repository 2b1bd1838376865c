"""Importers: results of other tools as run tables."""

from foretune.datasets.importers.formats import FORMATS
from foretune.datasets.importers.imported import ImportResult
from foretune.datasets.importers.importing import import_runs

__all__ = ["FORMATS", "ImportResult", "import_runs"]
