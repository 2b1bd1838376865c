"""Measured operators: the user's run table first, then the engines' tables."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.aiconfigurator import KERNELS, operation_of, read
from foretune.datasets.importers.columns import device_of_system
from foretune.datasets.importers.files import Request
from foretune.datasets.journal import journal_path
from foretune.datasets.runs import newest_runs, read_runs, with_specs_of
from foretune.device import find_device_or_none
from foretune.errors import RunTableError, UsageError
from foretune.measurement import Status
from foretune.plan.cost.kinds import CONVERTERS, KINDS
from foretune.plan.cost.recurrent import RECURRENT
from foretune.plan.cost.sparse_attention import MODULES
from foretune.plan.describe.engines import ENGINES
from foretune.support.operator_package import installed_tables

MIN_COMPLETE_SHARE = 0.4
"""A version counts as complete if it has this share of the largest version's rows."""
COLLECTIVE_BACKENDS = ("nccl", "oneccl")
"""Libraries whose tables are shared by all engines."""
OPERATIONS = (
    *(op for op, kernel in KERNELS.items() if kernel in KINDS or op in COLLECTIVE_BACKENDS),
    "mla_bmm",
    *MODULES,
    *RECURRENT,
)
"""Operations of the engines' tables that plans use."""
OPERATORS_FILE = "operators.parquet"
"""The user's run table in a folder of ``foretune collect --operators``."""
MAX_COVERED_DISTANCE = 1.0
"""Octaves around a measurement in which later folders are ignored."""


class EngineTables:
    """Measured operators of engines.

    There is a file per system, engine, version and operation
    (``FOLDER/SYSTEM/…/BACKEND/VERSION/OP_perf.parquet``), or one per operation
    (``FOLDER/OP.parquet``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def systems(self) -> list[str]:
        """Short names of the measured systems."""
        nested = {path.relative_to(self.folder).parts[0] for path in self._paths}
        return sorted(nested | {*self._flat["system"]})

    def backends(self, system: str) -> list[str]:
        """Return the engines measured on ``system``."""
        nested = {path.parts[-3] for path in self._paths if system in path.parts}
        flat = self._flat.loc[self._flat["system"] == system, "backend"]
        return sorted((nested | {*flat}) - {*COLLECTIVE_BACKENDS})

    def versions(self, system: str, backend: str) -> list[str]:
        """Return the versions of an engine in the names of a system's folders, oldest first."""
        here = (path.parts for path in self._paths if system in path.parts)
        return sorted({parts[-2] for parts in here if parts[-3] == backend}, key=_version_key)

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the run table of ``kernel`` on ``system`` with ``backend``, or None.

        The newest complete version is used. Older versions add the formats that it lacks, and power
        (without times) if newer ones have none. Collectives missing for the engine come from the
        library.
        """
        for op in OPERATIONS:
            if KERNELS.get(op, op) not in (kernel, ""):
                continue
            backends = COLLECTIVE_BACKENDS if op in COLLECTIVE_BACKENDS else (backend,)
            versions = self._versions(op, kernel, system, backends)
            if versions:
                device = find_device_or_none(device_of_system(system))
                rows = with_specs_of(_merge_versions(versions).assign(kernel=kernel), device)
                return CONVERTERS[kernel](rows) if kernel in CONVERTERS else rows
        return None

    @cached_property
    def _paths(self) -> list[Path]:
        files = self.folder.rglob("*_perf.parquet")
        return sorted(p for p in files if operation_of(p) in OPERATIONS)

    @cached_property
    def _flat(self) -> pd.DataFrame:
        """The systems and engines in files that hold one operation."""
        columns = ["system", "backend"]
        paths = [] if self._paths else [self.folder / f"{op}.parquet" for op in OPERATIONS]
        files = [path for path in paths if path.is_file()]
        found = [pd.read_parquet(path, columns=columns).drop_duplicates() for path in files]
        return pd.concat(found) if found else pd.DataFrame(columns=columns)

    @cached_property
    def _flat_rows(self) -> dict[str, pd.DataFrame]:
        """Operation -> the rows of its file, cached when it is read."""
        return {}

    def _versions(
        self, op: str, kernel: str, system: str, backends: tuple[str, ...]
    ) -> list[pd.DataFrame]:
        """Return the tables of every version, oldest first."""
        if not self._paths:
            return self._flat_versions(op, kernel, system, backends)
        found = [
            p
            for p in self._paths
            if operation_of(p) == op and system in p.parts and p.parts[-3] in backends
        ]
        found.sort(key=lambda p: _version_key(p.parts[-2]))
        tables = [read(path, Request(kernel=kernel)) for path in found]
        return [rows for rows in tables if len(rows)]

    def _flat_versions(
        self, op: str, kernel: str, system: str, backends: tuple[str, ...]
    ) -> list[pd.DataFrame]:
        path = self.folder / f"{op}.parquet"
        if not path.is_file():
            return []
        if op not in self._flat_rows:
            self._flat_rows[op] = read(path, Request())
        table = self._flat_rows[op]
        of_kernel = table["kernel"] == kernel
        of_system = table["device"] == device_of_system(system)
        of_engine = table["config.backend"].isin(backends)
        rows_of_version = {
            str(version): rows
            for version, rows in table[of_kernel & of_system & of_engine].groupby(
                "environment", observed=True
            )
        }
        return [rows_of_version[version] for version in sorted(rows_of_version, key=_version_key)]


def _merge_versions(versions: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the newest complete version's rows, and of others what it lacks."""
    largest = max(len(rows) for rows in versions)
    complete = [rows for rows in versions if len(rows) >= MIN_COMPLETE_SHARE * largest]
    newest = complete[-1]
    older = [rows for rows in reversed(versions) if rows is not newest]

    # Formats that newer versions lack.
    kept: list[pd.DataFrame] = []
    seen_formats: set[str] = set()
    for rows in [newest, *older]:
        if "config.format" not in rows:
            kept.append(rows)
            continue
        added = rows[~rows["config.format"].isin(seen_formats)]
        seen_formats |= set(added["config.format"])
        kept.append(added)

    # Power, without times, of the newest version that has any.
    metered = [rows for rows in versions if "power_w" in rows and rows["power_w"].notna().any()]
    if metered and metered[-1] is not newest:
        kept.append(metered[-1].assign(time_ms=np.nan))
    return pd.concat([rows for rows in kept if len(rows)], ignore_index=True)


def _version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a version: 1.3.0rc9 before 1.3.0rc10."""
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in parts)


def has_user_operators(folder: Path) -> bool:
    """Return whether ``folder`` has operators that the user measured, even if incomplete."""
    path = folder / OPERATORS_FILE
    return path.is_file() or journal_path(path).is_file()


class UserTables:
    """The run table written by ``foretune collect --operators``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def backends(self, system: str) -> list[str]:
        """Return all engines if ``system`` was measured, else none."""
        return sorted(ENGINES) if (self._runs["device"] == device_of_system(system)).any() else []

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the rows of ``kernel`` on ``system`` for any engine, or None."""
        runs = self._runs
        here = (runs["kernel"] == kernel) & (runs["device"] == device_of_system(system))
        if not here.any():
            return None
        return runs[here].dropna(axis=1, how="all").reset_index(drop=True)

    @cached_property
    def _runs(self) -> pd.DataFrame:
        """Successful runs, one per operator."""
        path = self.folder / OPERATORS_FILE
        runs = newest_runs(read_runs(path))
        succeeded = runs[runs["status"] == Status.OK.value]
        if succeeded.empty:
            raise RunTableError(f"{path} has no successful measurement: see its column 'error'")
        return succeeded.reset_index(drop=True)


def default_folders() -> list[Path]:
    """Return the folder of the installed package's tables, if there is one."""
    package = installed_tables()
    return [package] if package and package.is_dir() else []


def find_tables(folder: Path | None = None) -> "OperatorTables | None":
    """Return the measured operators to plan with; None if there are none.

    If ``folder`` was written by ``foretune collect --operators``, the engines' tables complete it.
    If it has engines' tables, they are used alone. Raises UsageError if it has neither.
    """
    if folder is None:
        found = default_folders()
    elif has_user_operators(folder):
        found = [folder, *default_folders()]
    elif EngineTables(folder).systems:
        found = [folder]
    else:
        raise UsageError(
            f"no measured operators in {folder}: "
            f"run 'foretune collect --operators MODEL --out {folder}'"
        )
    return OperatorTables(*found) if found else None


class OperatorTables:
    """The measured operators of several folders; earlier folders take precedence.

    A row is dropped if an earlier folder has the operator in the same formats within
    `MAX_COVERED_DISTANCE`. So the user's measurements on their own GPU replace nearby rows of the
    engines' tables.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders

    @cached_property
    def systems(self) -> list[str]:
        """Short names of the systems in the engines' tables."""
        engines = (tables for tables in self._sources if isinstance(tables, EngineTables))
        return sorted({name for tables in engines for name in tables.systems})

    def backends(self, system: str) -> list[str]:
        """Return the engines measured on ``system``; the user's operators count for all."""
        return sorted({b for tables in self._sources for b in tables.backends(system)})

    def versions(self, system: str, backend: str) -> list[str]:
        """Return the versions of an engine that were measured on a system, oldest first."""
        engines = (tables for tables in self._sources if isinstance(tables, EngineTables))
        found = {version for tables in engines for version in tables.versions(system, backend)}
        return sorted(found, key=_version_key)

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the run table of ``kernel`` on ``system`` with ``backend``, or None."""
        found = (tables.rows(kernel, system, backend) for tables in self._sources)
        return merge_tables(kernel, [rows for rows in found if rows is not None])

    @cached_property
    def _sources(self) -> list[UserTables | EngineTables]:
        return [
            UserTables(folder) if has_user_operators(folder) else EngineTables(folder)
            for folder in self.folders
        ]


def merge_tables(kernel: str, tables: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the rows of all ``tables``, except those near rows of an earlier one."""
    if not tables:
        return None
    kept = tables[0]
    for rows in tables[1:]:
        more = rows[~_covered(kernel, rows, kept)]
        kept = pd.concat([kept, more], ignore_index=True) if len(more) else kept
    return kept


def _covered(kernel: str, rows: pd.DataFrame, earlier: pd.DataFrame) -> np.ndarray:
    """Return which of ``rows`` have a row of ``earlier`` nearby in the same formats."""
    from scipy.spatial import KDTree

    kind = KINDS[kernel]
    formats = kind.keys(rows).to_numpy()
    coordinates = kind.coordinates(rows)
    earlier_formats = kind.keys(earlier).to_numpy()
    earlier_coordinates = kind.coordinates(earlier)
    covered = np.zeros(len(rows), dtype=bool)
    for name in set(earlier_formats):
        of_format = formats == name
        if of_format.any():
            measured = KDTree(earlier_coordinates[earlier_formats == name])
            distance = measured.query(coordinates[of_format])[0]
            covered[of_format] = distance < MAX_COVERED_DISTANCE
    return covered
