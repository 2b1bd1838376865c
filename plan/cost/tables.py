"""Measured operators from several folders: the user's own first, then those of engines."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.operator_package import installed_tables
from foretune.plan.cost.engine_tables import EngineTables
from foretune.plan.cost.kinds import KINDS
from foretune.plan.cost.own_tables import UserTables, has_user_operators

MAX_COVERED_DISTANCE = 1.0
"""Octaves around a measurement within which later folders are not asked."""


def default_folders() -> list[Path]:
    """Return where tables are looked for: the package, else ``$FORETUNE_SHARED_DATA/llm``."""
    package = installed_tables()
    shared = Path(os.environ.get("FORETUNE_SHARED_DATA", "")) / "llm"
    candidates = [package] if package else [shared]
    return [folder for folder in candidates if folder.is_dir()]


def find_tables(folder: Path | None = None) -> "OperatorTables | None":
    """Return the measured operators to plan with; None if there are none anywhere.

    Args:
        folder: of the user. What ``foretune collect --operators`` wrote there comes before the tables
            of engines, which complete it; engines' tables there stand for themselves.

    Raises:
        UsageError: there is nothing in ``folder``.
    """
    if folder is None:
        found = default_folders()
    elif has_user_operators(folder):
        found = [folder, *default_folders()]
    elif EngineTables(folder).systems:
        found = [folder]
    else:
        raise UsageError(
            f"{folder} holds no measured operators: "
            f"'foretune collect --operators typical --out {folder}' measures some"
        )
    return OperatorTables(*found) if found else None


class OperatorTables:
    """The measured operators of several folders, the first of which counts most.

    Rows of a folder count unless an earlier one has the operator in the same formats within an
    octave (`NEAR`): what was measured on the user's own GPU is taken from there, and everything
    farther away from the tables that have it.

    Args:
        folders: written by ``foretune collect --operators``, or of engines' tables.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders

    @cached_property
    def systems(self) -> list[str]:
        """The systems that engines were measured on, by their short names."""
        return sorted({name for tables in self._engine_tables for name in tables.systems})

    def backends(self, system: str) -> list[str]:
        """Return the engines measured on ``system``; the user's own operators serve all."""
        return sorted({b for tables in self._sources for b in tables.backends(system)})

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the run table of ``kernel`` measured on ``system`` with ``backend``, or None."""
        found = (tables.rows(kernel, system, backend) for tables in self._sources)
        return merge_tables(kernel, [rows for rows in found if rows is not None])

    @cached_property
    def _sources(self) -> list[UserTables | EngineTables]:
        return [
            UserTables(folder) if has_user_operators(folder) else EngineTables(folder)
            for folder in self.folders
        ]

    @property
    def _engine_tables(self) -> list[EngineTables]:
        return [tables for tables in self._sources if isinstance(tables, EngineTables)]


def merge_tables(kernel: str, tables: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the rows of all ``tables`` but those near to rows of an earlier one; None if none."""
    if not tables:
        return None
    kept = tables[0]
    for rows in tables[1:]:
        more = rows[~_covered(kernel, rows, kept)]
        kept = pd.concat([kept, more], ignore_index=True) if len(more) else kept
    return kept


def _covered(kernel: str, rows: pd.DataFrame, earlier: pd.DataFrame) -> np.ndarray:
    """Return which of ``rows`` have one of ``earlier`` in the same formats nearby."""
    from scipy.spatial import KDTree

    kind = KINDS[kernel]
    keys, known = kind.keys(rows).to_numpy(), kind.keys(earlier).to_numpy()
    coordinates, known_coordinates = kind.coordinates(rows), kind.coordinates(earlier)
    covered = np.zeros(len(rows), dtype=bool)
    for key in set(known):
        mine = keys == key
        if mine.any():
            distance = KDTree(known_coordinates[known == key]).query(coordinates[mine])[0]
            covered[mine] = distance < MAX_COVERED_DISTANCE
    return covered
