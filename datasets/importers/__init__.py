"""Importers: results of other tools as run tables. The formats, and the import of files."""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.decimal_marks import MARKS
from foretune.datasets.importers import columns
from foretune.datasets.importers.files import (
    JSON,
    JSON_LINES,
    RECORDS,
    TABLES,
    Request,
    WrongFile,
    files_of,
)
from foretune.datasets.runs import ordered_columns, with_specs
from foretune.datasets.schema import is_run_column, valid_rows
from foretune.datasets.text_tables import Dialect
from foretune.errors import RunTableError, UsageError, require_known
from foretune.support.files import translate_read_errors
from foretune.support.progress import SILENT, Progress
from foretune.values import Value

MAX_NAMES = 5
"""Number of files that a message names."""

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


STUDIES = (".db", ".sqlite", ".sqlite3", ".log")
"""Suffixes of Optuna's databases and journals."""

FORMATS = {
    "aiconfigurator": Format("aiconfigurator", TABLES),
    "clblast": Format("clblast", JSON),
    "engine-steps": Format("engine_steps", (*RECORDS, ".txt")),
    "generic": Format("generic", (*TABLES, ".tsv", ".jsonl"), takes_mapping=True),
    "google-benchmark": Format("google_benchmark", (".csv", ".json")),
    "kerneltuner": Format("kerneltuner", JSON),
    "ktt": Format("ktt", JSON),
    "llama-bench": Format("llama_bench", (*JSON_LINES, ".csv")),
    "ncu": Format("ncu", (".csv", ".txt")),
    "nsys": Format("nsys", (".csv", ".sqlite")),
    "nvbench": Format("nvbench", JSON),
    "optuna": Format("optuna_studies", STUDIES, takes_mapping=True),
    "rocprof": Format("rocprof", (".csv",)),
    "t4": Format("t4", JSON),
    "torch-profiler": Format("torch_profiler", JSON),
    "triton": Format("triton_cache", (".autotune.json",), takes_mapping=True),
    "tvm": Format("tvm", RECORDS),
}


@dataclass(frozen=True)
class ImportResult:
    """A valid run table, and what was left out of it.

    ``rejected`` maps reasons to numbers of dropped rows, ``skipped`` maps files in another format
    to the missing column or key. ``notes`` say how files were understood, and what was skipped in
    them.
    """

    runs: pd.DataFrame
    rejected: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
    separator: str | None = None,
    decimal: str | None = None,
    progress: Progress = SILENT,
) -> ImportResult:
    """Read another tool's results as a run table.

    ``path`` is a file, a folder (all its files of that format), or several of them, ``format`` a
    name of `FORMATS`; for the next four, see `Request`. ``separator`` and ``decimal`` (a point or
    a comma) settle how text tables are read; both are found unless given. ``progress`` receives one
    step per file.
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
    wrong = [column for column in fixed if not is_run_column(column)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a run-table column: use e.g. problem.{wrong[0]}")

    # Readers need kernel and device if their files lack them. An option wins over a constant.
    kernel = kernel or _pop_text(fixed, "kernel")
    device = device or _pop_text(fixed, "device")
    request = Request(
        kernel=kernel,
        device=device,
        mapping=mapping or {},
        constants=fixed,
        dialect=checked_dialect(separator, decimal),
    )

    # Read every file. Those of another format are skipped, unless the user named them.
    read: Reader = chosen.load().read
    files = _files([path] if isinstance(path, (str, os.PathLike)) else path, chosen)
    progress.start(f"import {format}", len(files))
    tables = []
    skipped = {}
    for file, is_named in files.items():
        try:
            with translate_read_errors(file, RunTableError, "is damaged: {}"):
                rows = read(file, request)
        except WrongFile as e:
            if is_named:
                raise
            skipped[str(file)] = str(e)
        else:
            if len(rows):
                tables.append(rows.assign(**_constant_columns(fixed, len(rows))))
        progress.advance(file.name)
    if not tables:
        reasons = [_explain_empty_import(files, skipped, request, format), *request.notes]
        raise RunTableError("; ".join(reasons))

    # Join them, and leave impossible rows out.
    with translate_read_errors(_first_names(files), RunTableError, "do not fit: {}"):
        joined = with_specs(columns.concatenated_rows(tables))
        ordered = joined[ordered_columns(joined.columns)]
        runs, rejected = valid_rows(ordered, "imported rows")
    # Several files may say the same.
    notes = tuple(dict.fromkeys(request.notes))
    return ImportResult(runs=runs, rejected=rejected, skipped=skipped, notes=notes)


def checked_dialect(separator: str | None, decimal: str | None) -> Dialect:
    """Return what the user says about text tables; UsageError if it makes no sense."""
    if decimal is not None and decimal not in MARKS:
        raise UsageError(f"the decimal mark {decimal!r} is neither . nor ,")
    if separator is not None and len(separator) != 1:
        raise UsageError(f"the separator {separator!r} is not one character")
    return Dialect(separator=separator, decimal=decimal)


def _constant_columns(constants: Mapping[str, Value], n_rows: int) -> dict[str, Any]:
    """Return the constants as columns; texts as categories, to save memory."""
    return {
        column: columns.constant(value, n_rows) if isinstance(value, str) else value
        for column, value in constants.items()
    }


def _files(sources: Iterable[StrPath], chosen: Format) -> dict[Path, bool]:
    """Return the files to read, and whether each was named explicitly (and must be readable)."""
    locate = getattr(chosen.load(), "locate", Path)
    files = {}
    for source in sources:
        path = locate(source)
        for file in files_of(path, chosen.suffixes):
            files[file] = file == path
    return files


def _pop_text(constants: dict[str, Value], name: str) -> str | None:
    return str(constants.pop(name)) if name in constants else None


def _explain_empty_import(
    files: Mapping[Path, bool], skipped: Mapping[str, str], request: Request, format: str
) -> str:
    if len(skipped) == len(files):
        return f"none of {len(files)} files is of format {format!r}: {next(iter(skipped.values()))}"
    of_kernel = f" of kernel {request.kernel!r}" if request.kernel else ""
    return f"no row{of_kernel} in {_first_names(files)}: nothing to import"


def _first_names(files: Iterable[Path]) -> str:
    """Return the names of the first files, for a message."""
    return ", ".join(file.name for file in islice(files, MAX_NAMES))
