"""Measured operators of one kernel on one system, as arrays that are read in milliseconds.

The engines' tables are screened once (`foretune.plan.cost.measured_operators`), which takes
seconds; the result is kept in the user's cache directory. The user's own rows (``foretune collect
--operators``) come first.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from foretune.collect.devices import cache_directory
from foretune.errors import OutputError, RunTableError
from foretune.support.files import atomic_write, read_arrays, translate_read_errors
from foretune.support.operator_package import installed_tables
from foretune.version import __version__

if TYPE_CHECKING:
    import pandas as pd

CACHE_FOLDER = "operator-rows"
PREFIXES = ("problem.", "config.")


@dataclass(frozen=True)
class MeasuredRows:
    """Measured operators.

    Attributes:
        columns: ``problem.*`` and ``config.*`` columns, by full name.
        ms: milliseconds of each row.
    """

    columns: Mapping[str, np.ndarray]
    ms: np.ndarray

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the columns with a prefix, by short name."""
        return {
            name.removeprefix(prefix): column
            for name, column in self.columns.items()
            if name.startswith(prefix)
        }

    def at(self, rows: np.ndarray) -> "MeasuredRows":
        """Return some of the rows, by index or mask."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return MeasuredRows(columns=columns, ms=self.ms[rows])

    @classmethod
    def from_runs(cls, runs: "pd.DataFrame") -> Self:
        """Return the rows of a run table that have a time."""
        timed = runs[runs["time_ms"] > 0]
        columns = {}
        for name in timed:
            if str(name).startswith(PREFIXES):
                column = timed[name]
                is_number = column.dtype.kind in "fiub"
                columns[str(name)] = column.to_numpy(dtype=float if is_number else np.str_)
        return cls(columns=columns, ms=timed["time_ms"].to_numpy(dtype=float))

    def save(self, path: Path) -> None:
        """Write to a file."""
        arrays: dict[str, Any] = {"ms": self.ms, **self.columns}
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; raises RunTableError if it is damaged."""
        with translate_read_errors(path, RunTableError, "is damaged ({})"):
            arrays = read_arrays(path)
            ms = arrays.pop("ms")
            return cls(columns=arrays, ms=ms)


def table_rows(kernel: str, system: str, engine: str) -> MeasuredRows | None:
    """Return the rows of the installed tables; None without the package or without such rows."""
    folder = installed_tables()
    if folder is None or not (folder / system).is_dir():
        return None
    state = f"{__version__} {folder} {(folder / system).stat().st_mtime_ns}"
    digest = hashlib.sha256(state.encode()).hexdigest()[:12]
    path = cache_directory() / CACHE_FOLDER / f"{kernel}-{system}-{engine}-{digest}.npz"
    with suppress(RunTableError):  # it is made again
        rows = MeasuredRows.load(path)
        return rows if len(rows.ms) else None
    rows = _screened_rows(kernel, system, engine)
    with suppress(OutputError):  # a cache that fails must not stop the answer
        rows.save(path)
    return rows if len(rows.ms) else None


def user_rows(folder: Path, kernel: str, system: str) -> MeasuredRows | None:
    """Return the rows that the user measured on a device; None if there are none.

    Raises RunTableError if the folder's table cannot be read.
    """
    from foretune.plan.cost.tables import UserTables

    runs = UserTables(folder).rows(kernel, system, "")
    return None if runs is None else MeasuredRows.from_runs(runs)


def _screened_rows(kernel: str, system: str, engine: str) -> MeasuredRows:
    """Read and screen the tables; no rows if there are none."""
    from foretune.plan.cost.measured_operators import MeasuredOperators
    from foretune.plan.cost.tables import find_tables

    tables = find_tables()
    runs = tables.rows(kernel, system, engine) if tables else None
    measured = MeasuredOperators(kernel, runs, kernel) if runs is not None else None
    if measured is None or not measured.keys:
        return MeasuredRows(columns={}, ms=np.zeros(0))
    return MeasuredRows.from_runs(measured.runs)
