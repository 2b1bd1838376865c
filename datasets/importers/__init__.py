"""Importers: results of other tools as run tables."""

from foretune.datasets.importers.importing import FORMATS, ImportResult, import_runs

__all__ = ["FORMATS", "ImportResult", "import_runs"]
