"""Importers: results of other tools as run tables. The formats, and the import of files."""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers import columns
from foretune.datasets.importers.files import JSON, TABLES, Request, WrongFile, files_of
from foretune.datasets.runs import ordered_columns, with_specs
from foretune.datasets.schema import is_run_column, valid_rows
from foretune.errors import RunTableError, UsageError, require_known
from foretune.support.files import translate_read_errors
from foretune.support.progress import SILENT, Progress
from foretune.values import Value

Reader = Callable[[Path, Request], pd.DataFrame]
"""Returns a file's rows as run-table columns; invalid rows are dropped and counted later.

Raises `WrongFile` for a file of another format, `RunTableError` for a damaged one.
"""


@dataclass(frozen=True)
class Format:
    """A format of another tool.

    ``module`` has its `Reader`, ``read``, and is imported on use; ``suffixes`` are looked for in
    folders; if it ``takes_mapping``, the user maps the file's columns. A module that can find its
    tool's data has ``locate``, which turns the FILE argument into a path.
    """

    module: str
    suffixes: tuple[str, ...]
    takes_mapping: bool = False

    def load(self) -> Any:
        """Import and return the module."""
        return importlib.import_module(f"{__name__}.{self.module}")


FORMATS = {
    "aiconfigurator": Format("aiconfigurator", TABLES),
    "generic": Format("generic", TABLES, takes_mapping=True),
    "kerneltuner": Format("kerneltuner", JSON),
    "ncu": Format("ncu", (".csv", ".txt")),
    "optuna": Format("optuna_studies", (".db", ".sqlite", ".sqlite3"), takes_mapping=True),
    "t4": Format("t4", JSON),
    "torch-profiler": Format("torch_profiler", JSON),
    "triton": Format("triton_cache", (".autotune.json",), takes_mapping=True),
}


@dataclass(frozen=True)
class ImportResult:
    """A valid run table, and what was left out of it.

    ``rejected`` maps reasons to numbers of dropped rows, ``skipped`` maps files in another format
    to the missing column or key.
    """

    runs: pd.DataFrame
    rejected: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, int]:
        """Number of rows per kernel, largest first."""
        return {str(k): int(n) for k, n in self.runs["kernel"].value_counts().items() if n}


StrPath = str | os.PathLike[str]


def import_runs(
    path: StrPath | Iterable[StrPath],
    format: str,
    *,
    kernel: str | None = None,
    device: str | None = None,
    mapping: Mapping[str, str] | None = None,
    constants: Mapping[str, Value] | None = None,
    progress: Progress = SILENT,
) -> ImportResult:
    """Read another tool's results as a run table.

    ``path`` is a file, a folder (all its files of that format), or several of them, ``format`` a
    name of `FORMATS`; for the next four, see `Request`; ``progress`` receives one step per file.
    Invalid rows (no time, a time of zero, …) are dropped and counted by reason. Duplicates are
    kept. Known devices get their specs.

    Raises UnknownName or UsageError if the format is unknown, or does not fit the options;
    RunTableError if a file is missing, damaged, empty or of another format.
    """
    require_known("format", format, FORMATS)
    chosen = FORMATS[format]
    if mapping and not chosen.takes_mapping:
        raise UsageError(f"format {format!r} has fixed columns: leave --map COLUMN=SOURCE out")
    fixed = dict(constants or {})
    if wrong := [c for c in fixed if not is_run_column(c)]:
        raise UsageError(f"{wrong[0]!r} is not a run-table column: use e.g. problem.{wrong[0]}")
    # readers need these two if their files lack them
    kernel, device = kernel or _pop_text(fixed, "kernel"), device or _pop_text(fixed, "device")
    request = Request(kernel, device, mapping or {}, fixed)
    read: Reader = chosen.load().read
    files = _files([path] if isinstance(path, (str, os.PathLike)) else path, chosen)
    progress.start(f"import {format}", len(files))
    tables, skipped = [], {}
    for file, given in files.items():
        try:
            with translate_read_errors(file, RunTableError, "is damaged: {}"):
                rows = read(file, request)
        except WrongFile as e:
            if given:
                raise
            rows, skipped[str(file)] = pd.DataFrame(), str(e)
        if len(rows):
            texts = {c: columns.constant(v, len(rows)) for c, v in fixed.items() if type(v) is str}
            tables.append(rows.assign(**{**fixed, **texts}))
        progress.advance(file.name)
    if not tables:
        raise RunTableError(_explain_empty_import(files, skipped, request, format))
    names = ", ".join(f.name for f in list(files)[:5])
    with translate_read_errors(names, RunTableError, "do not fit: {}"):
        runs = with_specs(columns.concatenated_rows(tables))
        runs, rejected = valid_rows(runs[ordered_columns(runs.columns)], "imported rows")
    return ImportResult(runs, rejected, skipped)


def _files(sources: Iterable[StrPath], chosen: Format) -> dict[Path, bool]:
    """Return the files to read, and whether each was named explicitly (and must be readable)."""
    found = {}
    for source in sources:
        path = getattr(chosen.load(), "locate", Path)(source)
        found.update({file: file == path for file in files_of(path, chosen.suffixes)})
    return found


def _pop_text(constants: dict[str, Value], name: str) -> str | None:
    return str(constants.pop(name)) if name in constants else None


def _explain_empty_import(
    files: Mapping[Path, bool], skipped: Mapping[str, str], request: Request, format: str
) -> str:
    if len(skipped) == len(files):
        return f"none of {len(files)} files is of format {format!r}: {next(iter(skipped.values()))}"
    of_kernel = f" of kernel {request.kernel!r}" if request.kernel else ""
    return f"no row{of_kernel} in {', '.join(f.name for f in list(files)[:5])}: nothing to import"
