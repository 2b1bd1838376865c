"""Operators that the user measured: the run table that ``foretune collect --operators`` writes."""

from functools import cached_property
from pathlib import Path

import pandas as pd

from foretune.datasets.importers.systems import device_of_system
from foretune.datasets.journal import journal_path
from foretune.datasets.runs import newest_runs, read_runs
from foretune.errors import RunTableError
from foretune.measurement import Status
from foretune.plan.serve.deployments.deployment import ENGINES

OPERATORS_FILE = "operators.parquet"
"""The run table's name in its folder."""


def has_user_operators(folder: Path) -> bool:
    """Return whether ``folder`` holds operators that the user measured, or begins to."""
    path = folder / OPERATORS_FILE
    return path.is_file() or journal_path(path).is_file()


class UserTables:
    """The user's own measurements, whatever GPUs they are of.

    Args:
        folder: with `OPERATORS_FILE` in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def backends(self, system: str) -> list[str]:
        """Return all engines if ``system`` was measured, else none."""
        return sorted(ENGINES) if (self._runs["device"] == device_of_system(system)).any() else []

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return what was measured of ``kernel`` on ``system``, whatever the engine, or None.

        Without the columns of other kernels: empty sizes are not the sizes that a table lacks.
        """
        runs = self._runs
        here = (runs["kernel"] == kernel) & (runs["device"] == device_of_system(system))
        if not here.any():
            return None
        return runs[here].dropna(axis=1, how="all").reset_index(drop=True)

    @cached_property
    def _runs(self) -> pd.DataFrame:
        """What succeeded, each operator once.

        Raises:
            RunTableError: the file is damaged, or nothing in it succeeded.
        """
        path = self.folder / OPERATORS_FILE
        runs = newest_runs(read_runs(path))
        succeeded = runs[runs["status"] == Status.OK.value]
        if succeeded.empty:
            raise RunTableError(f"{path} has no operator that ran: see its column 'error'")
        return succeeded.reset_index(drop=True)
